package runtimetest

import (
	"context"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/agbox/agbox/internal/ids"
	"github.com/agbox/agbox/runtime"
)

var eventCases = map[string]func(*testing.T, *subject){
	"EventsOfTheInstallArriveInOrder": func(t *testing.T, s *subject) {
		id, _ := s.created(t)
		stream := s.listen(t, time.Time{})
		must(t, s.Engine.StartContainer(t.Context(), id))
		s.Kill(t, id)
		must(t, s.Engine.RemoveContainer(t.Context(), id))
		for _, action := range []string{"start", "die", "destroy"} {
			event := stream.await(t, action)
			if event.ObjectID != id || event.Identity != s.identity(runtime.RolePrimary) || event.Time.IsZero() {
				t.Errorf("the event is %+v, want one of container %s", event, id)
			}
		}
	},
	"EventsOfOtherInstallsDoNotArrive": func(t *testing.T, s *subject) {
		stream := s.listen(t, time.Time{})
		claimed := s.identity(runtime.RolePrimary)
		claimed.InstallID = ids.New()
		foreign := s.Foreign(t, "agbox-foreign-"+s.sandboxID, claimed)
		must(t, s.Engine.StartContainer(t.Context(), foreign))
		ours := s.started(t)
		stream.await(t, "start")
		for _, event := range stream.seen {
			if event.ObjectID != ours {
				t.Errorf("an event of another install arrived: %+v", event)
			}
		}
	},
	"PastEventsAreReplayed": func(t *testing.T, s *subject) {
		before := time.Now().Add(-time.Second)
		id := s.started(t)
		stream := s.listen(t, before)
		if event := stream.await(t, "start"); event.ObjectID != id {
			t.Errorf("the event is %+v, want one of container %s", event, id)
		}
	},
	"TheStreamEndsWithItsContext": func(t *testing.T, s *subject) {
		stream := s.listen(t, time.Time{})
		stream.cancel()
		wantClass(t, <-stream.ended, errdefs.ErrUnavailable)
	},
}

// listener collects the events of a stream.
type listener struct {
	cancel context.CancelFunc
	events chan runtime.Event
	ended  chan error
	seen   []runtime.Event
}

// listen opens a stream of events.
func (s *subject) listen(t *testing.T, since time.Time) *listener {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	l := &listener{cancel: cancel, events: make(chan runtime.Event, 1000), ended: make(chan error, 1)}
	ready := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		l.ended <- s.Engine.Events(ctx, s.InstallID, since, func() { close(ready) }, func(e runtime.Event) { l.events <- e })
	}()
	t.Cleanup(func() { cancel(); <-done })
	select {
	case <-ready:
	case err := <-l.ended:
		t.Fatalf("the stream did not open: %v", err)
	}
	return l
}

// await returns the next event with the action and skips others.
func (l *listener) await(t *testing.T, action string) runtime.Event {
	t.Helper()
	for {
		select {
		case event := <-l.events:
			l.seen = append(l.seen, event)
			if event.Action == action {
				return event
			}
		case err := <-l.ended:
			t.Fatalf("the stream ended before %q: %v", action, err)
		case <-t.Context().Done():
			t.Fatalf("no event %q", action)
		}
	}
}
