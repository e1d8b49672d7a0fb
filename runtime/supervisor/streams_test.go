package supervisor_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	guestv1 "github.com/agbox/agbox/proto/guest/v1"
	"github.com/agbox/agbox/runtime/guest"
	"github.com/agbox/agbox/runtime/guest/rpc"
)

// piped keeps the standard input of a request open.
func piped(req *guestv1.StartRequest) *guestv1.StartRequest {
	req.Stdin = true
	return req
}

// unique returns a number that this box has not returned before.
func (b *box) unique() string { b.uniques++; return fmt.Sprint(b.uniques) }

// typed writes as writer "w" and returns the count, which must be the end of text.
func (b *box) typed(c *guest.Conn, id string, offset uint64, text string, eof bool) uint64 {
	b.t.Helper()
	n, open, err := c.WriteStdin(b.t.Context(), id, "w", offset, []byte(text), eof)
	if err != nil || n != offset+uint64(len(text)) {
		b.t.Fatalf("typing %q: %d bytes, open %v, %v", text, n, open, err)
	}
	return n
}

func TestInputArrivesOnceWhateverIsSentAgain(t *testing.T) {
	b := newBox(t)
	c := b.dial()
	b.start(c, piped(request("e", "cat")))
	for _, step := range []struct {
		offset uint64
		data   string
		want   uint64
	}{
		{0, "abc", 3}, {0, "abc", 3}, {1, "bcdef", 6}, {6, "", 6}, {0, "", 6}, {6, "ghi", 9}, {2, "c", 9},
	} {
		n, open, err := c.WriteStdin(t.Context(), "e", "w", step.offset, []byte(step.data), false)
		if err != nil || n != step.want || !open {
			t.Errorf("%+v: %d, open %v, %v", step, n, open, err)
		}
	}
	if _, _, err := c.WriteStdin(t.Context(), "e", "w", 10, []byte("gap"), false); !errdefs.IsInvalidArgument(err) {
		t.Errorf("a gap: %v", err)
	}
	if n, open, err := c.WriteStdin(t.Context(), "e", "other", 0, []byte("-other"), true); err != nil || n != 6 || open {
		t.Errorf("the end: %d, open %v, %v", n, open, err)
	}
	if r := b.end("e"); r.GetExitCode() != 0 || b.stdout("e") != "abcdefghi-other" {
		t.Errorf("%v read %q", r, b.stdout("e"))
	}
	if n, open, err := c.WriteStdin(t.Context(), "e", "w", 9, []byte("late"), false); err != nil || n != 9 || open {
		t.Errorf("after the end: %d, open %v, %v", n, open, err)
	}
}

func TestWithoutStdinTheProcessReadsAnEndOfFile(t *testing.T) {
	b := newBox(t)
	c := b.dial()
	b.start(c, sh("e", "cat; exec sleep 1000"))
	for _, id := range []string{"e", "unknown"} {
		if n, open, err := c.WriteStdin(t.Context(), id, "w", 0, []byte("x"), false); err != nil || n != 0 || open {
			t.Errorf("%s: %d, open %v, %v", id, n, open, err)
		}
	}
}

func TestBadInputIsRefused(t *testing.T) {
	b := newBox(t)
	c := b.dial()
	b.start(c, piped(request("e", "cat")))
	for _, writer := range []string{"", strings.Repeat("w", rpc.MaxWriter+1)} {
		if _, _, err := c.WriteStdin(t.Context(), "e", writer, 0, []byte("x"), false); !errdefs.IsInvalidArgument(err) {
			t.Errorf("writer %q: %v", writer, err)
		}
	}
}

// What a call wrote before it was cancelled counts. The next call continues after what
// the supervisor still had to write.
func TestAnAbandonedCallLosesAndDoublesNothing(t *testing.T) {
	b := newBox(t)
	c := b.dial()
	gate := b.fifo("gate")
	b.start(c, piped(sh("e", "read x < "+gate.Name()+"; exec sha256sum")))
	data := make([]byte, 3<<20)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(data)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, _, err := c.WriteStdin(ctx, "e", "w", 0, data, false); err == nil {
		t.Fatal("three MiB went into a pipe that nobody read")
	}
	count, open, err := c.WriteStdin(t.Context(), "e", "w", 0, nil, false)
	if err != nil || !open || count >= uint64(len(data)) {
		t.Fatalf("the count is %d, open %v, %v", count, open, err)
	}
	// A restarted daemon has another connection and sends from the last count that it
	// knew.
	again := b.dial()
	var calls sync.WaitGroup
	calls.Go(func() {
		if n, _, err := again.WriteStdin(t.Context(), "e", "w", count/2, data[count/2:], true); err != nil || n != uint64(len(data)) {
			t.Errorf("going on: %d, %v", n, err)
		}
	})
	_, err = gate.WriteString("go\n")
	b.must(err)
	calls.Wait()
	b.end("e")
	if got, want := b.stdout("e"), fmt.Sprintf("%x  -\n", sha256.Sum256(data)); got != want {
		t.Errorf("the process read %s, not %s", got, want)
	}
}

func TestWritersAtOnceDoNotMixTheirCalls(t *testing.T) {
	const writers, calls = 8, 50
	b := newBox(t)
	c := b.dial()
	b.start(c, piped(request("e", "cat")))
	var all sync.WaitGroup
	for w := range writers {
		all.Go(func() {
			name, at := fmt.Sprint("w", w), uint64(0)
			line := bytes.Repeat([]byte{byte('a' + w)}, 9999)
			line = append(line, '\n')
			for range calls {
				n, _, err := c.WriteStdin(t.Context(), "e", name, at, line, false)
				if err != nil || n != at+uint64(len(line)) {
					t.Errorf("%s at %d: %d, %v", name, at, n, err)
					return
				}
				at = n
			}
		})
	}
	all.Wait()
	b.typed(c, "e", 0, "", true)
	b.end("e")
	lines := 0
	for line := range strings.Lines(b.stdout("e")) {
		lines++
		if strings.Trim(line, line[:1]) != "\n" || len(line) != 10000 {
			t.Fatalf("a line of %d bytes is mixed", len(line))
		}
	}
	if lines != writers*calls {
		t.Errorf("%d lines arrived", lines)
	}
}

func TestAReaderThatIsGoneIsTold(t *testing.T) {
	b := newBox(t)
	c := b.dial()
	ready := b.fifo("ready")
	b.start(c, piped(sh("e", "exec <&-; echo > "+ready.Name()+"; exec sleep 1000")))
	word(t, ready)
	if _, open, err := c.WriteStdin(t.Context(), "e", "w", 0, nil, false); err != nil || open {
		t.Errorf("asked: open %v, %v", open, err)
	}
	if n, open, err := c.WriteStdin(t.Context(), "e", "w", 0, []byte("x"), false); err != nil || open || n != 0 {
		t.Errorf("written: %d, open %v, %v", n, open, err)
	}
	// A reader that exits while a call waits for it.
	b.start(c, piped(request("f", "head", "-c", "1")))
	if n, open, err := c.WriteStdin(t.Context(), "f", "w", 0, make([]byte, 5<<20), false); err != nil || open || n == 0 || n == 5<<20 {
		t.Errorf("the one that went away: %d, open %v, %v", n, open, err)
	}
}

func TestInputThatNobodyReadsKeepsNeitherExitNorStopWaiting(t *testing.T) {
	b := newBox(t)
	c := b.dial()
	gate, pids := b.fifo("gate"), b.fifo("pids")
	// The child holds the pipe open and reads nothing.
	b.start(c, piped(sh("e", "exec 3<&0; sleep 1000 & echo $! > "+pids.Name()+"; read x < "+gate.Name()+"; exit 5")))
	killAtEnd(t, number(t, pids))
	var calls sync.WaitGroup
	for i := range 2 * 64 {
		calls.Go(func() {
			if _, open, err := c.WriteStdin(t.Context(), "e", fmt.Sprint("w", i), 0, make([]byte, rpc.MaxStdin), false); err != nil || open {
				t.Errorf("a call that waited: open %v, %v", open, err)
			}
		})
	}
	// Typed input is accepted although all other input is stuck.
	b.start(c, piped(request("f", "cat")))
	b.typed(c, "f", 0, "still there", true)
	b.end("f")
	_, err := gate.WriteString("go\n")
	b.must(err)
	if r := b.end("e"); r.GetExitCode() != 5 {
		t.Error(r)
	}
	calls.Wait()
	b.start(c, piped(request("g", "sleep", "1000")))
	calls.Go(func() { _, _, _ = c.WriteStdin(t.Context(), "g", "w", 0, make([]byte, 8<<20), false) })
	b.stop()
	calls.Wait()
}

// BenchmarkStdin measures the throughput of input through the connection into a process.
func BenchmarkStdin(b *testing.B) {
	for _, size := range []int{256 << 10, 1 << 20} {
		b.Run(fmt.Sprint(size>>10, "KiB"), func(b *testing.B) {
			box := newBox(b)
			c := box.dial()
			box.start(c, piped(request("e", "dd", "of=/dev/null", "bs=1M")))
			data, at := make([]byte, size), uint64(0)
			b.SetBytes(int64(size))
			for b.Loop() {
				n, _, err := c.WriteStdin(b.Context(), "e", "w", at, data, false)
				if err != nil || n != at+uint64(size) {
					b.Fatal(n, err)
				}
				at = n
			}
			b.StopTimer()
			for line := range strings.Lines(mustRead(b, fmt.Sprintf("/proc/%d/status", box.cmd.Process.Pid))) {
				if strings.HasPrefix(line, "VmHWM") {
					b.Log(line)
				}
			}
		})
	}
}
