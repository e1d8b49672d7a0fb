package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/agbox/agbox/logs"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"
)

// lineCount is how many lines the writer writes to stdout.
const lineCount = 100_000

// writer writes numbered lines to both outputs and ends with exit code 37. It
// pauses often enough to take a second or more on any machine, and before the
// last lines it waits for its gate.
const writer = `i=1
while [ $i -le 100000 ]; do
	echo "out $i"
	if [ $((i % 100)) = 0 ]; then echo "err $i" >&2; fi
	if [ $((i % 2000)) = 0 ]; then usleep 20000; fi
	if [ $i = 95000 ]; then while [ ! -e /var/log/agents-sandbox/gate ]; do usleep 10000; done; fi
	i=$((i+1))
done
exit 37`

// written is what the writer writes.
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
			box := in.create(t, "demo", imageBusybox)
			attached := in.start(t, "exec", "demo", "--", "sh", "-c", writer)
			attached.awaitOutput(t, "out 1\n")
			job := in.execs(t)[0].GetExecId()
			follower := in.start(t, "logs", "-f", job)
			for i, line := range c.kills {
				follower.awaitOutput(t, fmt.Sprintf("out %d\n", line))
				in.killDaemon(t)
				if i == len(c.kills)-1 {
					openGate(t, gateOf(in, box))
				}
				// Started on request, or by whichever command comes first.
				if i%2 == 0 {
					in.must(t, "daemon", "start")
				} else {
					in.must(t, "ls")
				}
			}
			stdout, stderr := written()
			attached.wait(t).want(t, 37).wantOutput(t, stdout, stderr)
			follower.wait(t).want(t, 0).wantOutput(t, stdout, stderr)
			in.agbox(t, "logs", job).want(t, 0).wantOutput(t, stdout, stderr)
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
	wantSame(t, path, string(got), want)
}

// gated is the beginning of a command that waits until the test opens its gate.
const gated = "echo before; while [ ! -e /var/log/agents-sandbox/gate ]; do usleep 10000; done; echo after; "

// gateOf is what the commands of a sandbox wait for. Its folder is the one place
// that they and the test both see.
func gateOf(in *install, box string) string {
	return filepath.Join(in.home, "data", "exec-logs", box, "gate")
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
	box := in.create(t, "demo", imageBusybox)
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
		endings[i].id = in.must(t, "exec", "-d", "demo", "--", "sh", "-c", gated+endings[i].then)
	}
	in.killDaemon(t)
	opened := time.Now()
	openGate(t, gate)
	for _, e := range endings {
		eventually(t, "the supervisor writes the status of "+e.id, func() bool { return leftStatus(t, filepath.Dir(gate), e.id) })
	}
	in.must(t, "daemon", "start")
	started := in.status(t).StartedAt
	for _, e := range endings {
		in.agbox(t, "logs", "-f", e.id).want(t, 0).wantOutput(t, "before\nafter\n", "")
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
	box := in.create(t, "demo", imageBusybox)
	gate := gateOf(in, box)
	ends := in.must(t, "exec", "-d", "demo", "--", "sh", "-c", gated+"exit 23")
	lost := in.must(t, "exec", "-d", "demo", "--", "sh", "-c", "echo before; exec sleep 1000")
	container := in.primary(t, box).ID
	in.killDaemon(t)
	openGate(t, gate)
	eventually(t, "the supervisor writes the status", func() bool { return leftStatus(t, filepath.Dir(gate), ends) })
	if err := dockerAPI.ContainerKill(bounded(t), container, "KILL"); err != nil {
		t.Fatal(err)
	}
	in.must(t, "daemon", "start")
	awaitState(t, in.client(t), box, agboxv1.SandboxState_SANDBOX_STATE_FAILED)
	if e := in.inspectExec(t, ends); e.GetState() != agboxv1.ExecState_EXEC_STATE_FINISHED || e.GetExitCode() != 23 {
		t.Errorf("of the command that had ended inspect shows %v, want exit code 23", e)
	}
	if e := in.inspectExec(t, lost); e.GetErrorCode() != agboxv1.ErrorReason_EXEC_LOST.String() || e.GetExitCode() == 0 {
		t.Errorf("of the command that had not inspect shows %v, want it lost", e)
	}
	in.agbox(t, "logs", "-f", ends).want(t, 0).wantOutput(t, "before\nafter\n", "")
}

// leftStatus tells whether the status file says that the exec has ended.
func leftStatus(t *testing.T, folder, execID string) bool {
	t.Helper()
	dir, err := logs.OpenDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	raw, err := dir.ReadStatus(execID)
	if err != nil {
		t.Fatal(err)
	}
	record := new(guestv1.ExecRecord)
	if err := proto.Unmarshal(raw, record); err != nil {
		t.Fatal(err)
	}
	return record.GetPhase() == guestv1.ExecPhase_EXEC_PHASE_EXITED
}

func TestRestartOfTheDaemonGoesUnnoticed(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	box := in.create(t, "demo", imageBusybox)
	before := in.primary(t, box)
	events := in.start(t, "events", box, "-f", "-o", "json")
	all := in.start(t, "events", "-f", "-o", "json")
	attached := in.start(t, "exec", "demo", "--", "sh", "-c", untilSignal("USR1", "echo third; exit 9", "echo first"))
	attached.awaitOutput(t, "first\n")
	job := in.execs(t)[0].GetExecId()
	follower := in.start(t, "logs", "-f", job)
	follower.awaitOutput(t, "first\n")

	if said := in.must(t, "daemon", "stop"); !strings.Contains(said, "has stopped") {
		t.Errorf("daemon stop says %q", said)
	}
	for pid, command := range in.processes() {
		if strings.Contains(command, "agboxd") {
			t.Errorf("after daemon stop this still runs: %d %s", pid, command)
		}
	}
	in.must(t, "daemon", "start")
	in.must(t, "kill", "-s", "USR1", job)
	attached.wait(t).want(t, 9).wantOutput(t, "first\nthird\n", "")
	follower.wait(t).want(t, 0).wantOutput(t, "first\nthird\n", "")

	after := in.primary(t, box)
	if after.ID != before.ID || !after.StartedAt.Equal(before.StartedAt) || after.Pid != before.Pid {
		t.Errorf("the primary was %+v and is %+v", before, after)
	}
	wantOneHistory(t, events, box, job)
	all.awaitOutput(t, `"EXEC_FINISHED"`)
	all.signal(t, syscall.SIGINT)
	all.wait(t).want(t, 130)
}

// wantOneHistory checks that a follower of events saw each once and in order,
// up to the end of the exec.
func wantOneHistory(t *testing.T, follower *process, box, exec string) {
	t.Helper()
	follower.awaitOutput(t, `"EXEC_FINISHED"`)
	follower.signal(t, syscall.SIGINT)
	lines := strings.Split(strings.TrimSpace(follower.wait(t).want(t, 130).stdout), "\n")
	var types []string
	for i, line := range lines {
		event := new(agboxv1.SandboxEvent)
		if err := protojson.Unmarshal([]byte(line), event); err != nil {
			t.Fatal(err)
		}
		if event.GetSequence() != uint64(i+1) || event.GetSandboxId() != box {
			t.Errorf("event %d is %v", i+1, event)
		}
		types = append(types, event.GetEventType().String())
		if id := event.GetExec().GetExecId(); id != "" && id != exec {
			t.Errorf("an event of exec %s, want %s", id, exec)
		}
	}
	want := "SANDBOX_ACCEPTED SANDBOX_PREPARING SANDBOX_READY EXEC_STARTED EXEC_FINISHED"
	wantSame(t, "the history", strings.Join(types, " "), want)
}

func TestASandboxKeepsItsSupervisorWhenTheDaemonBringsAnother(t *testing.T) {
	t.Parallel()
	// A supervisor with another content, which is what counts.
	newer := filepath.Join(t.TempDir(), "bin")
	if err := os.Mkdir(newer, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := copyBinaries(binaries, newer); err != nil {
		t.Fatal(err)
	}
	file, err := os.OpenFile(filepath.Join(newer, "agbox-init"), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := file.WriteString("newer"); err != nil {
		t.Fatal(err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}

	in := newInstall(t)
	old := in.create(t, "old", imageBusybox)
	job := in.must(t, "exec", "-d", "old", "--", "sh", "-c", untilSignal("USR1", "exit 9", "echo first"))
	in.must(t, "daemon", "stop")
	in.bin = newer
	in.must(t, "daemon", "start")
	in.must(t, "kill", "-s", "USR1", job)
	in.agbox(t, "logs", "-f", job).want(t, 0).wantOutput(t, "first\n", "")
	in.agbox(t, "exec", "old", "--", "sh", "-c", "exit 4").want(t, 4)
	later := in.create(t, "later", imageBusybox)
	in.agbox(t, "exec", "later", "--", "sh", "-c", "exit 5").want(t, 5)
	if a, b := in.primary(t, old).supervisor, in.primary(t, later).supervisor; a == b || a == "" || b == "" {
		t.Errorf("the older sandbox has supervisor %q, the later one %q", a, b)
	}
	in.must(t, "stop", "old")
	in.must(t, "start", "old")
	in.agbox(t, "exec", "old", "--", "sh", "-c", "exit 6").want(t, 6)
}
