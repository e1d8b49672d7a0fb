package agents

import (
	"testing"
	"time"
)

func TestASignalIsDueWhileAnIncarnationRuns(t *testing.T) {
	r := spawned(t).begun().r
	seen := Seen{Sandbox: SandboxReady, Exec: ExecRunning}
	quiet := rules()
	quiet.ReadyStart = false
	begun := r.Incarnation.BegunAt
	for _, row := range []struct {
		last, now time.Time
		want      string
	}{
		{time.Time{}, begun.Add(time.Hour), "rest"},
		{begun.Add(-time.Hour), begun.Add(SignalWait), "signal"},
		{begun.Add(time.Second), begun.Add(SignalWait + time.Second), "signal"},
	} {
		seen.Signal = row.last
		if got := say(Next(r, seen, quiet, row.now)); got != row.want {
			t.Errorf("tried at %v: %s; want %s", row.last.Sub(begun), got, row.want)
		}
	}
	seen.Signal = begun.Add(time.Second)
	if step := Next(r, seen, quiet, begun); step.Do != Rest || !step.Wake.Equal(begun.Add(SignalWait+time.Second)) {
		t.Errorf("before it is due: %s, %v", say(step), step.Wake)
	}
	seen.Exec, seen.Sandbox, r.Incarnation = ExecUnknown, SandboxMaking, nil
	if step := Next(r, seen, quiet, begun.Add(time.Hour)); step.Do == Signal {
		t.Error("a signal is tried although nothing runs")
	}
}
