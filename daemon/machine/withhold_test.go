package machine

import (
	"testing"
	"time"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/runtime"
)

func TestAWithheldServiceIsStoppedAndStartedAgain(t *testing.T) {
	live := withDB(stream(accepted, ready), serviceReady, 0, &agboxv1.ServiceEventDetails{Start: 1, Failures: 2, HooksDone: 1})
	starting := withDB(live, serviceStarted, 0, &agboxv1.ServiceEventDetails{Start: 2})
	withheld := withDB(live, serviceFailed, 0, &agboxv1.ServiceEventDetails{
		Start: 1, Failures: 2, HooksDone: 1, ErrorCode: agboxv1.ErrorReason_SERVICE_WITHHELD.String(), ErrorMessage: "why",
	})
	rules := dbRules
	rules.Withheld = map[string]string{"db": "why"}
	making := seenDB(runtime.StateRunning, "")
	making.Services = map[string]ServiceSeen{"db": {Making: true}}
	for _, tc := range []struct {
		name   string
		record Record
		seen   Observation
		rules  Rules
		after  time.Duration
		do     Verb
		event  agboxv1.EventType
	}{
		{"it is stopped", live, seenDB(runtime.StateRunning, runtime.Healthy), rules, 0, StopServices, 0},
		{"also while it starts", starting, seenDB(runtime.StateRunning, runtime.HealthStarting), rules, 0, StopServices, 0},
		{"then that is recorded", live, seenDB(runtime.StateExited, ""), rules, 0, Emit, serviceFailed},
		{"a start that was decided is not executed", starting, seenDB(runtime.StateExited, ""), rules, 0, Emit, serviceFailed},
		{"it is left alone", withheld, seenDB(runtime.StateExited, ""), rules, time.Hour, Rest, 0},
		{"one that somebody starts is stopped", withheld, seenDB(runtime.StateRunning, ""), rules, time.Hour, StopServices, 0},
		{"one that is being made is waited for", live, making, rules, 0, Rest, 0},
		{"afterwards it is started again", withheld, seenDB(runtime.StateExited, ""), dbRules, backoff(2), Emit, serviceStarted},
		{"a new sandbox is made with all its services", withDB(stream(accepted), serviceStarted, 0, nil), seenDB(runtime.StateRunning, ""), rules, time.Second, RunHook, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			step := Next(tc.record, tc.seen, tc.rules, t0.Add(tc.after))
			if step.Do != tc.do || step.Event.GetEventType() != tc.event {
				t.Fatalf("Next says %s %s, want %s %s", step.Do, step.Event.GetEventType(), tc.do, tc.event)
			}
			d := step.Event.GetService()
			if tc.event == serviceFailed && (d.GetErrorCode() != agboxv1.ErrorReason_SERVICE_WITHHELD.String() || d.GetFailures() != tc.record.Services["db"].Failures) {
				t.Errorf("the event is %v", d)
			}
		})
	}
	if got := ServiceTrouble(withheld, dbRules.Services); got != "why" {
		t.Errorf("the sandbox says %q", got)
	}
}
