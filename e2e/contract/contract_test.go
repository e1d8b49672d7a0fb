package contract

import (
	"fmt"
	"testing"

	"github.com/agbox/agbox/e2e/internal/harness"
)

// lines are what clients of the published contract rely on, under the numbers of
// the list by which they were checked. A line may have several cases.
var lines = []struct {
	number int
	says   string
	holds  func(*testing.T, *world)
}{
	{3, "errors carry the published reasons", errorReasons},
	{4, "idle_ttl takes 0 and less than a second; its stop has the reason idle_ttl", idleTTL},
	{5, "companions do not hold READY up", companionsDoNotGate},
	{6, "companion_containers is a map in config_yaml", companionMap},
	{12, "empty requests are refused in words", emptyRequests},
	{12, "every registered service has a health", healthOfEveryService},
}

func TestPublishedContract(t *testing.T) {
	in := harness.New(t)
	in.Must(t, "daemon", "start")
	for _, line := range lines {
		t.Run(fmt.Sprintf("line %02d, %s", line.number, line.says), func(t *testing.T) {
			t.Parallel()
			line.holds(t, &world{publishedClient: connect(t, in.Socket()), in: in})
		})
	}
}

// world is a daemon and a client of the published contract.
type world struct {
	*publishedClient
	in *harness.Install
}

// create makes a sandbox and waits until it is READY, as the published SDKs do.
func (w *world) create(t *testing.T, spec fields) string {
	t.Helper()
	return w.createFrom(t, fields{"create_spec": spec})
}

func (w *world) createFrom(t *testing.T, request fields) string {
	t.Helper()
	id := w.call(t, "CreateSandbox", request).text("sandbox.sandbox_id")
	w.await(t, id, "SANDBOX_STATE_READY")
	return id
}

// await waits for a state: a look, then events from there on, then a look again.
func (w *world) await(t *testing.T, id, state string) answer {
	t.Helper()
	for {
		box := w.call(t, "GetSandbox", fields{"sandbox_id": id})
		switch box.text("sandbox.state") {
		case state:
			return box
		case "SANDBOX_STATE_FAILED":
			t.Fatalf("%s has failed: %s", id, box.text("sandbox.error_message"))
		}
		events := w.subscribe(t, "SubscribeSandboxEvents", fields{"sandbox_id": id, "from_sequence": box.text("sandbox.last_event_sequence")})
		if _, err := events.next(t); err != nil {
			t.Fatalf("the events of %s ended before it was %s: %v", id, state, err)
		}
	}
}
