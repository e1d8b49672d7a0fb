package agent

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

// TestTheNextLevelIsNeitherEarlyNorLate: just before it the level is the same, at it the
// level is another one.
func TestTheNextLevelIsNeitherEarlyNorLate(t *testing.T) {
	ladder := rules().Heartbeat
	for silent := time.Duration(0); silent < 6*time.Minute; silent += 500 * time.Millisecond {
		level, next := Liveness(silent, true, ladder), ladder.nextLevel(silent)
		if next == 0 {
			if silent < ladder.Zombie {
				t.Fatalf("no level after %v", silent)
			}
			continue
		}
		if got := Liveness(next-time.Nanosecond, true, ladder); got != level {
			t.Fatalf("from %v the level changes before %v", silent, next)
		}
		if got := Liveness(next, true, ladder); got == level {
			t.Fatalf("from %v the level does not change at %v", silent, next)
		}
	}
}
