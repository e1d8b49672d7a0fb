package links_test

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/agbox/agbox/daemon/guests/guesttest"
	"github.com/agbox/agbox/daemon/guests/links"
)

// engine says which process is the first of the container of sandbox "a".
type engine struct {
	pid   int
	err   error
	asked int
}

func (e *engine) firstPID(context.Context, string) (int, error) {
	e.asked++
	return e.pid, e.err
}

// life makes the links of one daemon of the install; this process answers as supervisor.
func life(t *testing.T, b *guesttest.Bench, e *engine) *links.Links {
	l := links.New(t.Context(), links.Options{
		Ledger: b.Ledger, Paths: b.Install, Now: time.Now, Log: b.Log, FirstPID: e.firstPID, Lost: func(string) {},
	})
	l.SendReports(noReports{})
	t.Cleanup(l.Close)
	return l
}

func TestOnlyTheFirstProcessOfTheContainerIsTheSupervisor(t *testing.T) {
	b := guesttest.New(t)
	b.Serve(supervisor{}.methods())
	for name, c := range map[string]struct {
		engine engine
		wrong  func(error) bool
	}{
		"another one":                      {engine{pid: 1}, errdefs.IsFailedPrecondition},
		"nobody can tell":                  {engine{err: errors.New("the engine is away")}, errdefs.IsUnavailable},
		"the container has not one itself": {engine{err: errdefs.ErrUnavailable}, errdefs.IsUnavailable},
	} {
		l := life(t, b, &c.engine)
		if err := l.Connect(t.Context(), "a"); !c.wrong(err) || l.Connected("a") {
			t.Errorf("%s: Connect gives %v", name, err)
		}
	}
	wantTampered(t, life(t, b, &engine{pid: 1}).Connect(t.Context(), "a"))
}

func TestTheEngineIsAskedForTheFirstProcessOnce(t *testing.T) {
	b := guesttest.New(t)
	cut, _ := b.Serve(supervisor{}.methods())
	present := &engine{pid: os.Getpid()}
	l := life(t, b, present)
	if err := l.Connect(t.Context(), "a"); err != nil || present.asked != 1 {
		t.Fatalf("Connect gives %v, the engine was asked %d times", err, present.asked)
	}
	if !l.Lives("a") || l.Lives("b") {
		t.Errorf("the supervisors of a and b live: %v, %v", l.Lives("a"), l.Lives("b"))
	}
	cut()
	// The next daemon finds no engine.
	away := &engine{err: errors.New("the engine is away")}
	if err := life(t, b, away).Connect(t.Context(), "a"); err != nil || away.asked != 0 {
		t.Errorf("Connect gives %v, the engine was asked %d times", err, away.asked)
	}
	// What is noted of another life of the container counts for nothing.
	if err := os.WriteFile(b.Install.GuestInit("a"), []byte(`{"pid":1,"start":1,"kernel":"x"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if life(t, b, away).Lives("a") {
		t.Error("a supervisor of another life of the container lives")
	}
	if err := life(t, b, away).Connect(t.Context(), "a"); !errdefs.IsUnavailable(err) || away.asked != 1 {
		t.Errorf("Connect gives %v, the engine was asked %d times", err, away.asked)
	}
}

func TestAListenerWithoutAPidPassesOnlyWhereNoneCouldHaveOne(t *testing.T) {
	if err := links.Unseen(false); err != nil {
		t.Errorf("in a container of its own the daemon refuses it: %v", err)
	}
	if err := links.Unseen(true); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("on the host the daemon gives %v", err)
	}
}
