package agents

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// TestTheInvariantOfADrain checks that the phases take at most 65 s together and leave a
// buffer. What is unset has its default: 5, 45, 10 and 5 s.
func TestTheInvariantOfADrain(t *testing.T) {
	const unset = -1
	for _, row := range []struct {
		preStop, step, cleanup, buffer time.Duration // in seconds
		total                          time.Duration
		at, want                       string
	}{
		{unset, unset, unset, unset, 65 * time.Second, "", ""},
		{5, 45, 10, 5, 65 * time.Second, "", ""},
		{0, 0, 0, 1, time.Second, "", ""},
		{6, 44, unset, unset, 65 * time.Second, "", ""},
		{6, unset, unset, unset, 66 * time.Second, "[drain]", "these phases take 1m6s: pre_stop 6s, step 45s, cleanup 10s, buffer 5s"},
		{unset, unset, unset, 6, 66 * time.Second, "[drain]", "these phases take 1m6s"},
		{5, 45, 15, 0, 65 * time.Second, "[drain buffer]", "write more than 0s"},
	} {
		length := func(s time.Duration) *durationpb.Duration {
			if s == unset {
				return nil
			}
			return durationpb.New(s * time.Second)
		}
		spec := &agboxv1.AgentSpec{Drain: &agboxv1.AgentDrain{
			PreStop: length(row.preStop), Step: length(row.step), Cleanup: length(row.cleanup), Buffer: length(row.buffer),
		}}
		at, got := "", ""
		Check(spec, func(path []any, format string, args ...any) { at, got = fmt.Sprint(path), fmt.Sprintf(format, args...) })
		if at != row.at || !strings.Contains(got, row.want) || row.want == "" && got != "" {
			t.Errorf("%v: %s %q; want %s %q", row, at, got, row.at, row.want)
		}
		if total := RulesOf(spec).Drain.Total(); total != row.total {
			t.Errorf("%v: it takes %v; want %v", row, total, row.total)
		}
	}
}

func TestWhatADrainWasFor(t *testing.T) {
	h := working(t)
	if got := DrainedFor(h.r); got != forDrain {
		t.Errorf("of its sandbox: %v", got)
	}
	h.add(&agboxv1.AgentEvent{
		Type:    agboxv1.AgentEventType_AGENT_PAUSE_REQUESTED,
		Details: &agboxv1.AgentEvent_Pause{Pause: &agboxv1.AgentPause{Reason: forRequest}},
	})
	if got := DrainedFor(h.r); got != forRequest {
		t.Errorf("on request: %v", got)
	}
	idle := working(t)
	idle.pauseFor(forApproval)
	if got := DrainedFor(idle.r); got != agboxv1.PauseReason_PAUSE_REASON_IDLE {
		t.Errorf("while it idles: %v", got)
	}
}
