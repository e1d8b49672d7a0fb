package view

import (
	"encoding/json"
	"math"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// members returns the JSON of a message, by its keys.
func members(t *testing.T, m proto.Message) map[string]string {
	t.Helper()
	text, err := JSON(m)
	if err != nil {
		t.Fatal(err)
	}
	var raw map[string]json.RawMessage
	if err := json.Unmarshal(text, &raw); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	out := make(map[string]string, len(raw))
	for key, value := range raw {
		out[key] = string(value)
	}
	return out
}

func wantMembers(t *testing.T, m proto.Message, want map[string]string) {
	t.Helper()
	got := members(t, m)
	for key, value := range want {
		if got[key] != value {
			t.Errorf("%s of %T is %q, want %q", key, m, got[key], value)
		}
	}
}

func TestWordsAndNumbers(t *testing.T) {
	wantMembers(t, &agboxv1.SandboxHandle{
		State: agboxv1.SandboxState_SANDBOX_STATE_READY, LastEventSequence: math.MaxUint64, CreatedAt: timestamppb.New(time.Unix(1, 5e8)),
		Labels: map[string]string{"b": "2", "a": "<1>\x1b"},
	}, map[string]string{
		"state": `"ready"`, "last_event_sequence": "18446744073709551615", "created_at": `"1970-01-01T00:00:01.5Z"`, "state_changed_at": "null",
		"labels": `{"a":"<1>\u001b","b":"2"}`, "services": "[]", "name": `""`, "degraded": "false",
	})
	for d, want := range map[time.Duration]string{0: "0", time.Minute: "60", 1142961 * time.Microsecond: "1.142961", 1: "0.000000001", -1500 * time.Millisecond: "-1.5", math.MinInt64: "-9223372036.854775808"} {
		wantMembers(t, &agboxv1.ExecStatus{UserTime: durationpb.New(d)}, map[string]string{"user_time": want})
	}
	wantMembers(t, &agboxv1.ExecStatus{UserTime: durationpb.New(1500 * time.Millisecond), Command: []string{"a", "b"}}, map[string]string{"user_time": "1.5", "command": `["a","b"]`, "finished_at": "null"})
	wantMembers(t, &agboxv1.ContainerStats{CpuPercent: math.NaN()}, map[string]string{"cpu_percent": "null"})
	wantMembers(t, &agboxv1.DoctorFinding{Kind: agboxv1.DoctorKind_DOCTOR_KIND_SANDBOX_RECORD}, map[string]string{"kind": `"sandbox_record"`})
	wantMembers(t, &agboxv1.SandboxHandle{State: 4711}, map[string]string{"state": `"4711"`})
}

func TestWordsOfAgentsAndEventsAreInCapitals(t *testing.T) {
	wantMembers(t, &agboxv1.Agent{State: agboxv1.AgentState_AGENT_STATE_PENDING}, map[string]string{"state": `"PENDING"`})
	wantMembers(t, &agboxv1.AgentLease{Mode: agboxv1.LeaseMode_LEASE_MODE_SHARED}, map[string]string{"mode": `"shared"`})
	wantMembers(t, &agboxv1.SandboxEvent{EventType: agboxv1.EventType_SANDBOX_READY}, map[string]string{"event_type": `"SANDBOX_READY"`})
}

func TestOnlyWhatHasEndedHasAnExitCode(t *testing.T) {
	for want, list := range map[string][]proto.Message{
		"null": {
			&agboxv1.ExecStatus{State: agboxv1.ExecState_EXEC_STATE_RUNNING}, &agboxv1.ExecStatus{State: agboxv1.ExecState_EXEC_STATE_FAILED},
			&agboxv1.ExecEventDetails{ExecState: agboxv1.ExecState_EXEC_STATE_RUNNING}, &agboxv1.ContainerStatus{State: "running"},
			&agboxv1.IncarnationEnd{Kind: agboxv1.IncarnationEndKind_INCARNATION_END_KIND_LOST},
		},
		"127": {&agboxv1.ExecStatus{State: agboxv1.ExecState_EXEC_STATE_FAILED, ExitCode: 127}},
		"0": {
			&agboxv1.ExecStatus{State: agboxv1.ExecState_EXEC_STATE_FINISHED}, &agboxv1.ExecEventDetails{ExecState: agboxv1.ExecState_EXEC_STATE_CANCELLED},
			&agboxv1.ContainerStatus{State: "exited"}, &agboxv1.IncarnationEnd{Kind: agboxv1.IncarnationEndKind_INCARNATION_END_KIND_EXITED},
		},
	} {
		for _, m := range list {
			wantMembers(t, m, map[string]string{"exit_code": want})
		}
	}
}

func TestOnlyTheSetMemberOfAOneofIsThere(t *testing.T) {
	got := members(t, &agboxv1.SandboxEvent{Details: &agboxv1.SandboxEvent_Exec{Exec: &agboxv1.ExecEventDetails{ExecId: "x"}}})
	if _, has := got["service"]; has || got["exec"] == "" {
		t.Errorf("got %v", got)
	}
}
