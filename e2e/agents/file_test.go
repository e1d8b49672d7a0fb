package agents

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agbox/agbox/e2e/internal/harness"
)

// project makes a folder with a sandbox file.
func project(t *testing.T, file string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "agbox.yaml"), []byte(file), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

const described = "image: " + harness.ImageBusybox + `
idle_ttl: 1h
agent:
  name: fixer
  class: coder
  model: m-1
  command: [sh, -c, 'echo "$AGBOX_AGENT $AGBOX_CLASS $AGBOX_MODEL $X $Y"; exit 3']
  envs: {X: file, Y: file}
  retry: {attempts: 2, delays: [10ms, 1h]}
`

func TestTheFileOfTheFolderDescribesAnAgent(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	cmd := in.Command(t.Context(), "agbox", "agent", "spawn")
	cmd.Dir = project(t, described)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v, %s", err, out)
	}
	id := strings.TrimSpace(string(out))
	a := await(t, in, id, "DEAD_LETTER")
	if !a.GetOwned() || a.GetName() != "fixer" || a.GetCrashes() != 2 {
		t.Errorf("the agent is %v", a)
	}
	line := "fixer coder m-1 file file"
	harness.WantSame(t, "output", in.Must(t, "agent", "logs", id), line+"\n"+line)
	if box := in.Must(t, "inspect", a.GetSandboxId()); !strings.Contains(box, "1h") {
		t.Errorf("its sandbox is not that of the file:\n%s", box)
	}
	in.Must(t, "agent", "rm", id)
}

func TestArgumentsOverrideTheAgentOfTheSandbox(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	in.Must(t, "create", "demo", "-f", filepath.Join(project(t, described), "agbox.yaml"))
	if list := in.Must(t, "agent", "ls", "-a"); strings.Contains(list, "fixer") {
		t.Errorf("the creation of the sandbox has started its agent:\n%s", list)
	}
	id := spawn(t, in, `echo "$AGBOX_AGENT $AGBOX_CLASS $AGBOX_MODEL $X $Y"`, "two", "--in", "demo", "--model", "m-2", "--agent-env", "Y=flag", "--id", "a-1")
	await(t, in, id, "COMPLETED")
	harness.WantSame(t, "output", in.Must(t, "agent", "logs", id), "two coder m-2 file flag")
	// A client repeats a request whose answer was lost.
	if again := spawn(t, in, `echo "$AGBOX_AGENT $AGBOX_CLASS $AGBOX_MODEL $X $Y"`, "two", "--in", "demo", "--model", "m-2", "--agent-env", "Y=flag", "--id", "a-1"); again != id {
		t.Errorf("the repeated request made %s", again)
	}
	await(t, in, in.Must(t, "agent", "spawn", "--in", "demo", "--attempts", "1"), "DEAD_LETTER")
}

func TestAnAgentWithoutACommandIsRefused(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	in.Create(t, "demo", harness.ImageBusybox)
	for want, args := range map[string][]string{
		"An agent needs a command: give the program that it runs, or write it":        {"--in", "demo"},
		"--in runs the agent in a sandbox that exists, and --env describes a new one": {"--in", "demo", "-e", "A=b", "--", "true"},
		"needs the agent's COMMAND after --":                                          {"--in", "demo", "--"},
		"agent.envs[\"API_KEY\"]: The variable \"API_KEY\" is a secret":               {"--in", "demo", "--agent-env", "API_KEY=x", "--", "true"},
		"agbox.yaml:3:15: agent.heartbeat.stale: interval is 15s and stale":           {"-f", filepath.Join(project(t, "image: x\nagent:\n  heartbeat: {stale: 1s}\n"), "agbox.yaml")},
	} {
		if r := in.Agbox(t, append([]string{"agent", "spawn"}, args...)...).Want(t, 2); !strings.Contains(r.Stderr, want) {
			t.Errorf("%q: %s", args, r.Stderr)
		}
	}
	if list := in.Must(t, "agent", "ls", "-aq"); list != "" {
		t.Errorf("there are the agents %s", list)
	}
}
