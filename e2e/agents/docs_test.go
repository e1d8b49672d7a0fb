package agents

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/agbox/agbox/e2e/internal/harness"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

var marked = regexp.MustCompile("(?s)<!-- run: (\\w+) -->\n```\\w+\n(.*?)```\n")

// snippets are the programs and files in docs/agents.md by their marks.
func snippets(t *testing.T) map[string]string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("..", "..", "docs", "agents.md"))
	if err != nil {
		t.Fatal(err)
	}
	all := make(map[string]string)
	for _, found := range marked.FindAllStringSubmatch(string(raw), -1) {
		all[found[1]] = found[2]
	}
	if n := strings.Count(string(raw), "\n```\n"); n != len(all) {
		t.Fatalf("docs/agents.md has %d blocks of code, and %d marked ones: mark each, and run it", n, len(all))
	}
	return all
}

// put writes a file into a sandbox.
func put(t *testing.T, in *harness.Install, sandbox, path, content string) {
	t.Helper()
	name := filepath.Join(t.TempDir(), filepath.Base(path))
	if err := os.WriteFile(name, []byte(content), 0o755); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
	in.Must(t, "exec", sandbox, "--", "mkdir", "-p", filepath.Dir(path))
	in.Must(t, "cp", name, sandbox+":"+path)
}

// programs has how the program of each language is started.
var programs = map[string][]string{"sh": {"sh", "-c"}, "python": {"python3", "-c"}, "javascript": {"node", "-e"}}

// office is a sandbox, named demo, in which programs of the documentation work: each in a folder
// of its own, which the host has too.
type office struct {
	in   *harness.Install
	host string
	all  map[string]string
}

// openOffice makes the office and its sandbox. more are flags of agbox create.
func openOffice(t *testing.T, in *harness.Install, sandbox string, more ...string) office {
	t.Helper()
	o := office{in: in, host: t.TempDir(), all: snippets(t)}
	in.Create(t, sandbox, harness.ImageLanguages, append([]string{"--mount", o.host + ":/office:rw"}, more...)...)
	return o
}

// employ starts the program with that name and text in that sandbox. Its tool is deliver, and its
// work are that many lines.
func (o office) employ(t *testing.T, sandbox, name, text, deliver string, lines int, spec *agboxv1.AgentSpec) (id string) {
	t.Helper()
	folder := filepath.Join(o.host, name)
	if err := os.MkdirAll(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	for file, content := range map[string]string{"deliver": deliver, "document": o.all["deliver"]} {
		if err := harness.WriteProgram(filepath.Join(folder, file), []byte(content)); err != nil {
			t.Fatal(err)
		}
	}
	var work strings.Builder
	for n := range lines {
		fmt.Fprintf(&work, "line \"%d\"\n", n+1)
	}
	file := filepath.Join(folder, "work")
	if err := os.WriteFile(file, []byte(work.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	spec.Name, spec.Command, spec.WorkingDir, spec.Work = name, append(programs[name][:2:2], text), "/office/"+name, file
	a, err := o.in.Client(t).SpawnAgent(harness.Bounded(t), &agboxv1.SpawnAgentRequest{Spec: spec, SandboxId: o.in.SandboxID(t, sandbox)})
	if err != nil {
		t.Fatal(err)
	}
	return a.GetAgentId()
}

// delivered is what the program with that name has delivered.
func (o office) delivered(t *testing.T, name string) string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(o.host, name, "delivered"))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return string(raw)
}

// wantDelivered checks that each of that many lines was delivered once, in their order.
func (o office) wantDelivered(t *testing.T, name string, lines int) {
	t.Helper()
	var want strings.Builder
	for n := range lines {
		fmt.Fprintf(&want, "%[1]d line \"%[1]d\"\n", n+1)
	}
	harness.WantSame(t, "deliveries of "+name, o.delivered(t, name), want.String())
}

// once is a spec whose first crash ends the agent.
func once() *agboxv1.AgentSpec { return &agboxv1.AgentSpec{Retry: &agboxv1.AgentRetry{Attempts: 1}} }

func TestTheProgramsOfTheDocumentationAreAgents(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	o := openOffice(t, in, "demo")
	for name := range programs {
		o.employ(t, "demo", name, o.all[name], o.all["deliver"], 3, once())
		a := await(t, in, name, "COMPLETED")
		if a.GetMessage() != "3 lines are delivered" || a.GetProgress().GetSteps() != 3 || a.GetProgress().GetTotal().GetInputTokens() != 3000 || a.GetProgress().GetTotal().GetCostMicroUsd() != 30_000 {
			t.Errorf("%s says %q and has %v", name, a.GetMessage(), a.GetProgress())
		}
		harness.WantSame(t, "output of "+name, in.Must(t, "agent", "logs", name), "delivered: 1 line \"1\"\ndelivered: 2 line \"2\"\ndelivered: 3 line \"3\"")
		o.wantDelivered(t, name, 3)
		if end := a.GetLastEnd(); end.GetExitCode() != 0 {
			t.Errorf("%s exited with %d: %s", name, end.GetExitCode(), end.GetErrorMessage())
		}
		in.Must(t, "agent", "rm", name)
	}
	// All of them obey the gate.
	poor := openOffice(t, in, "poor")
	for name := range programs {
		spec := once()
		spec.Budget = &agboxv1.AgentBudget{CostUsd: "0.02"}
		id := poor.employ(t, "poor", name, o.all[name], o.all["deliver"], 3, spec)
		if a := await(t, in, id, "FAILED"); a.GetProgress().GetSteps() != 2 || !strings.Contains(a.GetMessage(), "token budget exhausted") {
			t.Errorf("%s with a small budget made %d steps and says %q", name, a.GetProgress().GetSteps(), a.GetMessage())
		}
	}
}

func TestTheProgramsOfTheDocumentationEndWhenTheyAreDrained(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	o := openOffice(t, in, "demo")
	// The first step lasts until the drain.
	slow := "#!/bin/sh\n./document \"$@\"; while agbox-agent drained; do sleep 0.05; done"
	for name := range programs {
		o.employ(t, "demo", name, o.all[name], slow, 3, once())
	}
	for name := range programs {
		harness.Eventually(t, name+" works", func() bool { return o.delivered(t, name) != "" })
	}
	spawn(t, in, "echo 'work of step 1'; do_one_step() { sleep 0.05; }\n"+o.all["loop"]+"exit 75", "loop", "--in", "demo", "--attempts", "1")
	harness.Eventually(t, "the loop works", func() bool { return in.Must(t, "agent", "logs", "loop") == "work of step 1" })
	in.Must(t, "stop", "demo")
	c := in.Client(t)
	for _, name := range []string{"sh", "python", "javascript", "loop"} {
		var a *agboxv1.Agent
		harness.Eventually(t, name+" is paused", func() bool {
			var err error
			if a, err = c.GetAgent(harness.Bounded(t), in.AgentID(t, name)); err != nil {
				t.Fatal(err)
			}
			return a.GetPauseReason() != 0
		})
		if end := a.GetLastEnd(); a.GetPauseReason() != agboxv1.PauseReason_PAUSE_REASON_DRAINED || end.GetExitCode() != 75 || a.GetCrashes() != 0 {
			t.Errorf("%s is %s and its end %v", name, a.GetWord(), end)
		}
	}
}

// TestTheLoopOfTheDocumentationReceivesMessagesBeyondOneAnswer: each answer has at most 64 KiB, and
// the last message of one says how many wait.
func TestTheLoopOfTheDocumentationReceivesMessagesBeyondOneAnswer(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	in.Create(t, "demo", harness.ImageBusybox)
	id := spawn(t, in, "until [ -e /tmp/sent ]; do sleep 0.05; done\n"+snippets(t)["messages"]+`agbox-agent done complete`, "reader", "--in", "demo")
	var want []string
	for n, text := range []string{"one", strings.Repeat("x", 64<<10), "three", strings.Repeat("y", 64<<10)} {
		in.Must(t, "agent", "send", "reader", text)
		want = append(want, fmt.Sprintf("%d %.5s %d", n+1, text, 3-n))
	}
	in.Must(t, "exec", "demo", "--", "touch", "/tmp/sent")
	await(t, in, id, "COMPLETED")
	var got []string
	for _, line := range strings.Split(in.Must(t, "agent", "logs", id), "\n") {
		var m struct {
			Seq, Left int
			Text      string
		}
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			t.Fatalf("%.200s: %v", line, err)
		}
		got = append(got, fmt.Sprintf("%d %.5s %d", m.Seq, m.Text, m.Left))
	}
	harness.WantSame(t, "the messages", strings.Join(got, "\n"), strings.Join(want, "\n"))
	if out := in.Must(t, "agent", "inbox", id); strings.Contains(out, "init") {
		t.Errorf("unread is:\n%s", out)
	}
}

// standIn is a coding agent as far as its hooks are concerned: it calls the commands of its
// settings at its events, and the tools that these do not block.
const standIn = `#!/usr/bin/env python3
import json, subprocess, sys
hooks = json.load(open("/workspace/.claude/settings.json"))["hooks"]
def event(name, **more):
    for group in hooks.get(name, []):
        for hook in group["hooks"]:
            line = json.dumps({"session_id": "s", "hook_event_name": name, **more})
            done = subprocess.run(hook["command"], shell=True, input=line, text=True, capture_output=True)
            if done.returncode == 2:
                print("blocked:", done.stderr.strip())
                return False
            if done.returncode != 0:
                sys.exit(name + ": " + done.stderr)
    return True
print("asked to", sys.argv[-1])
event("SessionStart", source="startup")
for tool in ("Read", "Bash", "Write"):
    if event("PreToolUse", tool_name=tool, tool_input={"command": "make \"test\""}):
        print("called", tool)
        event("PostToolUse", tool_name=tool)
    if tool == "Bash":
        subprocess.run(["agbox-agent", "context", "95"], check=True)
event("Stop", stop_hook_active=False)
`

func TestTheHooksOfACodingAgentReport(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	in.Create(t, "demo", harness.ImageLanguages)
	all := snippets(t)
	put(t, in, "demo", "/workspace/.claude/settings.json", all["settings"])
	put(t, in, "demo", "/workspace/hook.sh", all["hook"])
	put(t, in, "demo", "/usr/local/bin/claude", standIn)
	task := filepath.Join(t.TempDir(), "task.md")
	if err := os.WriteFile(task, []byte("Fix it."), 0o600); err != nil {
		t.Fatal(err)
	}
	in.Must(t, "agent", "spawn", "coder", "--in", "demo", "--attempts", "1", "--work", task, "--", "sh", "-c", all["wrapper"])
	a := await(t, in, "coder", "COMPLETED")
	logs := in.Must(t, "agent", "logs", "coder")
	if !strings.HasPrefix(logs, "asked to Fix it.\ncalled Read\ncalled Bash\nblocked: ") || strings.Contains(logs, "called Write") {
		t.Errorf("the tools were called so:\n%s", logs)
	}
	if life := a.GetLastEnd().GetLifecycleAtEnd().String(); life != "AGENT_LIFECYCLE_EXECUTING" {
		t.Errorf("at its end it was %s", life)
	}
}

func TestTheCheckpointOfTheDocumentationIsSaved(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	in.Create(t, "demo", harness.ImageBusybox)
	id := spawn(t, in, `set -e; echo '{"messages": []}' >state.json; `+snippets(t)["checkpoint"]+"agbox-agent done complete", "fixer", "--in", "demo")
	await(t, in, id, "COMPLETED")
	if list := in.Must(t, "agent", "checkpoints", "fixer"); !strings.Contains(list, "after the tests") {
		t.Errorf("the checkpoints are\n%s", list)
	}
}

func TestTheCommandsOfTheDocumentationWork(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	all := snippets(t)
	in.Create(t, "demo", harness.ImageBusybox)
	put(t, in, "demo", "/workdir/work.sh", "#!/bin/sh\necho works\n")
	replace := strings.NewReplacer("agbox/base", harness.ImageBusybox, "sleep 3", "true")
	var out []string
	for line := range strings.Lines(replace.Replace(all["commands"])) {
		cmd := in.Command(t.Context(), "sh", "-ec", line)
		cmd.Path = "/bin/sh"
		cmd.Env = append(cmd.Env, "PATH="+in.Bin+":/usr/bin:/bin")
		said, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", line, err, said)
		}
		out = append(out, string(said))
	}
	if !strings.HasPrefix(out[2], "NAME ") || !strings.Contains(out[3], "works\n") || out[4] != "works\n" || !strings.Contains(out[5], "COMPLETED") {
		t.Errorf("the commands print %q", out)
	}
	in.Must(t, "config", "validate", filepath.Join(project(t, "image: x\n"+all["probes"]), "agbox.yaml"))
	dir := project(t, replace.Replace(all["file"]))
	in.Agbox(t, "config", "validate", filepath.Join(dir, "agbox.yaml")).Want(t, 2) // without the file of the work
	if err := os.WriteFile(filepath.Join(dir, "task.md"), []byte("Fix it."), 0o600); err != nil {
		t.Fatal(err)
	}
	in.Must(t, "config", "validate", filepath.Join(dir, "agbox.yaml"))
	if err := os.WriteFile(filepath.Join(dir, "work.sh"), []byte("#!/bin/sh\ncat $AGBOX_WORK\n"), 0o755); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
	id := in.Must(t, "agent", "spawn", "another", "-f", filepath.Join(dir, "agbox.yaml"))
	await(t, in, id, "COMPLETED")
	harness.WantSame(t, "the output", in.Must(t, "agent", "logs", id), "Fix it.")
}
