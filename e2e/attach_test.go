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

func TestAShellOnATerminalOutlivesTheDaemon(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	in.Create(t, "demo", harness.ImageBusybox)
	p := in.OnTerminal(t, "exec", "-it", "demo", "sh")
	p.Says("echo pid=$$; x=kept", "first")
	shell := regexp.MustCompile(`pid=(\d+)`).FindStringSubmatch(p.Screen())[1]
	p.Says("stty size", "second")
	p.Await("24 80")
	p.Resize(33, 101)
	for i := 0; !strings.Contains(p.Screen(), "33 101"); i++ {
		p.Says("stty size", fmt.Sprintf("sized%d.", i)) // one after the other
	}

	in.KillDaemon(t)
	// Typed while no daemon runs.
	p.Types("echo while-away-$x\n")
	in.Must(t, "daemon", "start")
	p.Await("while-away-kept\r\n")
	p.Says("echo pid=$$.", "third")
	p.Await("pid=" + shell + ".")
	for i := range 3 {
		in.KillDaemon(t)
		in.Must(t, "ls")
		p.Says("true", fmt.Sprintf("again%d.", i))
	}
	in.Must(t, "daemon", "upgrade")
	p.Says("true", "upgraded")
	if n := strings.Count(p.Screen(), "while-away-kept\r\n"); n != 1 {
		t.Errorf("what was typed while the daemon was away came %d times", n)
	}
	p.Types("exit 37\n")
	if code := p.Wait(); code != 37 {
		t.Errorf("exit code %d, want 37; the screen: %q", code, harness.Clip(p.Screen()))
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
	p := in.OnTerminal(t, "exec", "-it", "demo", "yes")
	p.Await("y\r\n")
	p.Hang(func() {
		if err := p.Cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		harness.Eventually(t, "agbox ends", func() bool {
			return errors.Is(p.Cmd.Process.Signal(syscall.Signal(0)), os.ErrProcessDone)
		})
		if p.State() != p.Before {
			t.Error("the terminal was left raw")
		}
	})
	if code := p.Wait(); code != 128+int(syscall.SIGTERM) {
		t.Errorf("exit code %d", code)
	}
}

// awaitNobodyTypes returns when the daemon knows that the typing client has gone. A
// client that attaches earlier only watches, and its input is discarded.
func (in *install) awaitNobodyTypes(t *testing.T, exec string) {
	t.Helper()
	api, id := agboxv1.NewSandboxServiceClient(in.connect(t)), in.inspectExec(t, exec).GetExecId()
	harness.Eventually(t, "nobody types", func() bool {
		return attachRaw(t, api, &agboxv1.AttachOpen{ExecId: id}).first.GetTypist() == ""
	})
}

func TestASessionThatWasLeftGoesOnElsewhere(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	in.Create(t, "demo", harness.ImageBusybox)
	first := in.OnTerminal(t, "exec", "-it", "--name", "job", "demo", "sh")
	first.Says("x=kept", "ready")
	first.Types(detachKeys)
	if code := first.Wait(); code != 0 || !strings.Contains(first.Screen(), "agbox attach ") {
		t.Errorf("leaving ended with %d: %q", code, first.Screen())
	}
	in.awaitNobodyTypes(t, "job")
	second := in.OnTerminal(t, "attach", "job")
	second.Await("ready") // the last screenful
	second.Says("echo it-was-$x.", "more")
	second.Await("it-was-kept.\r\n")
	if err := second.Cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := second.Wait(); code != 128+15 {
		t.Errorf("SIGTERM ended it with %d", code)
	}
	in.awaitNobodyTypes(t, "job")
	third := in.OnTerminal(t, "attach", "job")
	third.Says("true", "third")
	third.Types("exit 5\n")
	if code := third.Wait(); code != 5 {
		t.Errorf("exit code %d, want 5", code)
	}
}

func TestOneTypesAndTheOthersLookOn(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	in.Create(t, "demo", harness.ImageBusybox)
	typist := in.OnTerminal(t, "exec", "-it", "--name", "job", "demo", "sh")
	typist.Says("true", "hello")
	looker := in.OnTerminal(t, "attach", "job")
	looker.Await("hello")
	looker.Await("You are watching; tester on pts")
	looker.Types("echo never-$((1+1))\n")
	typist.Says("true", "unharmed")
	looker.Await("unharmed")

	taker := in.OnTerminal(t, "attach", "--take-over", "job")
	taker.Says("true", "taken")
	typist.Await("You are watching; tester on pts")
	typist.Types("echo never-$((1+1))\n")
	taker.Says("true", "still")
	taker.Types(detachKeys)
	taker.Wait()
	// The watching client has waited longest.
	looker.Await("You can type now.")
	looker.Says("true", "mine")
	looker.Types("exit 3\n")
	if a, b := looker.Wait(), typist.Wait(); a != 3 || b != 3 {
		t.Errorf("exit codes %d and %d, want 3 and 3", a, b)
	}
	for _, p := range []*harness.Terminal{typist, looker, taker} {
		if strings.Contains(p.Screen(), "never-2") {
			t.Errorf("somebody without the right to type has typed: %q", p.Screen())
		}
	}
}

func TestWhoOnlyLooksOnCanLeave(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	in.Create(t, "demo", harness.ImageBusybox)
	job := in.Must(t, "exec", "-dit", "demo", "sh")
	looker := in.OnTerminal(t, "attach", "--look-on", job)
	looker.Await("nobody types")
	looker.Types("\x03")
	if code := looker.Wait(); code != 0 {
		t.Errorf("leaving ended with %d", code)
	}
	typist := in.OnTerminal(t, "attach", job)
	typist.Types("exit 0\n")
	if code := typist.Wait(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

func TestAFullScreenProgramIsDrawnAgain(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	in.Create(t, "demo", harness.ImageBusybox)
	// It switches to the alternate screen and draws when its size changes.
	const program = `trap 'printf "drawn %s." "$(stty size)"' WINCH; printf '\033[?1049h\033[?25lstarted'; while read -r line; do [ "$line" = q ] && exit 4; done; while :; do sleep 0.05; read -r line && [ "$line" = q ] && exit 4; done`
	first := in.OnTerminal(t, "exec", "-it", "--name", "job", "demo", "sh", "-c", program)
	first.Await("started")
	first.Types(detachKeys)
	first.Wait()
	if !strings.Contains(first.Screen(), "\x1b[?1049l") || !strings.Contains(first.Screen(), "\x1b[?25h") {
		t.Errorf("our terminal was left on the program's screen: %q", first.Screen())
	}
	in.awaitNobodyTypes(t, "job")
	second := in.OnTerminal(t, "attach", "job")
	second.Await("\x1b[?1049h")
	second.Await("drawn 24 80.")
	looker := in.OnTerminal(t, "attach", "--look-on", "job")
	looker.Await("\x1b[?1049h\x1b[?25lstarted")
	// A client that would type only if nobody did also watches, and the program does not
	// draw for it.
	third := in.OnTerminal(t, "attach", "job")
	third.Await("\x1b[?1049h\x1b[?25lstarted")
	third.Await("You are watching; tester on pts")
	second.Types("q\n")
	if code := second.Wait(); code != 4 {
		t.Errorf("exit code %d, want 4", code)
	}
	looker.Wait()
	third.Wait()
}

// TestAProgramWithoutAScreenOfItsOwnIsDrawnAgain: many terminal UIs draw below the prompt
// and only hide the cursor.
func TestAProgramWithoutAScreenOfItsOwnIsDrawnAgain(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	in.Create(t, "demo", harness.ImageBusybox)
	const program = `trap 'printf "drawn %s." "$(stty size)"' WINCH; printf '\033[?25lstarted'; while :; do sleep 0.05; read -r line && [ "$line" = q ] && exit 4; done`
	first := in.OnTerminal(t, "exec", "-it", "--name", "job", "demo", "sh", "-c", program)
	first.Await("started")
	first.Types(detachKeys)
	first.Wait()
	if shown := first.Screen(); !strings.Contains(shown, "\r\nagbox: Detached. ") {
		t.Errorf("the message is not on a line of its own: %q", shown)
	}
	in.awaitNobodyTypes(t, "job")
	second := in.OnTerminal(t, "attach", "job")
	second.Await("drawn 24 80.")
	second.Types("q\n")
	if code := second.Wait(); code != 4 {
		t.Errorf("exit code %d, want 4", code)
	}
}

func TestATerminalIsRestoredWhateverHappens(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	in.Create(t, "demo", harness.ImageBusybox)
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP} {
		p := in.OnTerminal(t, "exec", "-it", "demo", "sh")
		p.Says("true", "ready")
		if err := p.Cmd.Process.Signal(sig); err != nil {
			t.Fatal(err)
		}
		if code := p.Wait(); code != 128+int(sig) {
			t.Errorf("%v ended it with %d", sig, code)
		}
	}
	p := in.OnTerminal(t, "exec", "-it", "demo", "sh")
	p.Says("true", "ready")
	_ = p.Cmd.Process.Signal(syscall.SIGTSTP)
	p.Stopped()
	if now := p.State(); now != p.Before {
		t.Errorf("while it is stopped the terminal is %+v, it was %+v", now, p.Before)
	}
	_ = p.Cmd.Process.Signal(syscall.SIGCONT)
	harness.Eventually(t, "the terminal is raw again", func() bool { return p.State() != p.Before })
	p.Says("true", "back")
	p.Types("exit 6\n")
	if code := p.Wait(); code != 6 {
		t.Errorf("exit code %d, want 6", code)
	}
}

func TestAShellIsFoundInTheImage(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	in.Create(t, "demo", harness.ImageBusybox)
	in.Create(t, "big", harness.ImageDebian)
	for name, shell := range map[string]string{"demo": "sh", "big": "bash"} {
		p := in.OnTerminal(t, "shell", name)
		p.Says("cat /proc/$$/comm", "found")
		p.Await(shell + "\r\n")
		p.Types("exit 9\n")
		if code := p.Wait(); code != 9 {
			t.Errorf("%s: exit code %d", name, code)
		}
	}
	in.Create(t, "bare", harness.ImageScratch)
	p := in.OnTerminal(t, "shell", "bare")
	if code := p.Wait(); code != 125 || !strings.Contains(p.Screen(), "has no shell") {
		t.Errorf("without a shell: %d, %q", code, p.Screen())
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

// TestHistoryThatIsShownAgainAsksTheTerminalNothing: the answer would be typed into the shell.
func TestHistoryThatIsShownAgainAsksTheTerminalNothing(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	in.Create(t, "demo", harness.ImageBusybox)
	const query, answer = "\x1b[c", "\x1b[?1;2c"
	ask := func(name, first, rest string) string {
		return fmt.Sprintf("stty -echo -icanon; printf '%s'; %s a=$(dd bs=1 count=%d 2>/dev/null); stty sane; echo %s-${#a}.\n", first, rest, len(answer), name)
	}
	onTerminal := func(args ...string) *harness.Terminal {
		p := in.OnTerminal(t, args...)
		p.Answers(query, answer)
		return p
	}
	first := onTerminal("exec", "-it", "--name", "job", "demo", "sh")
	first.Says("true", "ready")
	first.Types(ask("first", `\033[c`, ""))
	first.Await("first-7.")
	first.Types(detachKeys)
	first.Wait()
	in.awaitNobodyTypes(t, "job")
	id := in.inspectExec(t, "job").GetExecId()

	second := onTerminal("attach", "--tail", "all", "job")
	second.Await("first-7.")
	second.Says("true", "clean")
	if screen := second.Screen(); strings.Contains(screen, query) || strings.Contains(screen, "1;2c") {
		t.Errorf("the history asks the terminal, or the answer was typed: %q", screen)
	}
	// What is asked now is answered, also if it was cut by an outage.
	second.Types(ask("second", `\033[c`, ""))
	second.Await("second-7.")
	second.Types(ask("third", `half\033`, `dd bs=1 count=1 2>/dev/null >&2; printf '[c';`))
	second.Await("half\x1b")
	in.KillDaemon(t)
	in.Must(t, "daemon", "start")
	second.Types("y")
	second.Await("third-7.")
	second.Types("exit 5\n")
	if code := second.Wait(); code != 5 {
		t.Errorf("exit code %d, want 5", code)
	}
	third := onTerminal("attach", "--tail", "all", id)
	if code := third.Wait(); code != 5 || strings.Contains(third.Screen(), query) || !strings.Contains(third.Screen(), "third-7.") {
		t.Errorf("after its end it ended with %d and showed %q", code, third.Screen())
	}
	read := onTerminal("logs", id)
	if code := read.Wait(); code != 0 || strings.Contains(read.Screen(), query) || !strings.Contains(read.Screen(), "third-7.") {
		t.Errorf("logs ended with %d and showed %q", code, read.Screen())
	}
	if got := in.Agbox(t, "attach", "--tail", "all", id).Stdout; strings.Count(got, query) != 3 {
		t.Errorf("a file gets %q", got)
	}
}
