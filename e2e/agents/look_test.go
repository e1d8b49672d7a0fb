package agents

import (
	"strings"
	"testing"

	"github.com/agbox/agbox/e2e/internal/harness"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// TestAnObservationTellsNothingOfFilesThatTheProgramMayNotRead changes files of root while an
// agent of another user waits that has asked for them.
func TestAnObservationTellsNothingOfFilesThatTheProgramMayNotRead(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	box := in.Create(t, "demo", harness.ImageBusybox)
	in.Must(t, "exec", "demo", "--", "sh", "-c", "mkdir -m 700 /secret; echo 1234 | tee /secret/pin /pin; chmod 600 /pin; echo old > /open; chmod 644 /open")
	spawned, err := in.Client(t).SpawnAgent(harness.Bounded(t), &agboxv1.SpawnAgentRequest{SandboxId: box, Spec: &agboxv1.AgentSpec{
		User: "1000:1000", Command: []string{"sh", "-ec", `
			agbox-agent acquire file:/secret/pin file:/secret/none file:/pin file:/open
			agbox-agent pause approval > /tmp/o
			cat /tmp/o
			agbox-agent resumed ok "$(sed 's/.*"observation":\([0-9]*\).*/\1/' /tmp/o)"
			agbox-agent done complete`},
	}})
	if err != nil {
		t.Fatal(err)
	}
	id := spawned.GetAgentId()
	harness.Eventually(t, "it waits for an approval", func() bool {
		return strings.Contains(in.Must(t, "agent", "ls"), "WAITING_FOR_APPROVAL")
	})
	in.Must(t, "exec", "demo", "--", "sh", "-c", "for f in /secret/pin /secret/none /pin /open; do echo new >> $f; done")
	in.Must(t, "agent", "approve", id)
	await(t, in, id, "COMPLETED")
	// What /pin is called and how large it is, its user sees with ls.
	if out, want := in.Must(t, "agent", "logs", id), `"files":[{"name":"/open","what":"changed"},{"name":"/pin","what":"changed"}]`; !strings.Contains(out, want) {
		t.Errorf("the program lacks %s:\n%s", want, out)
	}
	const pin = "a883dafc480d466ee04e0d6da986bd78eb1fdd2178d04693723da3a8f95d42f4" // of "1234\n"
	if rows := in.Must(t, "agent", "journal", id); strings.Contains(rows, pin) || !strings.Contains(rows, "/open") {
		t.Errorf("the journal has the sum of what it may not read:\n%s", rows)
	}
}
