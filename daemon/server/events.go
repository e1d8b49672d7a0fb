package server

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/daemon/machine"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// eventPage is the maximum number of events read at a time. No read transaction is open
// while events are sent.
const eventPage = 256

// passedAfter is the maximum time until a watch reports that it has passed events that
// are not selected. It reports them earlier after eventPage events and when the daemon
// stops. It is much shorter than the minute for which retention keeps every exec, so even
// after a crash no such event is missing where the watch resumes.
const passedAfter = 10 * time.Second

// eventCalls implements the calls that stream events.
type eventCalls struct {
	ledger *ledger.Ledger
	life   *lifetime
}

// SubscribeSandboxEvents replays and follows one sandbox. Both are the same read after a
// cursor, so there is neither a gap nor a duplicate between them.
func (s *eventCalls) SubscribeSandboxEvents(req *agboxv1.SubscribeSandboxEventsRequest, stream grpc.ServerStreamingServer[agboxv1.SandboxEvent]) error {
	ctx := stream.Context()
	sb, err := s.ledger.FindSandbox(ctx, req.GetSandboxId())
	if err != nil {
		return err
	}
	at, err := s.ledger.OpenEvents(ctx, sb.ID, req.GetFromSequence())
	if err != nil {
		return err
	}
	view := eventView{exact: req.GetExactTypes(), main: req.GetIncludeMain()}
	if req.GetIncludeCurrentSnapshot() {
		if err := s.sendSnapshot(stream, sb, view); err != nil {
			return err
		}
	}
	for {
		changed := s.ledger.Changed(sb.ID)
		events, more, err := s.ledger.NextEvents(ctx, at, eventPage)
		if err != nil {
			return err
		}
		for _, ev := range events {
			if ev.GetSequence() < sb.Accepted {
				continue // from before somebody had it
			}
			shown := view.show(ev)
			if shown == nil {
				continue
			}
			shown.Replay = ev.GetSequence() <= at.Last
			if err := stream.Send(shown); err != nil {
				return err
			}
			if ev.GetEventType() == agboxv1.EventType_SANDBOX_DELETED {
				return nil
			}
		}
		if more {
			continue
		}
		if sb.Over() {
			return at.Dropped()
		}
		if err := s.life.wait(ctx, changed); err != nil {
			return err
		}
	}
}

// sendSnapshot sends the current state: the newest event again, and one event for each
// running exec.
func (s *eventCalls) sendSnapshot(stream grpc.ServerStreamingServer[agboxv1.SandboxEvent], sb ledger.Sandbox, view eventView) error {
	newest, err := s.ledger.NewestEvent(stream.Context(), sb, view.visible)
	if err != nil {
		return err
	}
	newest = view.show(newest)
	newest.Replay, newest.Snapshot = true, true
	for _, ev := range append([]*agboxv1.SandboxEvent{newest}, view.running(sb)...) {
		if err := stream.Send(ev); err != nil {
			return err
		}
	}
	return nil
}

// WatchEvents replays and follows all sandboxes.
func (s *eventCalls) WatchEvents(req *agboxv1.WatchEventsRequest, stream grpc.ServerStreamingServer[agboxv1.WatchEventsResponse]) error {
	ctx := stream.Context()
	if req.GetLiveOnly() && req.GetAfterPosition() != 0 {
		return invalid("after_position and live_only exclude each other: give one of them.")
	}
	at, err := s.ledger.OpenAllEvents(ctx, req.GetAfterPosition())
	if err != nil {
		return err
	}
	if req.GetLiveOnly() {
		at.At = at.Last
	}
	if err := stream.Send(&agboxv1.WatchEventsResponse{Position: at.At, NewestPosition: at.Newest}); err != nil {
		return err
	}
	choose := s.selector(ctx, req.GetLabelSelector())
	told := at.At
	var due <-chan time.Time // when to report what was passed; nil: nothing to report
	tell := func() error {
		told, due = at.At, nil
		return stream.Send(&agboxv1.WatchEventsResponse{Position: told})
	}
	for {
		changed := s.ledger.Changed("")
		events, more, err := s.ledger.NextOfAll(ctx, at, eventPage)
		if err != nil {
			return err
		}
		for _, item := range events {
			if !choose(item.Event) {
				continue
			}
			item.Event.Replay = item.Position <= at.Last
			if err := stream.Send(&agboxv1.WatchEventsResponse{Position: item.Position, Event: item.Event}); err != nil {
				return err
			}
			told, due = item.Position, nil
		}
		switch {
		case at.At-told >= eventPage, at.At > told && told < at.Last && !more: // who wants what there was can end
			if err := tell(); err != nil {
				return err
			}
		case at.At > told && due == nil:
			due = time.After(passedAfter)
		}
		if more {
			continue
		}
		select {
		case <-changed:
		case <-due:
			err = tell()
		case <-s.life.stopping:
			if at.At > told {
				_ = tell() // if it fails, the reason for the end cannot be sent either
			}
			err = errStopping()
		case <-ctx.Done():
			err = ctx.Err()
		}
		if err != nil {
			return err
		}
	}
}

// choice is what a stream knows of a sandbox.
type choice struct{ ahead, fits bool }

// selector reports whether an event is of a sandbox that somebody has, with the labels. Labels never change
// from then on, so the stream keeps each result.
func (s *eventCalls) selector(ctx context.Context, labels map[string]string) func(*agboxv1.SandboxEvent) bool {
	known := make(map[string]choice)
	return func(ev *agboxv1.SandboxEvent) bool {
		id := ev.GetSandboxId()
		one, seen := known[id]
		accepted := ev.GetEventType() == agboxv1.EventType_SANDBOX_ACCEPTED
		if !seen || accepted {
			one = s.choose(ctx, ev, accepted, labels)
			known[id] = one
		}
		if ev.GetEventType() == agboxv1.EventType_SANDBOX_DELETED {
			delete(known, id) // nothing of it follows
		}
		return !one.ahead && one.fits
	}
}

// choose decides about the events of a sandbox from one on.
func (s *eventCalls) choose(ctx context.Context, ev *agboxv1.SandboxEvent, accepted bool, labels map[string]string) choice {
	if accepted && (ev.GetSandboxPhase().GetPool() != "" || len(labels) == 0) {
		return choice{ahead: ev.GetSandboxPhase().GetPool() != "", fits: true}
	}
	sb, living := s.ledger.Sandbox(ev.GetSandboxId())
	if !living {
		sb, _ = s.ledger.Past(ctx, ev.GetSandboxId())
	}
	return choice{ahead: sb.Pool != "" || ev.GetSequence() < sb.Accepted, fits: len(labels) == 0 || sb.Spec != nil && selected(sb.Spec, labels)}
}

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
	case agboxv1.EventType_SANDBOX_ENDED:
		ev.EventType = agboxv1.EventType_SANDBOX_DELETE_REQUESTED // that may come several times
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
