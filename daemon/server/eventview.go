package server

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"google.golang.org/protobuf/types/known/timestamppb"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/daemon/machine"
)

// firstOwnType is the first event type that is not in the published contract. Published
// clients cannot decode these types.
const firstOwnType = agboxv1.EventType_SANDBOX_RESUME_REQUESTED

// preparing has the phases that stand for our own event types in SANDBOX_PREPARING.
var preparing = map[agboxv1.EventType]string{
	agboxv1.EventType_SANDBOX_REVIVED:         "revived",
	agboxv1.EventType_SANDBOX_SERVICE_STARTED: "service",
	agboxv1.EventType_SANDBOX_FILES_COPIED:    "copied",
	agboxv1.EventType_SANDBOX_RENAMED:         "renamed",
}

// eventView selects what a subscriber sees of a sandbox's events.
type eventView struct {
	// exact sends our own event types unchanged.
	exact bool
	// main sends the events of the image's own command.
	main bool
}

// show converts a stored event, which it may modify, for the subscriber. It returns nil
// if the event is hidden.
func (v eventView) show(ev *agboxv1.SandboxEvent) *agboxv1.SandboxEvent {
	typ := ev.GetEventType()
	switch {
	case !v.visible(ev):
		return nil
	case v.exact || typ < firstOwnType:
		return ev
	}
	ev.ExactType = typ.Enum()
	switch typ {
	case agboxv1.EventType_SANDBOX_RESUME_REQUESTED:
		ev.EventType = agboxv1.EventType_SANDBOX_ACCEPTED
		return ev
	case agboxv1.EventType_EXEC_FOUND:
		ev.EventType = agboxv1.EventType_EXEC_STARTED
		return ev
	}
	ev.EventType = agboxv1.EventType_SANDBOX_PREPARING
	phase := &agboxv1.SandboxPhaseDetails{Phase: preparing[typ], Reason: ev.GetSandboxPhase().GetReason()}
	if service := ev.GetService().GetName(); service != "" {
		phase.Reason = "service " + service
	}
	ev.Details = &agboxv1.SandboxEvent_SandboxPhase{SandboxPhase: phase}
	return ev
}

// visible reports whether show returns an event.
func (v eventView) visible(ev *agboxv1.SandboxEvent) bool { return v.main || !ev.GetExec().GetMain() }

// running returns the running execs for the snapshot of a sandbox, each as the event that
// started it, with the sequence of the newest event.
func (v eventView) running(sb ledger.Sandbox) []*agboxv1.SandboxEvent {
	execs := slices.SortedFunc(maps.Values(sb.Execs), func(a, b machine.Exec) int { return cmp.Compare(a.Sequence, b.Sequence) })
	var events []*agboxv1.SandboxEvent
	for _, e := range execs {
		if e.Main && !v.main {
			continue
		}
		events = append(events, &agboxv1.SandboxEvent{
			EventId:      fmt.Sprintf("%s/snapshot/%s", sb.ID, e.ID),
			Sequence:     sb.LastSequence,
			SandboxId:    sb.ID,
			EventType:    agboxv1.EventType_EXEC_STARTED,
			OccurredAt:   timestamppb.New(e.StartedAt),
			Replay:       true,
			Snapshot:     true,
			SandboxState: sb.State,
			Details: &agboxv1.SandboxEvent_Exec{Exec: &agboxv1.ExecEventDetails{
				ExecId: e.ID, Name: e.Name, ExecState: agboxv1.ExecState_EXEC_STATE_RUNNING, Main: e.Main,
			}},
		})
	}
	return events
}
