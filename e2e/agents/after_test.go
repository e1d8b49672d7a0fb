package agents

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/agbox/agbox/e2e/internal/harness"
)

// noting is a script that notes its agent in a file of the host and then does more.
const noting = `echo "$AGBOX_AGENT" >> /var/log/agents-sandbox/diary; `

func TestFollowersAreBegunOnceThroughKillsOfTheDaemon(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	box := in.Create(t, "demo", harness.ImageBusybox)
	gate := filepath.Join(in.Home, "data", "exec-logs", box, "go")
	spawn(t, in, noting+`until [ -e /var/log/agents-sandbox/go ]; do sleep 0.02; done`, "top", "--in", "demo")
	spawn(t, in, noting, "left", "--in", "demo", "--after", "top")
	spawn(t, in, noting+"agbox-agent done fail", "broken", "--in", "demo", "--after", "top")
	spawn(t, in, noting, "right", "--in", "demo", "--after", "top")
	spawn(t, in, noting, "bottom", "--in", "demo", "--after", "left", "--after", "right")
	spawn(t, in, noting, "never", "--in", "demo", "--after", "left", "--after", "broken")
	spawn(t, in, noting, "later", "--in", "demo", "--after", "never")
	running(t, in, "top", 1)
	if out := in.Must(t, "agent", "ls"); !strings.Contains(out, "It follows left, right.") {
		t.Errorf("agent ls does not say whom an agent follows:\n%s", out)
	}
	in.KillDaemon(t)
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for range 4 {
		in.Must(t, "agent", "ls")
		in.KillDaemon(t)
	}
	in.Must(t, "agent", "ls")
	for _, name := range []string{"top", "left", "right", "bottom"} {
		await(t, in, name, "COMPLETED")
		// Which of its phases are recorded depends on when the daemon was killed.
		if got := strings.ReplaceAll(strings.Join(history(t, in.Client(t), name), ", "), "PHASE, ", ""); got != "SPAWNED, BEGUN, INCARNATION_ENDED EXITED, ENDED" {
			t.Errorf("%s has the history %s", name, got)
		}
	}
	await(t, in, "broken", "FAILED")
	if a := await(t, in, "never", "FAILED"); a.GetMessage() != "It was to follow agent broken, which is FAILED." {
		t.Errorf("it says %q", a.GetMessage())
	}
	wantHistory(t, in, "never", "SPAWNED, ENDED")
	if a := await(t, in, "later", "FAILED"); a.GetMessage() != "It was to follow agent never, which is FAILED." {
		t.Errorf("it says %q", a.GetMessage())
	}
	notes, err := os.ReadFile(filepath.Join(filepath.Dir(gate), "diary"))
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Fields(string(notes))
	sorted := slices.Sorted(slices.Values(lines))
	if !slices.Equal(sorted, []string{"bottom", "broken", "left", "right", "top"}) || lines[0] != "top" || lines[4] != "bottom" && lines[4] != "broken" {
		t.Errorf("they ran in the order %v", lines)
	}
	in.Agbox(t, "agent", "spawn", "--in", "demo", "--after", "nobody", "--", "true").Want(t, 3)
}
