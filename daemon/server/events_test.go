package server

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/agbox/agbox/daemon/machine"
	"github.com/agbox/agbox/internal/fault"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// watched is a server with the READY sandboxes "mine" and "other" with different labels.
// Their events have the positions 1 to 4.
func watched(t *testing.T) *eventCalls {
	t.Helper()
	book, _ := newLedger(t)
	s := &eventCalls{life: newLifetime(), ledger: book}
	for _, id := range []string{"mine", "other"} {
		sb, err := s.ledger.Create(t.Context(), id, &agboxv1.CreateSpec{Image: "img", Labels: map[string]string{"of": id}})
		if err == nil {
			_, err = s.ledger.Emit(t.Context(), sb.Record, &agboxv1.SandboxEvent{EventType: agboxv1.EventType_SANDBOX_READY})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// ranExec runs a command in a sandbox, which makes two events.
func ranExec(t *testing.T, s *eventCalls, sandboxID, execID string) {
	t.Helper()
	_, err := s.ledger.AcceptExec(t.Context(), &agboxv1.CreateExecRequest{SandboxId: sandboxID, ExecId: execID, Command: []string{"x"}}, "boot")
	if err == nil {
		err = s.ledger.EndExec(t.Context(), sandboxID, &agboxv1.ExecEventDetails{ExecId: execID, ExecState: agboxv1.ExecState_EXEC_STATE_FINISHED})
	}
	if err != nil {
		t.Fatal(err)
	}
}

// watchStream is the call of a client that receives everything.
type watchStream struct {
	grpc.ServerStream
	ctx context.Context

	mu     sync.Mutex
	events []uint64 // their positions
	passed []uint64 // the positions of messages without an event
}

func (s *watchStream) Context() context.Context { return s.ctx }

func (s *watchStream) Send(m *agboxv1.WatchEventsResponse) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m.GetEvent() != nil {
		s.events = append(s.events, m.GetPosition())
	} else {
		s.passed = append(s.passed, m.GetPosition())
	}
	return nil
}

// want compares what has arrived once nothing more happens.
func (s *watchStream) want(t *testing.T, when string, events, passed []uint64) {
	t.Helper()
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.Equal(s.events, events) || !slices.Equal(s.passed, passed) {
		t.Errorf("%s: events %v, passed %v; want %v, %v", when, s.events, s.passed, events, passed)
	}
}

// watch starts a call for the events of "mine". The function that it returns ends the
// call.
func watch(t *testing.T, s *eventCalls, after uint64) (*watchStream, func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	stream, ended := &watchStream{ctx: ctx}, make(chan error, 1)
	go func() {
		ended <- s.WatchEvents(&agboxv1.WatchEventsRequest{AfterPosition: after, LabelSelector: map[string]string{"of": "mine"}}, stream)
	}()
	synctest.Wait() // it has seen what there was
	return stream, func() error {
		cancel()
		return <-ended
	}
}

func TestAWatchWithLabelsIsToldWhatItHasPassed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := watched(t)
		stream, end := watch(t, s, 0)
		for _, id := range []string{"x0", "x1"} {
			ranExec(t, s, "other", id)
			synctest.Wait()
		}
		mine := []uint64{1, 2}
		stream.want(t, "when it has seen what there was", mine, []uint64{0, 4})
		time.Sleep(passedAfter)
		stream.want(t, "after a while", mine, []uint64{0, 4, 8})
		time.Sleep(time.Hour)
		stream.want(t, "while nothing happens", mine, []uint64{0, 4, 8})
		for i := range eventPage / 2 {
			ranExec(t, s, "other", fmt.Sprintf("y%d", i))
		}
		stream.want(t, "after many", mine, []uint64{0, 4, 8, 8 + eventPage})
		if err := end(); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}

func TestAWatchWithLabelsGoesOnThoughWhatItHasPassedIsRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := watched(t)
		stream, end := watch(t, s, 0)
		ranExec(t, s, "other", "x0")
		synctest.Wait()
		close(s.life.stopping)
		stream.want(t, "when the daemon stops", []uint64{1, 2}, []uint64{0, 4, 6})
		if err := end(); fault.ReasonOf(err) != agboxv1.ErrorReason_DAEMON_STOPPING {
			t.Errorf("%v, want DAEMON_STOPPING", err)
		}
		if err := s.ledger.Forget(t.Context(), "other", []machine.TrimPart{{ExecID: "x0", Events: []uint64{3, 4}}}); err != nil {
			t.Fatal(err)
		}
		ranExec(t, s, "mine", "m0")
		s.life = newLifetime() // the next daemon
		stream, end = watch(t, s, slices.Max(append(stream.passed, stream.events...)))
		stream.want(t, "after it", []uint64{7, 8}, []uint64{6})
		if err := end(); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}

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
