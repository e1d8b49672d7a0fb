package e2e

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/agbox/agbox/e2e/internal/harness"
)

func TestAShellTellsOfACrashedDaemonAndStartsIt(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	in.Create(t, "demo", harness.ImageBusybox)
	p := in.OnTerminal(t, "shell", "demo")
	p.Says("x=kept", "ready")
	in.KillDaemon(t)
	p.Types("echo away-$x\n")
	p.Await("agbox: The daemon is gone. Starting it. What you type is kept.\r\n")
	p.Await("agbox: The daemon is back.\r\n")
	p.Await("away-kept\r\n")
	p.Says("true", "after")
	shown := p.Screen()
	if n := strings.Count(shown, "away-kept\r\n"); n != 1 {
		t.Errorf("what was typed in the outage came %d times", n)
	}
	if _, after, _ := strings.Cut(shown, "is back.\r\n"); !regexp.MustCompile(`^[^\n]*# `).MatchString(after) {
		t.Errorf("the prompt is not shown again: %q", harness.Clip(after))
	}
	p.Types("exit 3\n")
	if code := p.Wait(); code != 3 {
		t.Errorf("exit code %d", code)
	}
}

// TestLeavingInAnOutageTellsOfTheKeys: the daemon was stopped on purpose, so nobody starts it.
func TestLeavingInAnOutageTellsOfTheKeys(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	in.Create(t, "demo", harness.ImageBusybox)
	few, many, killed := in.OnTerminal(t, "shell", "demo"), in.OnTerminal(t, "shell", "demo"), in.OnTerminal(t, "shell", "demo")
	all := []*harness.Terminal{few, many, killed}
	for _, p := range all {
		p.Says("true", "ready")
	}
	in.Must(t, "daemon", "stop")
	for _, p := range all {
		p.Await("agbox: The daemon has stopped. Waiting ")
	}
	paste := strings.Repeat("x", 70_000)
	few.Types("abc" + detachKeys)
	many.Types(paste + detachKeys)
	killed.Types(paste)
	killed.Await("\a") // more than is kept
	if err := killed.Cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	for i, want := range []struct {
		code int
		said string
	}{
		{0, `agbox: 3 typed bytes were not delivered\.`},
		{0, `agbox: 70000 typed bytes were not delivered\.`},
		{128 + 15, `agbox: \d{5} typed bytes were not delivered\.`},
	} {
		if code := all[i].Wait(); code != want.code || !regexp.MustCompile(want.said).MatchString(all[i].Screen()) {
			t.Errorf("terminal %d: exit code %d, and it shows %q", i, code, harness.Clip(all[i].Screen()))
		}
	}
	for pid, command := range in.Processes() {
		if strings.Contains(command, "agboxd") {
			t.Errorf("a daemon that was stopped runs again: %d %s", pid, command)
		}
	}
}

func TestKeysForACommandThatEndsInAnOutageAreToldOf(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	box := in.Create(t, "demo", harness.ImageBusybox)
	p := in.OnTerminal(t, "exec", "-it", "--name", "job", "demo", "sh", "-c", gated+"exit 4")
	p.Await("before\r\n")
	job := in.inspectExec(t, "job").GetExecId()
	in.Must(t, "daemon", "stop")
	p.Await("agbox: The daemon has stopped. Waiting ")
	p.Types(strings.Repeat("x", 70_000))
	p.Await("\a")
	gate := gateOf(in, box)
	openGate(t, gate)
	harness.Eventually(t, "the supervisor writes the status", func() bool { return harness.LeftStatus(t, filepath.Dir(gate), job) })
	in.Must(t, "daemon", "start")
	p.Await("agbox: The daemon is back. More was typed than is kept: ")
	if code := p.Wait(); code != 4 || !strings.Contains(p.Screen(), "agbox: 65536 typed bytes were not delivered.") {
		t.Errorf("exit code %d; the screen: %q", code, harness.Clip(p.Screen()))
	}
}

// TestAFullScreenProgramIsNotDisturbedByAnOutage: the notice is on the last row, and the
// program draws again after it.
func TestAFullScreenProgramIsNotDisturbedByAnOutage(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	in.Create(t, "demo", harness.ImageBusybox)
	const program = `trap 'printf "drawn %s." "$(stty size)"' WINCH; printf '\033[?1049h\033[?25lstarted'; while :; do sleep 0.05; read -r line && [ "$line" = q ] && exit 4; done`
	p := in.OnTerminal(t, "exec", "-it", "demo", "sh", "-c", program)
	p.Await("started")
	in.Must(t, "daemon", "stop")
	p.Await("\x1b7\x1b[?6l\x1b[24;1H\x1b[0m\x1b[7m\x1b(Bagbox: The daemon has stopped.")
	in.Must(t, "daemon", "start")
	p.Await("\x1b7\x1b[?6l\x1b[24;1H\x1b[0m\x1b[2K\x1b8")
	p.Await("drawn 24 80.")
	p.Types("q\n")
	if code := p.Wait(); code != 4 {
		t.Errorf("exit code %d", code)
	}
}

func TestLogsOnATerminalTellOfACrashedDaemonAndStartIt(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	box := in.Create(t, "demo", harness.ImageBusybox)
	job := in.Must(t, "exec", "-d", "demo", "--", "sh", "-c", "printf unfinished; "+gated+"exit 3")
	p := in.OnTerminal(t, "logs", "-f", job)
	p.Await("unfinishedbefore\r\n")
	in.KillDaemon(t)
	p.Await("agbox: The daemon is gone. Starting it.\r\n")
	p.Await("agbox: The daemon is back.\r\n")
	openGate(t, gateOf(in, box))
	if code := p.Wait(); code != 0 || strings.Count(p.Screen(), "before") != 1 || !strings.Contains(p.Screen(), "after\r\n") {
		t.Errorf("exit code %d; the screen: %q", code, harness.Clip(p.Screen()))
	}
}

func TestFollowersInScriptsStartACrashedDaemonOnceAndSayNothing(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	box := in.Create(t, "demo", harness.ImageBusybox)
	job := in.Must(t, "exec", "-d", "demo", "--", "sh", "-c", gated+"exit 3")
	var followers []*harness.Process
	for range 6 {
		p := in.Start(t, "logs", "-f", job)
		p.AwaitOutput(t, "before\n")
		followers = append(followers, p)
	}
	in.KillDaemon(t)
	openGate(t, gateOf(in, box))
	for _, p := range followers {
		p.Wait(t).Want(t, 0).WantOutput(t, "before\nafter\n", "")
	}
	log, err := os.ReadFile(filepath.Join(in.Home, "data", "agboxd.log"))
	if err != nil {
		t.Fatal(err)
	}
	// A daemon that finds another one says so and ends.
	if n := strings.Count(string(log), "agboxd is ready"); n != 2 || strings.Contains(string(log), "agboxd: ") {
		t.Errorf("%d daemons were started, want the first and one after the crash:\n%s", n, log)
	}
}
