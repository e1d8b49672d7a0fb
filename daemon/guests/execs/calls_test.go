package execs

import (
	"testing"
)

// The client of a session does not notice that a link is replaced. It sends its size
// once.
func TestAResizeThatALinkTookAlongGoesOverTheNextOne(t *testing.T) {
	b := newBench(t)
	s := &supervisor{boot: "boot1", start: runs("boot1")}
	s.breaks.Store(2)
	b.serve(s)
	b.connect()
	b.create()
	resized := make(chan error, 1)
	go func() { resized <- b.runner.Resize(t.Context(), "a", "x", 50, 132) }()
	for range 2 {
		select {
		case err := <-resized:
			t.Fatalf("Resize ended with its link: %v", err)
		case <-b.lost:
			b.connect()
		}
	}
	if err := <-resized; err != nil || s.resizes.Load() != 3 {
		t.Errorf("Resize: %v after %d calls, want 3", err, s.resizes.Load())
	}
}
