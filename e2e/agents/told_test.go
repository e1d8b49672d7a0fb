package agents

import (
	"strings"
	"testing"

	"github.com/agbox/agbox/e2e/internal/harness"
)

// TestARunningProgramIsToldOfAPause pauses an agent from outside whose program asks before each
// call, as the hooks of coding agents do, and knows nothing else of pauses.
func TestARunningProgramIsToldOfAPause(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	in.Create(t, "demo", harness.ImageBusybox)
	id := spawn(t, in, `
		until [ -e /tmp/paused ]; do agbox-agent gate Bash; echo ok > /tmp/asked; sleep 0.02; done
		while agbox-agent gate Bash; do sleep 0.02; done
		agbox-agent api drained | grep -o '"paused":true'
		echo yes > /tmp/refused
		until [ -e /tmp/approved ]; do sleep 0.02; done
		until agbox-agent gate Bash; do [ $? = 2 ] || exit 91; sleep 0.02; done
		agbox-agent done complete`, "--in", "demo")
	sh := func(script string) { in.Must(t, "exec", "demo", "--", "sh", "-c", script) }
	sh("until [ -e /tmp/asked ]; do sleep 0.02; done")
	in.Must(t, "agent", "pause", "-m", "look first", id)
	sh("touch /tmp/paused; until [ -e /tmp/refused ]; do sleep 0.02; done")
	in.KillDaemon(t) // the next one tells of the approval
	in.Must(t, "agent", "approve", "-m", "fine", id)
	sh("touch /tmp/approved")
	await(t, in, id, "COMPLETED")
	out := in.Agbox(t, "agent", "logs", id).Want(t, 0)
	for _, want := range []string{"The agent is paused, so this call may not be made: look first", "goes on now. This changed meanwhile: {", `"approval":"APPROVED","answer":"fine"`} {
		if !strings.Contains(out.Stderr, want) {
			t.Errorf("the program lacks %q:\n%s", want, out.Stderr)
		}
	}
	if !strings.Contains(out.Stdout, `"paused":true`) {
		t.Errorf("the answers do not say that the agent is paused:\n%s", out.Stdout)
	}
	wantHistory(t, in, id, "SPAWNED, BEGUN, PHASE, PHASE, PAUSED APPROVAL, WOKEN, RESUMED, DONE_REPORTED, INCARNATION_ENDED EXITED, ENDED")
}
