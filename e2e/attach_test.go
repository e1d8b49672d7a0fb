package e2e

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/agbox/agbox/e2e/internal/harness"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

const detachKeys = "\x10\x11" // ctrl-p, ctrl-q

// says types a command that prints a word which the echo of the keys does not contain.
func (p *pty) says(command, word string) {
	p.t.Helper()
	p.types(command + "; echo " + word[:1] + "''" + word[1:] + "\n")
	p.await(word)
}

func TestAShellOnATerminalOutlivesTheDaemon(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	in.Create(t, "demo", harness.ImageBusybox)
	p := in.onTerminal(t, "exec", "-it", "demo", "sh")
	p.says("echo pid=$$; x=kept", "first")
	shell := regexp.MustCompile(`pid=(\d+)`).FindStringSubmatch(p.screen())[1]
	p.says("stty size", "second")
	p.await("24 80")
	p.resize(33, 101)
	for i := 0; !strings.Contains(p.screen(), "33 101"); i++ {
		p.says("stty size", fmt.Sprintf("sized%d.", i)) // one after the other
	}

	in.KillDaemon(t)
	// Typed while no daemon runs.
	p.types("echo while-away-$x\n")
	in.Must(t, "daemon", "start")
	p.await("while-away-kept\r\n")
	p.says("echo pid=$$.", "third")
	p.await("pid=" + shell + ".")
	for i := range 3 {
		in.KillDaemon(t)
		in.Must(t, "ls")
		p.says("true", fmt.Sprintf("again%d.", i))
	}
	in.Must(t, "daemon", "upgrade")
	p.says("true", "upgraded")
	if n := strings.Count(p.screen(), "while-away-kept\r\n"); n != 1 {
		t.Errorf("what was typed while the daemon was away came %d times", n)
	}
	p.types("exit 37\n")
	if code := p.wait(); code != 37 {
		t.Errorf("exit code %d, want 37; the screen: %q", code, harness.Clip(p.screen()))
	}
	e := in.execs(t, "-a", "demo")[0]
	if !e.GetTty() || !e.GetStdin() || e.GetExitCode() != 37 {
		t.Errorf("inspect shows %v", e)
	}
}

func TestATerminalThatTakesNothingIsRestoredOnASignal(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	in.Create(t, "demo", harness.ImageBusybox)
	p := in.onTerminal(t, "exec", "-it", "demo", "yes")
	p.await("y\r\n")
	p.hang(func() {
		if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		harness.Eventually(t, "agbox ends", func() bool {
			return errors.Is(p.cmd.Process.Signal(syscall.Signal(0)), os.ErrProcessDone)
		})
		if p.termios() != p.before {
			t.Error("the terminal was left raw")
		}
	})
	if code := p.wait(); code != 128+int(syscall.SIGTERM) {
		t.Errorf("exit code %d", code)
	}
}

// awaitNobodyTypes returns when the daemon knows that the typing client has gone. A
// client that attaches earlier only watches, and its input is discarded.
func (in *install) awaitNobodyTypes(t *testing.T, exec string) {
	t.Helper()
	api := agboxv1.NewSandboxServiceClient(in.connect(t))
	harness.Eventually(t, "nobody types", func() bool {
		return attachRaw(t, api, &agboxv1.AttachOpen{ExecId: exec}).first.GetTypist() == ""
	})
}

func TestASessionThatWasLeftGoesOnElsewhere(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	in.Create(t, "demo", harness.ImageBusybox)
	first := in.onTerminal(t, "exec", "-it", "--name", "job", "demo", "sh")
	first.says("x=kept", "ready")
	first.types(detachKeys)
	if code := first.wait(); code != 0 || !strings.Contains(first.screen(), "agbox attach ") {
		t.Errorf("leaving ended with %d: %q", code, first.screen())
	}
	in.awaitNobodyTypes(t, "job")
	second := in.onTerminal(t, "attach", "job")
	second.await("ready") // the last screenful
	second.says("echo it-was-$x.", "more")
	second.await("it-was-kept.\r\n")
	if err := second.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := second.wait(); code != 128+15 {
		t.Errorf("SIGTERM ended it with %d", code)
	}
	in.awaitNobodyTypes(t, "job")
	third := in.onTerminal(t, "attach", "job")
	third.says("true", "third")
	third.types("exit 5\n")
	if code := third.wait(); code != 5 {
		t.Errorf("exit code %d, want 5", code)
	}
}

func TestOneTypesAndTheOthersLookOn(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	in.Create(t, "demo", harness.ImageBusybox)
	typist := in.onTerminal(t, "exec", "-it", "--name", "job", "demo", "sh")
	typist.says("true", "hello")
	looker := in.onTerminal(t, "attach", "job")
	looker.await("hello")
	looker.await("You are watching; tester on pts")
	looker.types("echo never-$((1+1))\n")
	typist.says("true", "unharmed")
	looker.await("unharmed")

	taker := in.onTerminal(t, "attach", "--take-over", "job")
	taker.says("true", "taken")
	typist.await("You are watching; tester on pts")
	typist.types("echo never-$((1+1))\n")
	taker.says("true", "still")
	taker.types(detachKeys)
	taker.wait()
	// The watching client has waited longest.
	looker.await("You can type now.")
	looker.says("true", "mine")
	looker.types("exit 3\n")
	if a, b := looker.wait(), typist.wait(); a != 3 || b != 3 {
		t.Errorf("exit codes %d and %d, want 3 and 3", a, b)
	}
	for _, p := range []*pty{typist, looker, taker} {
		if strings.Contains(p.screen(), "never-2") {
			t.Errorf("somebody without the right to type has typed: %q", p.screen())
		}
	}
}

func TestWhoOnlyLooksOnCanLeave(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	in.Create(t, "demo", harness.ImageBusybox)
	job := in.Must(t, "exec", "-dit", "demo", "sh")
	looker := in.onTerminal(t, "attach", "--look-on", job)
	looker.await("nobody types")
	looker.types("\x03")
	if code := looker.wait(); code != 0 {
		t.Errorf("leaving ended with %d", code)
	}
	typist := in.onTerminal(t, "attach", job)
	typist.types("exit 0\n")
	if code := typist.wait(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

func TestAFullScreenProgramIsDrawnAgain(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	in.Create(t, "demo", harness.ImageBusybox)
	// It switches to the alternate screen and draws when its size changes.
	const program = `trap 'printf "drawn %s." "$(stty size)"' WINCH; printf '\033[?1049h\033[?25lstarted'; while read -r line; do [ "$line" = q ] && exit 4; done; while :; do sleep 0.05; read -r line && [ "$line" = q ] && exit 4; done`
	first := in.onTerminal(t, "exec", "-it", "--name", "job", "demo", "sh", "-c", program)
	first.await("started")
	first.types(detachKeys)
	first.wait()
	if !strings.Contains(first.screen(), "\x1b[?1049l") || !strings.Contains(first.screen(), "\x1b[?25h") {
		t.Errorf("our terminal was left on the program's screen: %q", first.screen())
	}
	in.awaitNobodyTypes(t, "job")
	second := in.onTerminal(t, "attach", "job")
	second.await("\x1b[?1049h")
	second.await("drawn 24 80.")
	looker := in.onTerminal(t, "attach", "--look-on", "job")
	looker.await("\x1b[?1049h\x1b[?25lstarted")
	// A client that would type only if nobody did also watches, and the program does not
	// draw for it.
	third := in.onTerminal(t, "attach", "job")
	third.await("\x1b[?1049h\x1b[?25lstarted")
	third.await("You are watching; tester on pts")
	second.types("q\n")
	if code := second.wait(); code != 4 {
		t.Errorf("exit code %d, want 4", code)
	}
	looker.wait()
	third.wait()
}

func TestATerminalIsRestoredWhateverHappens(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	in.Create(t, "demo", harness.ImageBusybox)
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP} {
		p := in.onTerminal(t, "exec", "-it", "demo", "sh")
		p.says("true", "ready")
		if err := p.cmd.Process.Signal(sig); err != nil {
			t.Fatal(err)
		}
		if code := p.wait(); code != 128+int(sig) {
			t.Errorf("%v ended it with %d", sig, code)
		}
	}
	p := in.onTerminal(t, "exec", "-it", "demo", "sh")
	p.says("true", "ready")
	_ = p.cmd.Process.Signal(syscall.SIGTSTP)
	p.stopped()
	if now := p.termios(); now != p.before {
		t.Errorf("while it is stopped the terminal is %+v, it was %+v", now, p.before)
	}
	_ = p.cmd.Process.Signal(syscall.SIGCONT)
	harness.Eventually(t, "the terminal is raw again", func() bool { return p.termios() != p.before })
	p.says("true", "back")
	p.types("exit 6\n")
	if code := p.wait(); code != 6 {
		t.Errorf("exit code %d, want 6", code)
	}
}

func TestAShellIsFoundInTheImage(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	in.Create(t, "demo", harness.ImageBusybox)
	in.Create(t, "big", harness.ImageDebian)
	for name, shell := range map[string]string{"demo": "sh", "big": "bash"} {
		p := in.onTerminal(t, "shell", name)
		p.says("cat /proc/$$/comm", "found")
		p.await(shell + "\r\n")
		p.types("exit 9\n")
		if code := p.wait(); code != 9 {
			t.Errorf("%s: exit code %d", name, code)
		}
	}
	in.Create(t, "bare", harness.ImageScratch)
	p := in.onTerminal(t, "shell", "bare")
	if code := p.wait(); code != 125 || !strings.Contains(p.screen(), "has no shell") {
		t.Errorf("without a shell: %d, %q", code, p.screen())
	}
	refused(t, in.Agbox(t, "shell", "demo"), 125, "terminal")
	refused(t, in.Agbox(t, "exec", "-it", "demo", "sh"), 125, "terminal")
}

func TestInputOverManyKillsArrivesOnce(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	in.Create(t, "demo", harness.ImageBusybox)
	in.Must(t, "ls")
	p := in.piped(t, "exec", "-i", "demo", "sh", "-c", "cat > /tmp/got; wc -l < /tmp/got; exit 21")
	var want strings.Builder
	const lines, kills = 60_000, 5
	for i := range lines {
		line := fmt.Sprintf("line %d\n", i)
		want.WriteString(line)
		p.write(line)
		if i%(lines/kills) == lines/kills/2 {
			in.KillDaemon(t)
			in.Must(t, "daemon", "start")
		}
	}
	p.end()
	p.Wait(t).Want(t, 21).WantOutput(t, fmt.Sprintf("%d\n", lines), "")
	harness.WantSame(t, "the file", in.Agbox(t, "exec", "demo", "cat", "/tmp/got").Want(t, 0).Stdout, want.String())
}

func TestStandardInputOfAllKinds(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	in.Create(t, "demo", harness.ImageBusybox)
	t.Run("nothing", func(t *testing.T) { // it is /dev/null
		in.Agbox(t, "exec", "-i", "demo", "cat").Want(t, 0).WantOutput(t, "", "")
	})
	t.Run("without -i", func(t *testing.T) {
		in.Agbox(t, "exec", "demo", "cat").Want(t, 0).WantOutput(t, "", "")
	})
	t.Run("a command that does not read", func(t *testing.T) {
		p := in.piped(t, "exec", "-i", "demo", "sh", "-c", "exec 0<&-; exit 8")
		p.Wait(t).Want(t, 8)
		p.end()
	})
	t.Run("a terminal without input", func(t *testing.T) {
		got := in.Agbox(t, "exec", "-t", "demo", "sh", "-c", "test -t 1 && echo yes").Want(t, 0)
		if got.Stdout != "yes\r\n" {
			t.Errorf("got %q", got.Stdout)
		}
	})
	t.Run("Ctrl-C is a signal", func(t *testing.T) {
		p := in.piped(t, "exec", "-i", "demo", "sh", "-c", harness.UntilSignal("INT", "echo got it; exit 5", "echo ready"))
		p.AwaitOutput(t, "ready\n")
		p.Signal(t, syscall.SIGINT)
		p.Wait(t).Want(t, 5)
		p.end()
	})
	t.Run("detached, then by attach", func(t *testing.T) {
		job := in.Must(t, "exec", "-di", "demo", "sh", "-c", "read x; echo got $x; exit 4")
		p := in.piped(t, "attach", job)
		p.write("this\n")
		p.Wait(t).Want(t, 4).WantOutput(t, "got this\n", "")
		p.end()
		if e := in.inspectExec(t, job); e.GetState() != agboxv1.ExecState_EXEC_STATE_FINISHED || e.GetTty() || !e.GetStdin() {
			t.Errorf("inspect shows %v", e)
		}
	})
}
