package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/agbox/agbox/e2e/internal/harness"
	"github.com/agbox/agbox/internal/ids"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// decode reads the JSON list that -o json prints.
func decode[M proto.Message](t *testing.T, text string, empty func() M) []M {
	t.Helper()
	var raw []json.RawMessage
	if err := json.Unmarshal([]byte(text), &raw); err != nil {
		t.Fatalf("not a JSON list: %v\n%s", err, harness.Clip(text))
	}
	list := make([]M, len(raw))
	for i := range raw {
		list[i] = empty()
		harness.ParseJSON(t, raw[i], list[i])
	}
	return list
}

func (in *install) list(t *testing.T, more ...string) []*agboxv1.SandboxHandle {
	t.Helper()
	text := in.Must(t, append([]string{"ls", "-o", "json"}, more...)...)
	return decode(t, text, func() *agboxv1.SandboxHandle { return new(agboxv1.SandboxHandle) })
}

func (in *install) execs(t *testing.T, more ...string) []*agboxv1.ExecStatus {
	t.Helper()
	text := in.Must(t, append([]string{"ps", "-o", "json"}, more...)...)
	return decode(t, text, func() *agboxv1.ExecStatus { return new(agboxv1.ExecStatus) })
}

func (in *install) inspect(t *testing.T, sandbox string) *agboxv1.GetSandboxResponse {
	t.Helper()
	text := in.Must(t, "inspect", "-o", "json", sandbox)
	return decode(t, text, func() *agboxv1.GetSandboxResponse { return new(agboxv1.GetSandboxResponse) })[0]
}

func (in *install) inspectExec(t *testing.T, exec string) *agboxv1.ExecStatus {
	t.Helper()
	text := in.Must(t, "inspect", "-o", "json", exec)
	return decode(t, text, func() *agboxv1.GetExecResponse { return new(agboxv1.GetExecResponse) })[0].GetExec()
}

func TestMainJob(t *testing.T) {
	for _, who := range accounts(t) {
		t.Run("as "+who.name, func(t *testing.T) {
			t.Parallel()
			in := newInstall(t, as(who))
			id := createsASandbox(t, in)
			runsCommands(t, in, id)
			followsACommand(t, in, id)
			stopsAndStarts(t, in, id)
			removes(t, in, id)
		})
	}
}

// A command may have ended before anybody reads its output, or may have just created its
// files.
func TestQuickCommandsLoseNothing(t *testing.T) {
	for _, who := range accounts(t) {
		t.Run("as "+who.name, func(t *testing.T) {
			t.Parallel()
			in := newInstall(t, as(who))
			box := in.Create(t, "demo", harness.ImageBusybox)
			c := in.Client(t)
			ctx := harness.Bounded(t)
			for i := range 300 {
				var stdout, stderr bytes.Buffer
				command := []string{"sh", "-c", fmt.Sprintf("echo out %d; echo err %d >&2; exit %d", i, i, i%100)}
				ended, err := c.Run(ctx, &agboxv1.CreateExecRequest{SandboxId: box, Command: command}, &stdout, &stderr)
				if err != nil || ended.Code != i%100 || ended.Notice != "" {
					t.Fatalf("command %d ended with %d, notice %q, error %v", i, ended.Code, ended.Notice, err)
				}
				harness.WantSame(t, "stdout", stdout.String(), fmt.Sprintf("out %d\n", i))
				harness.WantSame(t, "stderr", stderr.String(), fmt.Sprintf("err %d\n", i))
			}
		})
	}
}

func createsASandbox(t *testing.T, in *install) string {
	t.Helper()
	created := in.Agbox(t, "create", "demo", "--image", harness.ImageBusybox, "--label", "team=red").Want(t, 0)
	id := strings.TrimSuffix(created.Stdout, "\n")
	if !ids.Valid(id) {
		t.Fatalf("create printed %q, want the id alone", created.Stdout)
	}
	boxes := in.list(t)
	if len(boxes) != 1 || boxes[0].GetSandboxId() != id || boxes[0].GetName() != "demo" ||
		boxes[0].GetState() != agboxv1.SandboxState_SANDBOX_STATE_READY {
		t.Fatalf("ls shows %v, want sandbox %s, ready", boxes, id)
	}
	harness.WantSame(t, "ls -q", in.Must(t, "ls", "-q", "--label", "team=red"), id)
	harness.WantSame(t, "ls -q of another label", in.Must(t, "ls", "-q", "--label", "team=blue"), "")
	if table := in.Must(t, "ls"); !strings.Contains(table, id) || !strings.Contains(table, "ready") {
		t.Errorf("ls shows\n%s", table)
	}
	shown := in.inspect(t, "demo").GetContainers()
	if len(shown) != 1 || shown[0].GetRole() != "primary" || shown[0].GetState() != "running" {
		t.Errorf("inspect shows the containers %v, want a running primary", shown)
	}
	return id
}

func runsCommands(t *testing.T, in *install, id string) {
	t.Helper()
	const script = "echo to stdout; echo to stderr >&2; exit 7"
	in.Agbox(t, "exec", "demo", "--", "sh", "-c", script).Want(t, 7).WantOutput(t, "to stdout\n", "to stderr\n")
	in.Agbox(t, "exec", id, "sh", "-c", "echo kept >/workdir/file").Want(t, 0).WantOutput(t, "", "")
	in.Agbox(t, "exec", id, "cat", "/workdir/file").Want(t, 0).WantOutput(t, "kept\n", "")

	ended := in.execs(t, "-a", "demo")
	at := slices.IndexFunc(ended, func(e *agboxv1.ExecStatus) bool { return slices.Contains(e.GetCommand(), script) })
	if len(ended) != 3 || at < 0 {
		t.Fatalf("ps -a shows %v, want three commands", ended)
	}
	if e := ended[at]; e.GetState() != agboxv1.ExecState_EXEC_STATE_FINISHED || e.GetExitCode() != 7 || e.GetFinishedAt() == nil {
		t.Errorf("ps -a shows %v, want exit code 7", e)
	}
	in.Agbox(t, "logs", ended[at].GetExecId()).Want(t, 0).WantOutput(t, "to stdout\n", "to stderr\n")
	if running := in.execs(t); len(running) != 0 {
		t.Errorf("ps shows %v, want nothing", running)
	}
}

func followsACommand(t *testing.T, in *install, id string) {
	t.Helper()
	job := in.Must(t, "exec", "-d", "demo", "--", "sh", "-c", harness.UntilSignal("USR1", "echo second; echo last >&3; exit 5", "echo first"))
	follower := in.Start(t, "logs", "-f", job)
	follower.AwaitOutput(t, "first\n")
	if running := in.execs(t, "demo"); len(running) != 1 || running[0].GetExecId() != job || running[0].GetSandboxId() != id {
		t.Errorf("ps shows %v, want %s", running, job)
	}
	// Without -f, only the output so far is printed.
	in.Agbox(t, "logs", job).Want(t, 0).WantOutput(t, "first\n", "")
	in.Agbox(t, "kill", "-s", "USR1", job).Want(t, 0)
	follower.Wait(t).Want(t, 0).WantOutput(t, "first\nsecond\n", "last\n")
	if e := in.inspectExec(t, job); e.GetExitCode() != 5 {
		t.Errorf("inspect shows %v, want exit code 5", e)
	}
}

func stopsAndStarts(t *testing.T, in *install, id string) {
	t.Helper()
	harness.WantSame(t, "stop", in.Must(t, "stop", "demo"), id)
	if boxes := in.list(t); boxes[0].GetState() != agboxv1.SandboxState_SANDBOX_STATE_STOPPED {
		t.Errorf("ls shows %v, want it stopped", boxes)
	}
	// For its own failures, agbox has one exit code in exec, and those of the table
	// everywhere else.
	refused(t, in.Agbox(t, "exec", "demo", "--", "true"), 125, "agbox start")
	refused(t, in.Agbox(t, "exec", "-d", "demo", "--", "true"), 125, "agbox start")
	harness.WantSame(t, "start", in.Must(t, "start", "demo"), id)
	in.Agbox(t, "exec", "demo", "--", "cat", "/workdir/file").Want(t, 0).WantOutput(t, "kept\n", "")
}

func removes(t *testing.T, in *install, id string) {
	t.Helper()
	harness.WantSame(t, "rm", in.Must(t, "rm", "--wait", "demo"), id)
	if boxes := in.list(t); len(boxes) != 0 {
		t.Errorf("ls shows %v, want nothing", boxes)
	}
	if state := in.inspect(t, id).GetSandbox().GetState(); state != agboxv1.SandboxState_SANDBOX_STATE_DELETED {
		t.Errorf("inspect shows %v of a removed sandbox", state)
	}
	if inv := in.Inventory(t); len(inv.Containers)+len(inv.Networks) != 0 {
		t.Errorf("the engine has %v", inv)
	}
	refused(t, in.Agbox(t, "create", "other", "--id", id, "--image", harness.ImageBusybox), 4, id)
	if again := in.Create(t, "demo", harness.ImageBusybox); again == id {
		t.Errorf("the id %s was used twice", id)
	}
}
