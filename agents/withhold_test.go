package agents

import (
	"testing"
	"time"
)

func TestAStartWaitsUntilServicesAreStopped(t *testing.T) {
	h := spawned(t).begun()
	begun := h.r.Incarnation.BegunAt
	seen := Seen{Sandbox: SandboxReady, Services: true}
	if step := Next(h.r, seen, rules(), begun); step.Do != Rest || !step.Wake.Equal(begun.Add(withholdGrace)) {
		t.Errorf("while a service runs: %s until %v", step.Do, step.Wake)
	}
	if step := Next(h.r, seen, rules(), begun.Add(withholdGrace)); step.Do != Start {
		t.Errorf("a service that cannot be stopped: %s", step.Do)
	}
	seen.Services = false
	if step := Next(h.r, seen, rules(), begun.Add(time.Millisecond)); step.Do != Start {
		t.Errorf("after the service is stopped: %s", step.Do)
	}
}
