package agents

import (
	"strings"
	"testing"
	"time"
)

func TestTheLadderOfSilence(t *testing.T) {
	ladder := rules().Heartbeat
	for _, row := range []struct {
		silent time.Duration
		want   string
	}{
		{0, "ACTIVE"}, {15 * time.Second, "ACTIVE"}, {16 * time.Second, "ACTIVE"}, {17 * time.Second, "WARNING"},
		{30 * time.Second, "UNHEALTHY"}, {44 * time.Second, "UNHEALTHY"}, {45 * time.Second, "ESCALATED"},
		{90 * time.Second, "ESCALATED"}, {91 * time.Second, "CRASHED"}, {299 * time.Second, "CRASHED"}, {300 * time.Second, "ZOMBIE"},
	} {
		if got := strings.TrimPrefix(Liveness(row.silent, true, ladder).String(), "AGENT_LIVENESS_"); got != row.want {
			t.Errorf("silent for %v it is %s; want %s", row.silent, got, row.want)
		}
		if got := Liveness(row.silent, false, ladder).String(); got != "AGENT_LIVENESS_UNSPECIFIED" {
			t.Errorf("without a beat it is %s", got)
		}
	}
	ladder.Required = true
	if got := Liveness(time.Minute, false, ladder).String(); got != "AGENT_LIVENESS_ESCALATED" {
		t.Errorf("with required beats and none it is %s", got)
	}
}

// TestEachSilenceChangesTheLevel: a millisecond before it the level is the same as after the
// silence before, at it the level is another one.
func TestEachSilenceChangesTheLevel(t *testing.T) {
	odd := rules().Heartbeat
	odd.Interval, odd.Stale, odd.Escalate, odd.Crashed, odd.Zombie = 10*time.Millisecond, 12300*time.Microsecond, 20*time.Millisecond, 30500*time.Microsecond, 40*time.Millisecond
	for _, ladder := range []HeartbeatRules{rules().Heartbeat, odd} {
		before := time.Duration(0)
		for _, silence := range ladder.Silences() {
			if silence != silence.Truncate(time.Millisecond) {
				t.Errorf("%v are no whole milliseconds", silence)
			}
			if Liveness(silence-time.Millisecond, true, ladder) != Liveness(before, true, ladder) || Liveness(silence, true, ladder) == Liveness(before, true, ladder) {
				t.Errorf("the level changes at another silence than %v: %v, then %v, then %v", silence,
					Liveness(before, true, ladder), Liveness(silence-time.Millisecond, true, ladder), Liveness(silence, true, ladder))
			}
			before = silence
		}
		if before < ladder.Zombie || Liveness(ladder.HungAfter(), true, ladder).String() != "AGENT_LIVENESS_CRASHED" {
			t.Errorf("the last silence is %v; processes are looked at after %v", before, ladder.HungAfter())
		}
	}
}
