package agents

import (
	"strings"
	"testing"

	"github.com/agbox/agbox/e2e/internal/harness"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// TestTheBordersOfTheDocumentationAreOpened: who was spawned with --reach gets what is sent on a
// stream of those whom it reaches, and nobody else does.
func TestTheBordersOfTheDocumentationAreOpened(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	in.Create(t, "demo", harness.ImageBusybox)
	in.Create(t, "other", harness.ImageBusybox)
	const program = "#!/bin/sh\nagbox-agent open news; touch $AGBOX_AGENT; until [ -e go ]; do sleep 0.05; done; agbox-agent send --stream news $AGBOX_AGENT; sleep 1000\n"
	for _, sandbox := range []string{"demo", "other"} {
		put(t, in, sandbox, "/workdir/work.sh", program)
	}
	commands := snippets(t)["reach"] + `
		agbox agent spawn mate --in demo -- ./work.sh
		agbox agent spawn alone --in other -- ./work.sh
		agbox agent spawn free --in demo --reach all -- ./work.sh`
	for line := range strings.Lines(commands) {
		if command, _, _ := strings.Cut(line, "#"); strings.TrimSpace(command) != "" {
			in.Must(t, strings.Fields(command)[1:]...)
		}
	}
	sandboxes := map[string]string{"planner": "demo", "helper": "other", "guest": "other", "open": "other", "mate": "demo", "alone": "other", "free": "demo"}
	for name, sandbox := range sandboxes {
		harness.Eventually(t, name+" has the stream open", func() bool { return in.Agbox(t, "exec", sandbox, "--", "test", "-e", "/workdir/"+name).Code == 0 })
	}
	for _, sandbox := range []string{"demo", "other"} {
		in.Must(t, "exec", sandbox, "--", "touch", "/workdir/go")
	}
	mates := map[string]string{"planner": "helper", "helper": "planner", "guest": "mate", "mate": "guest", "open": "free", "free": "open"}
	for name, mate := range mates {
		until(t, in, in.AgentID(t, name), "it has a message", func(a *agboxv1.Agent) bool { return a.GetUnread() > 0 })
		if out := in.Must(t, "agent", "inbox", name, "-o", "json"); strings.Count(out, `"text"`) != 1 || !strings.Contains(out, mate) {
			t.Errorf("%s has\n%s", name, out)
		}
	}
	until(t, in, in.AgentID(t, "alone"), "its message has come back", func(a *agboxv1.Agent) bool { return a.GetUnread() > 0 })
	if out := in.Must(t, "agent", "inbox", "alone"); !strings.Contains(out, "No other agent that it shares streams with") {
		t.Errorf("the one that reaches nobody has\n%s", out)
	}
	for _, reach := range []string{"demo", "sandbox:", "stack:", "everybody"} {
		in.Agbox(t, "agent", "spawn", "--in", "other", "--reach", reach, "--", "true").Want(t, 2)
	}
	in.Agbox(t, "agent", "spawn", "--in", "other", "--reach", "sandbox:nowhere", "--", "true").Want(t, 3)
	in.Agbox(t, "agent", "spawn", "--in", "other", "--reach", "stack:nothing", "--", "true").Want(t, 3)
}
