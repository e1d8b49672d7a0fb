package server

import (
	"context"
	"time"

	"google.golang.org/grpc"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/daemon/ledger"
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
			if !choose(item.Event.GetSandboxId()) {
				continue
			}
			item.Event.Replay = item.Position <= at.Last
			if err := stream.Send(&agboxv1.WatchEventsResponse{Position: item.Position, Event: item.Event}); err != nil {
				return err
			}
			told, due = item.Position, nil
		}
		switch {
		case at.At-told >= eventPage:
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

// selector reports whether a sandbox has the labels. Labels never change, so the stream
// keeps each result.
func (s *eventCalls) selector(ctx context.Context, labels map[string]string) func(string) bool {
	if len(labels) == 0 {
		return func(string) bool { return true }
	}
	known := make(map[string]bool)
	return func(id string) bool {
		fits, seen := known[id]
		if !seen {
			sb, living := s.ledger.Sandbox(id)
			if !living {
				sb, _ = s.ledger.Past(ctx, id)
			}
			fits = sb.Spec != nil && selected(sb.Spec, labels)
			known[id] = fits
		}
		return fits
	}
}
