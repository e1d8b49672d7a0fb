package output

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/agbox/agbox/logs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// newLog makes the log of an exec.
func newLog(t *testing.T) *logs.Writer {
	t.Helper()
	dir, err := logs.OpenDir(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = dir.Close() })
	w, err := dir.Create("e", logs.WriterOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.Close() })
	return w
}

// freely is a gate that always has room.
func freely(fn func()) { fn() }

// held is a gate with the room of a channel: who fills it holds up the disk.
func held(room chan struct{}) Gate {
	return func(fn func()) {
		room <- struct{}{}
		defer func() { <-room }()
		fn()
	}
}
