package client

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

const (
	pending = agboxv1.SandboxState_SANDBOX_STATE_PENDING
	ready   = agboxv1.SandboxState_SANDBOX_STATE_READY
	failed  = agboxv1.SandboxState_SANDBOX_STATE_FAILED
	stopped = agboxv1.SandboxState_SANDBOX_STATE_STOPPED
	gone    = agboxv1.SandboxState_SANDBOX_STATE_DELETED
	leaving = agboxv1.SandboxState_SANDBOX_STATE_DELETING
)

// life is a sandbox that moves one state further with each event that is read.
type life struct {
	mu sync.Mutex // guards now and asked
	// asked counts the handles that were asked for.
	now, asked int
	states     []agboxv1.SandboxState
	// rush moves it to its last state as soon as an event is read.
	rush bool
	// restarted is the index of the state from which on it is not restarting.
	restarted int
	// ended is the index of the event that says that nothing of it runs any more, if not 0.
	ended int
}

func (l *life) handle() *agboxv1.SandboxHandle {
	l.mu.Lock()
	defer l.mu.Unlock()
	h := &agboxv1.SandboxHandle{SandboxId: "box", State: l.states[l.now], LastEventSequence: uint64(l.now + 1), Restarting: l.now < l.restarted}
	h.Ended = l.ended > 0 && l.now >= l.ended && h.State == leaving
	if h.State == failed {
		h.ErrorCode, h.ErrorMessage = "IMAGE_NOT_FOUND", "There is no image x."
	}
	return h
}

func (l *life) questions() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.asked
}

func (l *life) serve(t *testing.T) *Client {
	return serve(t, &script{
		get: func(*agboxv1.GetSandboxRequest) (*agboxv1.GetSandboxResponse, error) {
			l.mu.Lock()
			l.asked++
			l.mu.Unlock()
			return &agboxv1.GetSandboxResponse{Sandbox: l.handle()}, nil
		},
		events: func(in *agboxv1.SubscribeSandboxEventsRequest, s eventStream) error {
			for i := int(in.GetFromSequence()); i < len(l.states); i++ {
				l.mu.Lock()
				l.now = max(l.now, i)
				if l.rush {
					l.now = len(l.states) - 1
				}
				l.mu.Unlock()
				ev := event(i+1, l.states[i])
				if l.ended > 0 && i == l.ended {
					ev.EventType = agboxv1.EventType_SANDBOX_ENDED
				}
				_ = s.Send(ev)
			}
			if l.states[len(l.states)-1] == gone {
				return nil
			}
			<-s.Context().Done()
			return nil
		},
	}).client()
}

func TestWaitReadyEndsWhenTheSandboxIsReady(t *testing.T) {
	l := &life{states: []agboxv1.SandboxState{pending, pending, pending, ready}}
	var seen []uint64
	h, err := l.serve(t).WaitReady(t.Context(), "name", OnEvent(0, func(ev *agboxv1.SandboxEvent) { seen = append(seen, ev.GetSequence()) }))
	if err != nil || h.GetState() != ready {
		t.Fatalf("got %v, %v", h, err)
	}
	if fmt.Sprint(seen) != "[1 2 3 4]" {
		t.Errorf("saw the events %v", seen)
	}
}

func TestAWaitBeginsWithWhatIsKnown(t *testing.T) {
	l := &life{states: []agboxv1.SandboxState{pending, pending, ready}}
	var seen []uint64
	show := func(ev *agboxv1.SandboxEvent) { seen = append(seen, ev.GetSequence()) }
	c := l.serve(t)
	h, err := c.WaitReady(t.Context(), "box", OnEventSince(l.handle(), show))
	if err != nil || h.GetState() != ready || fmt.Sprint(seen) != "[2 3]" || l.questions() != 1 {
		t.Errorf("got %v, %v after the events %v and %d questions", h, err, seen, l.questions())
	}
	if again, err := c.WaitReady(t.Context(), "box", OnEventSince(h, show)); err != nil || again != h || l.questions() != 1 {
		t.Errorf("what is ready is asked for again: %v, %v", again, err)
	}
}

func TestWaitReadyWaitsForTheEndOfARestart(t *testing.T) {
	l := &life{states: []agboxv1.SandboxState{ready, stopped, pending, ready}, restarted: 2}
	if h, err := l.serve(t).WaitReady(t.Context(), "box"); err != nil || h.GetLastEventSequence() != 4 {
		t.Errorf("got %v, %v; want the sandbox after its fourth event", h, err)
	}
	l = &life{states: []agboxv1.SandboxState{ready, stopped}, restarted: 1} // somebody cancels it by a stop
	if _, err := l.serve(t).WaitReady(t.Context(), "box"); !errors.Is(err, ErrWrongState) {
		t.Errorf("got %v", err)
	}
}

func TestWaitReadyEndsWithTheErrorOfAFailedSandbox(t *testing.T) {
	l := &life{states: []agboxv1.SandboxState{pending, failed}}
	_, err := l.serve(t).WaitReady(t.Context(), "box")
	var e *Error
	if !errors.As(err, &e) || e.Reason != "IMAGE_NOT_FOUND" || !errors.Is(err, ErrNotFound) || err.Error() != "There is no image x." {
		t.Errorf("got %v", err)
	}
}

func TestAWaitThatCanNoLongerSucceedEnds(t *testing.T) {
	for _, last := range []agboxv1.SandboxState{stopped, leaving, gone} {
		l := &life{states: []agboxv1.SandboxState{pending, last}}
		if _, err := l.serve(t).WaitReady(t.Context(), "box"); !errors.Is(err, ErrWrongState) {
			t.Errorf("%v while waiting for READY: %v", last, err)
		}
	}
	l := &life{states: []agboxv1.SandboxState{ready, leaving}}
	if _, err := l.serve(t).WaitStopped(t.Context(), "box"); !errors.Is(err, ErrWrongState) {
		t.Errorf("deletion while waiting for STOPPED: %v", err)
	}
}

func TestWaitReadyEndsWellThoughTheSandboxWasReadyForAMomentOnly(t *testing.T) {
	for name, l := range map[string]*life{
		"seen in an event":    {states: []agboxv1.SandboxState{pending, ready, stopped}, rush: true},
		"before it was asked": {states: []agboxv1.SandboxState{pending, ready, stopped}, now: 2},
	} {
		h, err := l.serve(t).WaitReady(t.Context(), "box", OnEvent(1, func(*agboxv1.SandboxEvent) {}))
		if err != nil || h.GetState() != stopped {
			t.Errorf("%s: got %v, %v", name, h, err)
		}
	}
	l := &life{states: []agboxv1.SandboxState{pending, ready, failed}, rush: true}
	if h, err := l.serve(t).WaitReady(t.Context(), "box"); err == nil {
		t.Errorf("one that was ready and has failed: %v", h)
	}
}

func TestWaitStoppedEndsWellThoughTheSandboxWasStoppedForAMomentOnly(t *testing.T) {
	l := &life{states: []agboxv1.SandboxState{ready, ready, stopped, pending, ready}, rush: true}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // it waited for ever
	defer cancel()
	if h, err := l.serve(t).WaitStopped(ctx, "box"); err != nil || h.GetState() != ready {
		t.Errorf("got %v, %v", h, err)
	}
}

func TestWaitStoppedAndWaitDeletedEnd(t *testing.T) {
	l := &life{states: []agboxv1.SandboxState{ready, ready, stopped}}
	if h, err := l.serve(t).WaitStopped(t.Context(), "box"); err != nil || h.GetState() != stopped {
		t.Errorf("got %v, %v", h, err)
	}
	l = &life{states: []agboxv1.SandboxState{ready, failed, leaving, gone}}
	if err := l.serve(t).WaitDeleted(t.Context(), "box"); err != nil {
		t.Error(err)
	}
}

func TestWaitEndedEndsBeforeTheSandboxIsDeleted(t *testing.T) {
	l := &life{states: []agboxv1.SandboxState{ready, leaving, leaving}, ended: 2}
	if err := l.serve(t).WaitEnded(t.Context(), "box"); err != nil {
		t.Error(err)
	}
	l = &life{states: []agboxv1.SandboxState{ready, leaving, gone}} // one of which nothing ran
	if err := l.serve(t).WaitEnded(t.Context(), "box"); err != nil {
		t.Error(err)
	}
	l = &life{states: []agboxv1.SandboxState{ready, leaving, leaving, gone}, ended: 2}
	if err := l.serve(t).WaitDeleted(t.Context(), "box"); err != nil || l.handle().GetState() != gone {
		t.Errorf("the wait for its end has ended while it is %v: %v", l.handle().GetState(), err)
	}
}

func TestASandboxThatIsNotKnownIsDeleted(t *testing.T) {
	h := serve(t, &script{get: func(*agboxv1.GetSandboxRequest) (*agboxv1.GetSandboxResponse, error) {
		return nil, reject(codes.NotFound, agboxv1.ErrorReason_SANDBOX_NOT_FOUND, "There is no sandbox box.")
	}})
	if err := h.client().WaitDeleted(t.Context(), "box"); err != nil {
		t.Error(err)
	}
}

func TestAWaitGoesOnFromTheStateWhenItsEventsAreNoLongerKept(t *testing.T) {
	var looks int
	h := serve(t, &script{
		get: func(*agboxv1.GetSandboxRequest) (*agboxv1.GetSandboxResponse, error) {
			looks++
			return &agboxv1.GetSandboxResponse{Sandbox: &agboxv1.SandboxHandle{
				SandboxId: "box", State: []agboxv1.SandboxState{pending, ready}[min(looks-1, 1)], LastEventSequence: 90}}, nil
		},
		events: func(in *agboxv1.SubscribeSandboxEventsRequest, s eventStream) error {
			if in.GetFromSequence() < 90 {
				return reject(codes.OutOfRange, agboxv1.ErrorReason_CURSOR_OUT_OF_RANGE, "Too old.")
			}
			return s.Send(event(91, ready))
		},
	})
	if _, err := h.client().WaitReady(t.Context(), "box", OnEvent(5, func(*agboxv1.SandboxEvent) {})); err != nil {
		t.Error(err)
	}
}
