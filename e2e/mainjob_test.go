package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/agbox/agbox/internal/ids"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// decode reads the JSON list that -o json prints.
func decode[M proto.Message](t *testing.T, text string, empty func() M) []M {
	t.Helper()
	var raw []json.RawMessage
	if err := json.Unmarshal([]byte(text), &raw); err != nil {
		t.Fatalf("not a JSON list: %v\n%s", err, clip(text))
	}
	list := make([]M, len(raw))
	for i := range raw {
		list[i] = empty()
		if err := protojson.Unmarshal(raw[i], list[i]); err != nil {
			t.Fatalf("not a %T: %v\n%s", list[i], err, raw[i])
		}
	}
	return list
}

func (in *install) list(t *testing.T, more ...string) []*agboxv1.SandboxHandle {
	t.Helper()
	text := in.must(t, append([]string{"ls", "-o", "json"}, more...)...)
	return decode(t, text, func() *agboxv1.SandboxHandle { return new(agboxv1.SandboxHandle) })
}

func (in *install) execs(t *testing.T, more ...string) []*agboxv1.ExecStatus {
	t.Helper()
	text := in.must(t, append([]string{"ps", "-o", "json"}, more...)...)
	return decode(t, text, func() *agboxv1.ExecStatus { return new(agboxv1.ExecStatus) })
}

func (in *install) inspect(t *testing.T, sandbox string) *agboxv1.GetSandboxResponse {
	t.Helper()
	text := in.must(t, "inspect", "-o", "json", sandbox)
	return decode(t, text, func() *agboxv1.GetSandboxResponse { return new(agboxv1.GetSandboxResponse) })[0]
}

func (in *install) inspectExec(t *testing.T, exec string) *agboxv1.ExecStatus {
	t.Helper()
	text := in.must(t, "inspect", "-o", "json", exec)
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

// A command may be over before anybody looks for its output, or may just have
// made the files for it.
func TestQuickCommandsLoseNothing(t *testing.T) {
	for _, who := range accounts(t) {
		t.Run("as "+who.name, func(t *testing.T) {
			t.Parallel()
			in := newInstall(t, as(who))
			in.create(t, "demo", imageBusybox)
			c := in.client(t)
			ctx := bounded(t)
			for i := range 300 {
				var stdout, stderr bytes.Buffer
				command := []string{"sh", "-c", fmt.Sprintf("echo out %d; echo err %d >&2; exit %d", i, i, i%100)}
				ended, err := c.Run(ctx, &agboxv1.CreateExecRequest{SandboxId: "demo", Command: command}, &stdout, &stderr)
				if err != nil || ended.Code != i%100 || ended.Notice != "" {
					t.Fatalf("command %d ended with %d, notice %q, error %v", i, ended.Code, ended.Notice, err)
				}
				wantSame(t, "stdout", stdout.String(), fmt.Sprintf("out %d\n", i))
				wantSame(t, "stderr", stderr.String(), fmt.Sprintf("err %d\n", i))
			}
		})
	}
}

func createsASandbox(t *testing.T, in *install) string {
	t.Helper()
	created := in.agbox(t, "create", "demo", "--image", imageBusybox, "--label", "team=red").want(t, 0)
	id := strings.TrimSuffix(created.stdout, "\n")
	if !ids.Valid(id) {
		t.Fatalf("create printed %q, want the id alone", created.stdout)
	}
	boxes := in.list(t)
	if len(boxes) != 1 || boxes[0].GetSandboxId() != id || boxes[0].GetName() != "demo" ||
		boxes[0].GetState() != agboxv1.SandboxState_SANDBOX_STATE_READY {
		t.Fatalf("ls shows %v, want sandbox %s, ready", boxes, id)
	}
	wantSame(t, "ls -q", in.must(t, "ls", "-q", "--label", "team=red"), id)
	wantSame(t, "ls -q of another label", in.must(t, "ls", "-q", "--label", "team=blue"), "")
	if table := in.must(t, "ls"); !strings.Contains(table, id) || !strings.Contains(table, "ready") {
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
	in.agbox(t, "exec", "demo", "--", "sh", "-c", script).want(t, 7).wantOutput(t, "to stdout\n", "to stderr\n")
	in.agbox(t, "exec", id, "sh", "-c", "echo kept >/workdir/file").want(t, 0).wantOutput(t, "", "")
	in.agbox(t, "exec", id[:6], "cat", "/workdir/file").want(t, 0).wantOutput(t, "kept\n", "")

	ended := in.execs(t, "-a", "demo")
	at := slices.IndexFunc(ended, func(e *agboxv1.ExecStatus) bool { return slices.Contains(e.GetCommand(), script) })
	if len(ended) != 3 || at < 0 {
		t.Fatalf("ps -a shows %v, want three commands", ended)
	}
	if e := ended[at]; e.GetState() != agboxv1.ExecState_EXEC_STATE_FINISHED || e.GetExitCode() != 7 || e.GetFinishedAt() == nil {
		t.Errorf("ps -a shows %v, want exit code 7", e)
	}
	in.agbox(t, "logs", ended[at].GetExecId()).want(t, 0).wantOutput(t, "to stdout\n", "to stderr\n")
	if running := in.execs(t); len(running) != 0 {
		t.Errorf("ps shows %v, want nothing", running)
	}
}

func followsACommand(t *testing.T, in *install, id string) {
	t.Helper()
	job := in.must(t, "exec", "-d", "demo", "--", "sh", "-c", untilSignal("USR1", "echo second; echo last >&3; exit 5", "echo first"))
	follower := in.start(t, "logs", "-f", job)
	follower.awaitOutput(t, "first\n")
	if running := in.execs(t, "demo"); len(running) != 1 || running[0].GetExecId() != job || running[0].GetSandboxId() != id {
		t.Errorf("ps shows %v, want %s", running, job)
	}
	// Without -f the output so far is all.
	in.agbox(t, "logs", job).want(t, 0).wantOutput(t, "first\n", "")
	in.agbox(t, "kill", "-s", "USR1", job).want(t, 0)
	follower.wait(t).want(t, 0).wantOutput(t, "first\nsecond\n", "last\n")
	if e := in.inspectExec(t, job); e.GetExitCode() != 5 {
		t.Errorf("inspect shows %v, want exit code 5", e)
	}
}

func stopsAndStarts(t *testing.T, in *install, id string) {
	t.Helper()
	wantSame(t, "stop", in.must(t, "stop", "demo"), id)
	if boxes := in.list(t); boxes[0].GetState() != agboxv1.SandboxState_SANDBOX_STATE_STOPPED {
		t.Errorf("ls shows %v, want it stopped", boxes)
	}
	// What agbox itself fails at has a code of its own in exec, and the one of
	// the table everywhere else.
	refused(t, in.agbox(t, "exec", "demo", "--", "true"), 125, "agbox start")
	refused(t, in.agbox(t, "exec", "-d", "demo", "--", "true"), 125, "agbox start")
	wantSame(t, "start", in.must(t, "start", "demo"), id)
	in.agbox(t, "exec", "demo", "--", "cat", "/workdir/file").want(t, 0).wantOutput(t, "kept\n", "")
}

func removes(t *testing.T, in *install, id string) {
	t.Helper()
	wantSame(t, "rm", in.must(t, "rm", "demo"), id)
	if boxes := in.list(t); len(boxes) != 0 {
		t.Errorf("ls shows %v, want nothing", boxes)
	}
	if state := in.inspect(t, id).GetSandbox().GetState(); state != agboxv1.SandboxState_SANDBOX_STATE_DELETED {
		t.Errorf("inspect shows %v of a removed sandbox", state)
	}
	if inv := in.inventory(t); len(inv.Containers)+len(inv.Networks) != 0 {
		t.Errorf("the engine has %v", inv)
	}
	refused(t, in.agbox(t, "create", "other", "--id", id, "--image", imageBusybox), 4, id)
	if again := in.create(t, "demo", imageBusybox); again == id {
		t.Errorf("the id %s was used twice", id)
	}
}
