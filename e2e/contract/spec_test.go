package contract

import (
	"slices"
	"testing"

	"github.com/agbox/agbox/e2e/internal/harness"
)

func idleTTL(t *testing.T, w *world) {
	never := w.create(t, fields{"image": harness.ImageBusybox, "idle_ttl": "0s"})
	inYAML := w.createFrom(t, fields{"config_yaml": []byte("image: " + harness.ImageBusybox + "\nidle_ttl: \"0\"\n")})
	soon := w.call(t, "CreateSandbox", fields{"create_spec": fields{"image": harness.ImageBusybox, "idle_ttl": "0.2s"}}).text("sandbox.sandbox_id")
	// The published daemon says why in this word, of the request and of the stop.
	events := w.subscribe(t, "SubscribeSandboxEvents", fields{"sandbox_id": soon}).until(t, eventIs("SANDBOX_STOPPED"))
	asked := events[slices.IndexFunc(events, eventIs("SANDBOX_STOP_REQUESTED"))]
	if got := asked.text("sandbox_phase.reason"); got != "idle_ttl" {
		t.Errorf("the reason of an idle stop is %q, want idle_ttl", got)
	}
	for _, id := range []string{never, inYAML} {
		if state := w.call(t, "GetSandbox", fields{"sandbox_id": id}).text("sandbox.state"); state != "SANDBOX_STATE_READY" {
			t.Errorf("a sandbox whose idle_ttl is 0 is %s", state)
		}
	}
}

func eventIs(typ string) func(answer) bool {
	return func(ev answer) bool { return ev.text("event_type") == typ }
}
