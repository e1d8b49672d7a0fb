package main

import (
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/agbox/agbox/client"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

func TestDetachKeysAreFoundHoweverTheyCome(t *testing.T) {
	keys, err := parseDetachKeys(defaultDetachKeys)
	if err != nil || string(keys) != "\x10\x11" {
		t.Fatalf("got %q, %v", keys, err)
	}
	for _, c := range []struct {
		name   string
		typed  []string
		out    string
		detach bool
	}{
		{"alone", []string{"\x10\x11"}, "", true},
		{"in two pieces", []string{"ls\n\x10", "\x11"}, "ls\n", true},
		{"only the first", []string{"\x10", "\x10", "a"}, "\x10\x10a", false},
		{"the first twice", []string{"\x10\x10\x11"}, "\x10", true},
		{"the second alone", []string{"\x11"}, "\x11", false},
	} {
		f := detachFilter{keys: keys}
		var out strings.Builder
		detach := false
		for _, piece := range c.typed {
			got, found := f.take([]byte(piece))
			out.Write(got)
			detach = detach || found
		}
		if out.String() != c.out || detach != c.detach {
			t.Errorf("%s: %q, %v", c.name, out.String(), detach)
		}
	}
	for text, want := range map[string]string{"": "", "ctrl-]": "\x1d", "ctrl-@,x": "\x00x", "CTRL-A": "\x01"} {
		if got, err := parseDetachKeys(text); err != nil || string(got) != want {
			t.Errorf("%q: %q, %v", text, got, err)
		}
	}
	for _, text := range []string{"ctrl-", "ctrl-1", "alt-x", "a,,b", "é"} {
		if _, err := parseDetachKeys(text); err == nil {
			t.Errorf("%q is taken", text)
		}
	}
	if got, detach := (&detachFilter{}).take([]byte("\x10\x11")); detach || string(got) != "\x10\x11" {
		t.Errorf("without keys: %q, %v", got, detach)
	}
}

func TestTheModesOfATerminalAreFollowedAndUndone(t *testing.T) {
	for _, c := range []struct {
		name, output, undo, again string
		alternate                 bool
		entered                   uint64
	}{
		{name: "plain text", output: "hello\x1b[31mred\x1b[0m\r\n"},
		{name: "an editor", output: "abc\x1b[?1049h\x1b[?25l", undo: "\x1b[?25h\x1b[?1049l\x1b[0m", again: "\x1b[?25l\x1b[?1049h", alternate: true, entered: 3},
		{name: "an editor that has ended", output: "\x1b[?1049h\x1b[?25l\x1b[?25h\x1b[?1049l"},
		{name: "several at once", output: "\x1b[?1000;1006;2004h", undo: "\x1b[?1000l\x1b[?1006l\x1b[?2004l\x1b[0m", again: "\x1b[?1000h\x1b[?1006h\x1b[?2004h"},
		{name: "the keypad", output: "\x1b=", undo: "\x1b>\x1b[0m", again: "\x1b="},
		{name: "a reset", output: "\x1b[?1049h\x1b=\x1bc"},
		{name: "what is not known", output: "\x1b[?9999h\x1b[?h\x1b[?1049$p\x1b[1049h" + "\x1b[?" + strings.Repeat("1", 1000) + "h"},
		{name: "a sequence that another one breaks off", output: "\x1b[?104\x1b[?1047h", undo: "\x1b[?1047l\x1b[0m", again: "\x1b[?1047h", alternate: true, entered: 6},
	} {
		for _, piece := range []int{1, 2, 3, len(c.output)} {
			var s screen
			for rest := c.output; rest != ""; {
				n := min(piece, len(rest))
				_, _ = s.Write([]byte(rest[:n]))
				rest = rest[n:]
			}
			if s.undo() != c.undo || s.again() != c.again || s.alternate() != c.alternate || c.alternate && s.entered != c.entered {
				t.Errorf("%s in pieces of %d: undo %q, again %q, alternate %v since %d", c.name, piece, s.undo(), s.again(), s.alternate(), s.entered)
			}
		}
	}
}

func TestAMessageBeginsOnALineOfItsOwn(t *testing.T) {
	for output, want := range map[string]bool{
		"": false, "/ # ": true, "line\r\n": false, "line\r\n\x1b[31m": false, "50 %\r": true, "\a": false,
		"$ vi\r\n\x1b[?1049htext": false, "$ \x1b[?1049htext\r\n": true, "\x1b[?1049htext\x1b[?1049l": false,
	} {
		var s screen
		_, _ = s.Write([]byte(output))
		if got := s.endLine(); got != want || s.endLine() {
			t.Errorf("after %q: %v", output, got)
		}
	}
}

func TestProgramsThatDrawAreKnownByTheirModes(t *testing.T) {
	for output, want := range map[string]bool{
		"\x1b[?2004h$": false, "\x1b[?1h\x1b=": false, "\x1b[?25l": true, "\x1b[?25l\x1b[?25h": false, "\x1b[?1006h": true, "\x1b[?1049h": true,
	} {
		var s screen
		_, _ = s.Write([]byte(output))
		if got := s.draws(); got != want {
			t.Errorf("after %q: %v", output, got)
		}
	}
}

func TestWhoTypesReadsLikeAName(t *testing.T) {
	for writer, want := range map[string]string{"tester_pts3-abc": "tester on pts3", "abc": "another program", "": "another program"} {
		if got := typistName(writer); got != want {
			t.Errorf("%q reads %q", writer, got)
		}
	}
}

func TestATerminalIsAsItWasWhenAnAttachmentFails(t *testing.T) {
	for name, signal := range map[string]syscall.Signal{
		"because the command was forgotten": 0, "because a signal comes while it is made": syscall.SIGTERM,
	} {
		t.Run(name, func(t *testing.T) {
			d, socket := serveScripted(t)
			agbox(t, socket, "create", "demo", "--image", "good")
			agbox(t, socket, "exec", "-d", "demo", "edit")
			exec := d.execs[0].GetExecId()
			var calls atomic.Int32
			d.attached = func(stream grpc.BidiStreamingServer[agboxv1.AttachExecRequest, agboxv1.AttachExecResponse]) error {
				switch {
				case calls.Add(1) == 1: // the read of its current screen
					_ = stream.Send(&agboxv1.AttachExecResponse{Item: &agboxv1.AttachExecResponse_Attached{
						Attached: &agboxv1.Attached{Exec: &agboxv1.ExecStatus{ExecId: exec}, Cursor: &agboxv1.LogCursor{}},
					}})
				case signal == 0:
					return reject(codes.NotFound, agboxv1.ErrorReason_EXEC_NOT_FOUND, "It was forgotten.")
				}
				<-stream.Context().Done()
				return nil
			}
			c := newCLI(t, socket)
			c.out.wrote = sync.OnceFunc(func() {
				if signal != 0 {
					c.signals <- signal
				}
			})
			api, err := c.client()
			if err != nil {
				t.Fatal(err)
			}
			defer api.Close()
			f := &console{app: c.app, client: api, terminal: &terminal{fd: -1}}
			err = f.run(t.Context(), client.AttachOptions{Exec: exec, TailLines: new(uint64), Input: agboxv1.InputMode_INPUT_MODE_IF_FREE})
			want := client.ErrNotFound
			if signal != 0 {
				want = exitStatus(codeSignal + int(signal))
			}
			if !errors.Is(err, want) {
				t.Errorf("it ended with %v, want %v", err, want)
			}
			var left screen
			_, _ = left.Write([]byte(c.out.String()))
			if begun := strings.HasPrefix(c.out.String(), "\x1b[?25l\x1b[?1000h\x1b[?1049h"); !begun || left.undo() != "" {
				t.Errorf("the terminal got %q", c.out.String())
			}
		})
	}
}
