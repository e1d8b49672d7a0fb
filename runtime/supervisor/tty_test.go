package supervisor_test

import (
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/containerd/errdefs"

	guestv1 "github.com/agbox/agbox/proto/guest/v1"
)

// onTerminal makes a request run on a terminal.
func onTerminal(req *guestv1.StartRequest) *guestv1.StartRequest {
	req.Tty = true
	return req
}

func TestATerminalIsTheControllingOneAndHasASize(t *testing.T) {
	b := newBox(t)
	req := onTerminal(sh("e", `test -t 0 && test -t 1 && test -t 2 && echo three; stty size; echo $TERM; tty < /dev/tty; readlink /proc/$$/fd/2 >&2`))
	req.Rows, req.Columns = 33, 101
	r := b.run(req)
	got := b.stdout("e")
	if r.GetExitCode() != 0 || !strings.HasPrefix(got, "three\r\n33 101\r\nxterm\r\n") {
		t.Errorf("%v wrote %q", r, got)
	}
	if !strings.Contains(got, "pts/") || r.GetStderrBytes() != 0 {
		t.Errorf("the terminal has no name, or stderr is apart: %q, %d bytes", got, r.GetStderrBytes())
	}
	standard := onTerminal(sh("standard", "stty size; echo $TERM"))
	standard.Env = []string{"TERM=vt100"}
	b.run(standard)
	if got := b.stdout("standard"); got != "24 80\r\nvt100\r\n" {
		t.Errorf("without a size and with TERM: %q", got)
	}
}

func TestATerminalBelongsToTheUserOfTheExec(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can run a command as somebody else")
	}
	b := newBox(t)
	req := onTerminal(request("e", "sh", "-c", `echo opened > $(tty) && stat -c %u $(tty)`))
	req.User, req.Cwd = "worker", "/"
	if r := b.run(req); r.GetExitCode() != 0 || b.stdout("e") != "opened\r\n4711\r\n" {
		t.Errorf("%v wrote %q", r, b.stdout("e"))
	}
}

func TestWhatATerminalHoldsAtTheExitIsInTheLog(t *testing.T) {
	b := newBox(t)
	records := b.ends()
	c := b.dial()
	for range 20 {
		id := "e" + b.unique()
		b.start(c, onTerminal(sh(id, "seq 1 3000; printf end")))
		r := next(t, records)
		if got := b.stdout(id); !strings.HasSuffix(got, "3000\r\nend") || uint64(len(got)) != r.GetStdoutBytes() {
			t.Fatalf("the log ends with %q; %v", got[max(0, len(got)-20):], r)
		}
	}
}

// Scripts redirect their outputs and open the terminal by its name.
func TestATerminalThatNobodyHasOpenForAMomentGoesOn(t *testing.T) {
	b := newBox(t)
	r := b.run(onTerminal(sh("e", `exec <&- >&- 2>&-; for i in 1 2 3; do sleep 0.05; echo $i > /dev/tty; done; exit 4`)))
	if got := b.stdout("e"); got != "1\r\n2\r\n3\r\n" || r.GetExitCode() != 4 {
		t.Errorf("%v wrote %q", r, got)
	}
}

func TestAChildThatKeepsTheTerminalDoesNotHoldUpTheExit(t *testing.T) {
	b := newBox(t)
	pids := b.fifo("pids")
	r := b.run(onTerminal(sh("e", `echo before; trap "" HUP; sleep 1000 & echo $! > `+pids.Name()+`; exit 3`)))
	killAtEnd(t, number(t, pids))
	if r.GetExitCode() != 3 || b.stdout("e") != "before\r\n" {
		t.Errorf("%v wrote %q", r, b.stdout("e"))
	}
	b.stop()
}

func TestAResizeIsSeenAndSignalled(t *testing.T) {
	b := newBox(t)
	c := b.dial()
	ready := b.fifo("ready")
	b.start(c, onTerminal(sh("e", `trap "stty size; exit 0" WINCH; echo > `+ready.Name()+`; while :; do sleep 0.01; done`)))
	word(t, ready)
	if running, err := c.Resize(t.Context(), "e", 50, 132); err != nil || !running {
		t.Fatal(running, err)
	}
	b.end("e")
	if got := b.stdout("e"); got != "50 132\r\n" {
		t.Errorf("the process saw %q", got)
	}
	if running, err := c.Resize(t.Context(), "e", 50, 132); err != nil || running {
		t.Errorf("after the end: %v, %v", running, err)
	}
}

func TestAResizeThatCannotBeIsRefused(t *testing.T) {
	b := newBox(t)
	c := b.dial()
	b.start(c, request("e", "sleep", "1000"))
	if _, err := c.Resize(t.Context(), "e", 24, 80); !errdefs.IsInvalidArgument(err) {
		t.Errorf("of an exec without a terminal: %v", err)
	}
	for _, size := range [][2]uint32{{0, 80}, {24, 0}, {65536, 80}} {
		if _, err := c.Resize(t.Context(), "e", size[0], size[1]); !errdefs.IsInvalidArgument(err) {
			t.Errorf("to %v: %v", size, err)
		}
	}
	if running, err := c.Resize(t.Context(), "unknown", 24, 80); err != nil || running {
		t.Errorf("of an unknown exec: %v, %v", running, err)
	}
}

// The shell reads a line, an interrupt key and the end of file as on any terminal, and
// echoes the input.
func TestTypingReachesTheProcess(t *testing.T) {
	b := newBox(t)
	c := b.dial()
	ready := b.fifo("ready")
	b.start(c, onTerminal(sh("e", `trap "i=1" INT; read x; echo "got $x"; echo > `+ready.Name()+`; while [ -z "$i" ]; do sleep 0.01; done; echo > `+ready.Name()+`; cat; echo ended; exec cat`)))
	at := b.typed(c, "e", 0, "hello\n", false)
	word(t, ready)
	// The key discards input that the process has not read yet.
	eventually(t, "the answer is in the log", func() bool { return strings.Contains(b.stdout("e"), "got hello") })
	at = b.typed(c, "e", at, "\x03", false)
	word(t, ready)
	at = b.typed(c, "e", at, "", true)
	eventually(t, "cat ends at the typed end of file", func() bool { return strings.Contains(b.stdout("e"), "ended") })
	b.typed(c, "e", at, "", true) // repeating the same end has no effect
	if running, err := c.Signal(t.Context(), "e", int32(syscall.SIGKILL)); err != nil || !running {
		t.Fatalf("the last cat ended: %v, %v", running, err)
	}
	b.end("e")
	if got := b.stdout("e"); !strings.HasPrefix(got, "hello\r\ngot hello\r\n") {
		t.Errorf("the terminal showed %q", got)
	}
}

func TestCancelEndsAShellOnATerminalThatIgnoresSIGTERM(t *testing.T) {
	b := newBox(t)
	c := b.dial()
	pids := b.fifo("pids")
	b.start(c, onTerminal(sh("e", `trap "" TERM HUP; (setsid sh -c 'trap "" TERM HUP; echo $$ > `+pids.Name()+`; while :; do sleep 1; done' &); read x`)))
	pid := number(t, pids)
	if running, err := c.Cancel(t.Context(), "e", 0); err != nil || !running {
		t.Fatal(running, err)
	}
	if r := b.end("e"); r.GetEndCause() != guestv1.EndCause_END_CAUSE_REQUEST || r.GetSignal() != int32(syscall.SIGKILL) {
		t.Error(r)
	}
	eventually(t, "the daemonized process was killed", func() bool { return !alive(pid) })
}
