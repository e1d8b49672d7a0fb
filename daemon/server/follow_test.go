package server

import (
	"errors"
	"os"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/internal/paths"
	"github.com/agbox/agbox/logs"
	"github.com/agbox/agbox/logs/notify"
)

var errCallOver = errors.New("the call is over")

// fakeClient takes what it is sent, or nothing until it is let go.
type fakeClient struct {
	data  []byte
	stuck chan struct{} // nil: takes all
}

func (c *fakeClient) sendChunk(chunk *agboxv1.LogChunk) error {
	if c.stuck != nil {
		<-c.stuck
		return errCallOver
	}
	c.data = append(c.data, chunk.GetData()...)
	return nil
}

func (c *fakeClient) sendEnd(*agboxv1.LogEnd) error { return nil }

// followed makes a log and a follower of it whose exec never ends.
func followed(t *testing.T, slow time.Duration, to outputSender) (*follower, *logs.Writer) {
	t.Helper()
	s := bare(t)
	s.Paths, s.SlowReader, s.stopping = paths.Install{Data: t.TempDir()}, slow, make(chan struct{})
	if err := os.MkdirAll(s.Paths.SandboxLogs("a"), 0o700); err != nil {
		t.Fatal(err)
	}
	notifier, err := notify.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = notifier.Close() })
	s.Logs = notifier
	dir, err := logs.OpenDir(s.Paths.SandboxLogs("a"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = dir.Close() })
	w, err := dir.Create("e1", logs.WriterOptions{Owner: logs.KeepOwner})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.Close() })
	return &follower{s: s, to: to, sandboxID: "a", execID: "e1", done: make(chan struct{})}, w
}

// The call of a client that takes nothing ends, though the sending hangs; what
// hung is tidied up with the call.
func TestAClientThatTakesNothingIsLeft(t *testing.T) {
	c := &fakeClient{stuck: make(chan struct{})}
	f, w := followed(t, time.Millisecond, c)
	w.Write(logs.Stdout, time.Now(), []byte("hello"))
	err := f.run(t.Context(), true)
	f.close()
	if !errdefs.IsResourceExhausted(err) || fault.ReasonOf(err) != agboxv1.ErrorReason_OVERLOADED {
		t.Errorf("run: %v, want OVERLOADED", err)
	}
	close(c.stuck)
	f.s.draining.Wait()
	if !f.reader.Suspended() && f.reader.Close() == nil {
		t.Error("the files were left open")
	}
}

// Also of a log that was quiet for so long that its files were closed.
func TestAFollowerThatRestedMissesNothing(t *testing.T) {
	c := &fakeClient{}
	f, w := followed(t, 0, c)
	defer f.close()
	for _, text := range []string{"one ", "two ", "three"} {
		w.Write(logs.Stdout, time.Now(), []byte(text))
		if err := f.read(t.Context(), false); err != nil {
			t.Fatal(err)
		}
		if err := f.reader.Suspend(); err != nil {
			t.Fatal(err)
		}
	}
	if string(c.data) != "one two three" {
		t.Errorf("got %q", c.data)
	}
}

func TestAMissingDescriptorIsOverloadAndNoLostLog(t *testing.T) {
	err := unreadable("e1", &os.PathError{Op: "open", Path: "x", Err: unix.EMFILE})
	if !errdefs.IsResourceExhausted(err) || fault.ReasonOf(err) != agboxv1.ErrorReason_OVERLOADED {
		t.Errorf("%v, want OVERLOADED", err)
	}
}
