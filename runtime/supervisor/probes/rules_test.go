package probes

import (
	"testing"
	"time"

	"github.com/agbox/agbox/agents/journal"
)

// The rows are the matrix of the requirements: liveness and readiness for each condition of
// a program.
func TestTheDecisionMatrix(t *testing.T) {
	for _, row := range []struct {
		name         string
		in           Reported
		alive, ready bool
	}{
		{"booting", Reported{State: journal.Booting}, true, false},
		{"hydrating", Reported{State: journal.Hydrating}, true, false},
		{"ready", Reported{State: journal.Ready}, true, true},
		{"executing", Reported{State: journal.Executing}, true, true},
		{"draining", Reported{State: journal.Draining}, true, false},
		{"terminated", Reported{State: journal.Terminated}, false, false},
		{"blocked", Reported{State: journal.Executing, Lag: maxLag + time.Millisecond}, false, false},
		{"late, but not blocked", Reported{State: journal.Executing, Lag: maxLag}, true, true},
		{"pool exhausted", Reported{State: journal.Executing, PoolEmpty: true}, false, false},
		// The ladder of silences tells it, not a probe.
		{"silent", Reported{State: journal.Executing, Silent: time.Hour}, true, true},
	} {
		if alive, ready := row.in.Alive(), row.in.Ready(); alive != row.alive || ready != row.ready {
			t.Errorf("%s: %v and %v; want %v and %v", row.name, alive, ready, row.alive, row.ready)
		}
	}
}

func TestAProbeOfReports(t *testing.T) {
	live, ready := Target{Report: true, MaxSilence: 20 * time.Second}, Target{Report: true}
	for _, row := range []struct {
		in          Reported
		live, ready Result
	}{
		{Reported{State: journal.Executing, Silent: 20 * time.Second}, Passed, Passed},
		{Reported{State: journal.Executing, Silent: 20*time.Second + 1}, Failed, Passed},
		{Reported{State: journal.Hydrating}, Passed, Failed},
		{Reported{State: journal.Executing, Lag: time.Minute}, Failed, Failed},
	} {
		if l, r := row.in.Check(live), row.in.Check(ready); l != row.live || r != row.ready {
			t.Errorf("%+v: %v and %v; want %v and %v", row.in, l, r, row.live, row.ready)
		}
	}
}
