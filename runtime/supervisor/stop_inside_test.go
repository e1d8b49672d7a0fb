package supervisor

import (
	"context"
	"errors"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"reflect"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agbox/agbox/logs"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"
	"github.com/agbox/agbox/runtime/guest/rpc"
)

// stoppingForTest performs the first step of a stop.
func (s *Supervisor) stoppingForTest() {
	s.registry.close()
	s.children.stopping()
}

// stopped reports whether the record says that the stop prevented the start.
func stopped(r *guestv1.ExecRecord) bool {
	return r.GetPhase() == guestv1.ExecPhase_EXEC_PHASE_FAILED && r.GetEndCause() == guestv1.EndCause_END_CAUSE_STOP &&
		r.GetCancelled() && r.GetExitCode() == 143 && r.GetFailureMessage() != ""
}

// The search for processes to end would miss one that is started later.
func TestAnExecThatMeetsTheStopGetsNoProcess(t *testing.T) {
	s := newInside(t)
	w := s.registry.subscribe()
	e, _ := s.registry.claim("e", &s.work)
	s.stoppingForTest()
	s.begin(t.Context(), e, &guestv1.StartRequest{ExecId: "e", Command: []string{"true"}})
	if ch := s.registry.childOf(e); ch != nil {
		t.Error("a process was started")
		_ = unix.Waitid(unix.P_PID, ch.pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		s.children.reap()
	}
	r := <-w.exits
	if !stopped(r) {
		t.Errorf("the watchers are told of %v", r)
	}
	if left := s.readStatus("e"); !reflect.DeepEqual(left, r) {
		t.Errorf("the status file holds %v", left)
	}
}

func TestAStartDuringTheStopIsAnsweredAsWhatTheStopEnded(t *testing.T) {
	s := newInside(t)
	old := &guestv1.ExecRecord{ExecId: "old", Phase: guestv1.ExecPhase_EXEC_PHASE_EXITED, ExitCode: 3}
	s.writeStatus(old, nil, logs.StatusOptions{Owner: s.owner()})
	s.stoppingForTest()
	start := func(id string) *guestv1.ExecRecord {
		r, err := s.start(t.Context(), &guestv1.StartRequest{ExecId: id, Command: []string{"true"}})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	if r := start("late"); !stopped(r) {
		t.Errorf("what comes late is %v", r)
	}
	if r := start("old"); !reflect.DeepEqual(r, old) {
		t.Errorf("what ran before is %v", r)
	}
	if left, _ := filepath.Glob(filepath.Join(s.cfg.LogDir, "late*")); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

func isUnavailable(err error) bool {
	e, ok := errors.AsType[*rpc.Error](err)
	return ok && e.Code == rpc.Unavailable
}

func TestAReleaseDuringTheStopNamesNoCommand(t *testing.T) {
	s := newInside(t)
	s.cfg.Boot.Command = []string{"true"}
	s.stoppingForTest()
	v := &service{s}
	for range 2 {
		if r, err := v.Release(t.Context(), nil); !isUnavailable(err) {
			t.Errorf("released %v, %v", r, err)
		}
	}
	if r, err := v.Hello(t.Context(), nil); err != nil || r.GetMainExecId() != "" {
		t.Errorf("it says of itself %v, %v", r, err)
	}
}

func TestTheContainersOwnCommandTakesNoIDThatIsBeingStarted(t *testing.T) {
	s := newInside(t)
	s.cfg.Boot.Command = []string{"true"}
	other, _ := s.registry.claim("main", &s.work)
	defer s.work.Done()
	s.children.stopping() // no need to run the whole stop
	if id, err := s.release(t.Context()); id != "main-2" || err != nil {
		t.Errorf("it is released as %q, %v", id, err)
	}
	if e, _ := s.registry.get("main"); e != other {
		t.Error("the other one is gone")
	}
}

func TestWhatIsForkedWhileTheStopLooksGetsItsSignal(t *testing.T) {
	c := newChildren()
	chld := make(chan os.Signal, 1)
	signal.Notify(chld, syscall.SIGCHLD)
	defer signal.Stop(chld)
	ctx, cancel := context.WithCancel(t.Context())
	var reaping sync.WaitGroup
	reaping.Go(func() { c.run(ctx, chld) })
	defer reaping.Wait()
	defer cancel()

	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	null, err := openNull()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = null.Close() }()
	ch, err := c.start("e", "/bin/sh", []string{"sh", "-c", "sleep 1000 & echo; wait"}, &syscall.ProcAttr{
		Env: os.Environ(), Files: []uintptr{null.Fd(), w.Fd(), null.Fd()}, Sys: &syscall.SysProcAttr{Setsid: true},
	})
	_ = w.Close()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	leader, _ := readProcess(ch.pid) // the only process when the list was read
	c.stopping()
	c.terminate([]proc{leader})
	_ = r.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := r.Read(make([]byte, 1)); !errors.Is(err, io.EOF) { // both hold it open
		t.Errorf("the other process lives on: %v", err)
		_ = syscall.Kill(-ch.pid, syscall.SIGKILL)
	}
	if end := <-ch.exited; end.cause != guestv1.EndCause_END_CAUSE_STOP || end.status.Signal() != syscall.SIGTERM {
		t.Errorf("the leader ended with %v, cause %v", end.status, end.cause)
	}
}
