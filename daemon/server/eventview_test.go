package server

import (
	"testing"

	"google.golang.org/protobuf/proto"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// lastPublishedType is the newest event type that the published contract has.
const lastPublishedType = agboxv1.EventType_SANDBOX_SERVICE_FAILED

func TestEveryEventTypeIsSentAsAPublishedOneUnlessExactTypesAreAskedFor(t *testing.T) {
	for number, name := range agboxv1.EventType_name {
		typ := agboxv1.EventType(number)
		stored := &agboxv1.SandboxEvent{SandboxId: "a", Sequence: 7, EventType: typ, Details: &agboxv1.SandboxEvent_Service{
			Service: &agboxv1.ServiceEventDetails{Name: "db"},
		}}
		if exact := (eventView{exact: true}).show(proto.CloneOf(stored)); !proto.Equal(exact, stored) {
			t.Errorf("asked for as it is, %s is sent as %v", name, exact)
		}
		shown := eventView{}.show(proto.CloneOf(stored))
		switch {
		case typ <= lastPublishedType:
			if !proto.Equal(shown, stored) {
				t.Errorf("%s is sent as %v", name, shown)
			}
		case shown.GetEventType() > lastPublishedType, shown.GetExactType() != typ, shown.GetSequence() != 7,
			shown.GetEventType() == agboxv1.EventType_SANDBOX_PREPARING && shown.GetSandboxPhase().GetPhase() == "":
			t.Errorf("%s is sent as %v, want a published type, its phase and the exact type", name, shown)
		}
	}
}

// TestAFoundExecIsSentAsOneThatStarts: clients of the published contract follow it as such.
func TestAFoundExecIsSentAsOneThatStarts(t *testing.T) {
	exec := &agboxv1.ExecEventDetails{ExecId: "x", Name: "job", ExecState: agboxv1.ExecState_EXEC_STATE_RUNNING}
	shown := eventView{}.show(&agboxv1.SandboxEvent{EventType: agboxv1.EventType_EXEC_FOUND, Details: &agboxv1.SandboxEvent_Exec{Exec: proto.CloneOf(exec)}})
	if shown.GetEventType() != agboxv1.EventType_EXEC_STARTED || shown.GetExactType() != agboxv1.EventType_EXEC_FOUND || !proto.Equal(shown.GetExec(), exec) {
		t.Errorf("it is sent as %v", shown)
	}
}

func TestTheOwnCommandOfASandboxIsShownToWhoAsksForIt(t *testing.T) {
	started := &agboxv1.SandboxEvent{EventType: agboxv1.EventType_EXEC_STARTED, Details: &agboxv1.SandboxEvent_Exec{
		Exec: &agboxv1.ExecEventDetails{ExecId: "main-a", Main: true},
	}}
	if shown := (eventView{}).show(started); shown != nil {
		t.Errorf("its events are sent: %v", shown)
	}
	if shown := (eventView{main: true}).show(started); shown != started {
		t.Errorf("asked for, it is %v", shown)
	}
}
