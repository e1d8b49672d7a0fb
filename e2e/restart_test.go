package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/agbox/agbox/e2e/internal/harness"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// lineCount is how many lines the writer writes to stdout.
const lineCount = 100_000

// writer writes numbered lines to both outputs and ends with exit code 37. It pauses
// often enough to take at least a second on any machine. Before the last lines it waits
// for its gate.
const writer = `i=1
while [ $i -le 100000 ]; do
	echo "out $i"
	if [ $((i % 100)) = 0 ]; then echo "err $i" >&2; fi
	if [ $((i % 2000)) = 0 ]; then usleep 20000; fi
	if [ $i = 95000 ]; then while [ ! -e /var/log/agents-sandbox/gate ]; do usleep 10000; done; fi
	i=$((i+1))
done
exit 37`

// written returns what the writer writes.
func written() (stdout, stderr string) {
	var out, err strings.Builder
	for i := 1; i <= lineCount; i++ {
		fmt.Fprintf(&out, "out %d\n", i)
		if i%100 == 0 {
			fmt.Fprintf(&err, "err %d\n", i)
		}
	}
	return out.String(), err.String()
}

func TestEveryLineArrivesOnceThoughTheDaemonIsKilled(t *testing.T) {
	for _, c := range []struct {
		name string
		// kills are the numbers of the lines at which the daemon is killed.
		kills []int
	}{
		{"once", []int{50_000}},
		{"several times", []int{10_000, 30_000, 50_000, 70_000, 90_000}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			in := newInstall(t)
			box := in.Create(t, "demo", harness.ImageBusybox)
			attached := in.Start(t, "exec", "demo", "--", "sh", "-c", writer)
			attached.AwaitOutput(t, "out 1\n")
			job := in.execs(t)[0].GetExecId()
			follower := in.Start(t, "logs", "-f", job)
			for i, line := range c.kills {
				follower.AwaitOutput(t, fmt.Sprintf("out %d\n", line))
				in.KillDaemon(t)
				if i == len(c.kills)-1 {
					openGate(t, gateOf(in, box))
				}
				// Started by a command for that purpose, or by any other command.
				if i%2 == 0 {
					in.Must(t, "daemon", "start")
				} else {
					in.Must(t, "ls")
				}
			}
			stdout, stderr := written()
			attached.Wait(t).Want(t, 37).WantOutput(t, stdout, stderr)
			follower.Wait(t).Want(t, 0).WantOutput(t, stdout, stderr)
			in.Agbox(t, "logs", job).Want(t, 0).WantOutput(t, stdout, stderr)
			status := in.inspectExec(t, job)
			if status.GetState() != agboxv1.ExecState_EXEC_STATE_FINISHED || status.GetExitCode() != 37 {
				t.Errorf("inspect shows %v, want exit code 37", status)
			}
			wantFile(t, status.GetStdoutLogPath(), stdout)
			wantFile(t, status.GetStderrLogPath(), stderr)
		})
	}
}

func wantFile(t *testing.T, path, want string) {
	t.Helper()
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	harness.WantSame(t, path, string(got), want)
}

// gated is the start of a command that waits until the test opens its gate.
const gated = "echo before; while [ ! -e /var/log/agents-sandbox/gate ]; do usleep 10000; done; echo after; "

// gateOf returns the path of the gate of a sandbox's commands. It is in the only folder
// that both they and the test see.
func gateOf(in *install, box string) string {
	return filepath.Join(in.Home, "data", "exec-logs", box, "gate")
}

func openGate(t *testing.T, gate string) {
	t.Helper()
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestCommandsThatEndWithoutADaemonKeepTheirStatus(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	box := in.Create(t, "demo", harness.ImageBusybox)
	endings := []struct {
		then         string
		code, signal int32
		id           string
	}{
		{then: "exit 0"},
		{then: "exit 23", code: 23},
		{then: "kill -KILL $$", code: 137, signal: 9},
	}
	gate := gateOf(in, box)
	for i := range endings {
		endings[i].id = in.Must(t, "exec", "-d", "demo", "--", "sh", "-c", gated+endings[i].then)
	}
	in.KillDaemon(t)
	opened := time.Now()
	openGate(t, gate)
	for _, e := range endings {
		harness.Eventually(t, "the supervisor writes the status of "+e.id, func() bool { return harness.LeftStatus(t, filepath.Dir(gate), e.id) })
	}
	in.Must(t, "daemon", "start")
	started := in.Status(t).StartedAt
	for _, e := range endings {
		in.Agbox(t, "logs", "-f", e.id).Want(t, 0).WantOutput(t, "before\nafter\n", "")
		status := in.inspectExec(t, e.id)
		if status.GetState() != agboxv1.ExecState_EXEC_STATE_FINISHED || status.GetExitCode() != e.code || status.GetSignal() != e.signal {
			t.Errorf("%q: inspect shows %v, want code %d and signal %d", e.then, status, e.code, e.signal)
		}
		if at := status.GetFinishedAt().AsTime(); at.Before(opened) || !at.Before(started) {
			t.Errorf("%q ended at %v, want it between %v and the start of the daemon at %v", e.then, at, opened, started)
		}
	}
}

func TestACommandKeepsItsStatusThoughItsContainerDiedBeforeADaemonSawIt(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	box := in.Create(t, "demo", harness.ImageBusybox)
	gate := gateOf(in, box)
	ends := in.Must(t, "exec", "-d", "demo", "--", "sh", "-c", gated+"exit 23")
	lost := in.Must(t, "exec", "-d", "demo", "--", "sh", "-c", "echo before; exec sleep 1000")
	container := in.primary(t, box).ID
	in.KillDaemon(t)
	openGate(t, gate)
	harness.Eventually(t, "the supervisor writes the status", func() bool { return harness.LeftStatus(t, filepath.Dir(gate), ends) })
	if err := harness.DockerAPI.ContainerKill(harness.Bounded(t), container, "KILL"); err != nil {
		t.Fatal(err)
	}
	in.Must(t, "daemon", "start")
	awaitState(t, in.Client(t), box, agboxv1.SandboxState_SANDBOX_STATE_FAILED)
	if e := in.inspectExec(t, ends); e.GetState() != agboxv1.ExecState_EXEC_STATE_FINISHED || e.GetExitCode() != 23 {
		t.Errorf("of the command that had ended inspect shows %v, want exit code 23", e)
	}
	if e := in.inspectExec(t, lost); e.GetErrorCode() != agboxv1.ErrorReason_EXEC_LOST.String() || e.GetExitCode() == 0 {
		t.Errorf("of the command that had not inspect shows %v, want it lost", e)
	}
	in.Agbox(t, "logs", "-f", ends).Want(t, 0).WantOutput(t, "before\nafter\n", "")
}

func TestRestartOfTheDaemonGoesUnnoticed(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	box := in.Create(t, "demo", harness.ImageBusybox)
	before := in.primary(t, box)
	events := in.Start(t, "events", box, "-f", "-o", "json")
	all := in.Start(t, "events", "-f", "-o", "json")
	attached := in.Start(t, "exec", "demo", "--", "sh", "-c", harness.UntilSignal("USR1", "echo third; exit 9", "echo first"))
	attached.AwaitOutput(t, "first\n")
	job := in.execs(t)[0].GetExecId()
	follower := in.Start(t, "logs", "-f", job)
	follower.AwaitOutput(t, "first\n")

	if said := in.Must(t, "daemon", "stop"); !strings.Contains(said, "has stopped") {
		t.Errorf("daemon stop says %q", said)
	}
	for pid, command := range in.Processes() {
		if strings.Contains(command, "agboxd") {
			t.Errorf("after daemon stop this still runs: %d %s", pid, command)
		}
	}
	in.Must(t, "daemon", "start")
	in.Must(t, "kill", "-s", "USR1", job)
	attached.Wait(t).Want(t, 9).WantOutput(t, "first\nthird\n", "")
	follower.Wait(t).Want(t, 0).WantOutput(t, "first\nthird\n", "")

	after := in.primary(t, box)
	if after.ID != before.ID || !after.StartedAt.Equal(before.StartedAt) || after.Pid != before.Pid {
		t.Errorf("the primary was %+v and is %+v", before, after)
	}
	wantOneHistory(t, events, box, job)
	all.AwaitOutput(t, `"EXEC_FINISHED"`)
	all.Signal(t, syscall.SIGINT)
	all.Wait(t).Want(t, 130)
}

// The kernel closes the files of a killed process some time after its end is visible; the
// more followers the daemon had, the later. Its lock is one of the files.
func TestADaemonStartsWhileTheOneBeforeIsBeingKilled(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	in.Create(t, "demo", harness.ImageBusybox)
	var followers []*harness.Process
	for range 3 {
		job := in.Must(t, "exec", "-d", "demo", "--", "sh", "-c", "while :; do echo line; usleep 20000; done")
		followers = append(followers, in.Start(t, "--no-autostart", "logs", "-f", job))
	}
	starts := map[string]func(){
		"daemon start": func() { in.Must(t, "daemon", "start") },
		"ls":           func() { in.Must(t, "ls") },
		"exec":         func() { in.Agbox(t, "exec", "demo", "--", "echo", "hello").Want(t, 0).WantOutput(t, "hello\n", "") },
		"agboxd run":   func() { in.runDaemon(t) },
	}
	for name, start := range starts {
		for range 5 {
			for i, f := range followers {
				seen := len(f.Stdout.String())
				harness.Eventually(t, fmt.Sprintf("follower %d goes on before %q", i, name), func() bool { return len(f.Stdout.String()) > seen })
			}
			if err := syscall.Kill(in.Status(t).PID, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			start()
		}
	}
}

// wantOneHistory checks that a follower of events received each event once and in order,
// up to the end of the exec.
func wantOneHistory(t *testing.T, follower *harness.Process, box, exec string) {
	t.Helper()
	follower.AwaitOutput(t, `"EXEC_FINISHED"`)
	follower.Signal(t, syscall.SIGINT)
	lines := strings.Split(strings.TrimSpace(follower.Wait(t).Want(t, 130).Stdout), "\n")
	var types []string
	for i, line := range lines {
		event := new(agboxv1.SandboxEvent)
		harness.ParseJSON(t, []byte(line), event)
		if event.GetSequence() != uint64(i+1) || event.GetSandboxId() != box {
			t.Errorf("event %d is %v", i+1, event)
		}
		types = append(types, event.GetEventType().String())
		if id := event.GetExec().GetExecId(); id != "" && id != exec {
			t.Errorf("an event of exec %s, want %s", id, exec)
		}
	}
	want := "SANDBOX_ACCEPTED SANDBOX_PREPARING SANDBOX_READY EXEC_STARTED EXEC_FINISHED"
	harness.WantSame(t, "the history", strings.Join(types, " "), want)
}

func TestASandboxKeepsItsSupervisorWhenTheDaemonBringsAnother(t *testing.T) {
	t.Parallel()
	// A supervisor with other content is another supervisor.
	newer := filepath.Join(t.TempDir(), "bin")
	if err := os.Mkdir(newer, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := harness.CopyBinaries(harness.Binaries, newer); err != nil {
		t.Fatal(err)
	}
	supervisor := filepath.Join(newer, "agbox-init")
	content, err := os.ReadFile(supervisor)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(supervisor); err != nil {
		t.Fatal(err)
	}
	if err := harness.WriteProgram(supervisor, append(content, "newer"...)); err != nil {
		t.Fatal(err)
	}

	in := newInstall(t)
	old := in.Create(t, "old", harness.ImageBusybox)
	job := in.Must(t, "exec", "-d", "old", "--", "sh", "-c", harness.UntilSignal("USR1", "exit 9", "echo first"))
	in.Start(t, "logs", "-f", job).AwaitOutput(t, "first\n") // from now on it handles the signal
	in.Must(t, "daemon", "stop")
	in.Bin = newer
	in.Must(t, "daemon", "start")
	in.Must(t, "kill", "-s", "USR1", job)
	in.Agbox(t, "logs", "-f", job).Want(t, 0).WantOutput(t, "first\n", "")
	in.Agbox(t, "exec", "old", "--", "sh", "-c", "exit 4").Want(t, 4)
	later := in.Create(t, "later", harness.ImageBusybox)
	in.Agbox(t, "exec", "later", "--", "sh", "-c", "exit 5").Want(t, 5)
	if a, b := in.primary(t, old).supervisor, in.primary(t, later).supervisor; a == b || a == "" || b == "" {
		t.Errorf("the older sandbox has supervisor %q, the later one %q", a, b)
	}
	in.Must(t, "stop", "old")
	in.Must(t, "start", "old")
	in.Agbox(t, "exec", "old", "--", "sh", "-c", "exit 6").Want(t, 6)
}
