package client

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"google.golang.org/grpc/codes"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// Events replays the events of one sandbox and continues with new ones, without gaps or
// duplicates, even if the daemon restarts. It starts after the sequence number after; 0
// means everything that is kept. It ends after SANDBOX_DELETED or with an error. A
// sequence that is no longer kept is ErrOutOfRange.
func (c *Client) Events(ctx context.Context, sandbox string, after uint64) iter.Seq2[*agboxv1.SandboxEvent, error] {
	return sequence(func(give func(*agboxv1.SandboxEvent) bool) error {
		return follow(ctx, c, c.sandboxes.SubscribeSandboxEvents, ends, func() *agboxv1.SubscribeSandboxEventsRequest {
			return &agboxv1.SubscribeSandboxEventsRequest{
				SandboxId: sandbox, FromSequence: after, ExactTypes: true, IncludeMain: true,
			}
		}, func(ev *agboxv1.SandboxEvent) (bool, error) {
			if ev.GetSequence() <= after {
				return false, nil
			}
			// Use the id after the first event: the name may pass to another sandbox.
			sandbox, after = ev.GetSandboxId(), ev.GetSequence()
			return !give(ev), nil
		})
	})
}

// WatchOptions selects the events of WatchEvents.
type WatchOptions struct {
	// After is the position of the last event seen; 0 replays everything that is kept.
	After uint64
	// LiveOnly skips events before the call. After must be 0.
	LiveOnly bool
	// Labels must all match. An empty map selects all sandboxes.
	Labels map[string]string
}

// WatchEvents replays and follows the events of all sandboxes in commit order, even if
// the daemon restarts. The first item has no event: it confirms the watch and has its
// start position. It ends with an error, or when the caller ends its loop.
func (c *Client) WatchEvents(ctx context.Context, o WatchOptions) iter.Seq2[*agboxv1.WatchEventsResponse, error] {
	return c.watchEvents(ctx, o, false)
}

// watchEvents is WatchEvents. past means that it has only events, and ends with the newest that is kept now.
func (c *Client) watchEvents(ctx context.Context, o WatchOptions, past bool) iter.Seq2[*agboxv1.WatchEventsResponse, error] {
	return sequence(func(give func(*agboxv1.WatchEventsResponse) bool) error {
		at, newest, stands := o.After, uint64(0), false
		over := func() bool { return past && at >= newest }
		return follow(ctx, c, c.sandboxes.WatchEvents, endless, func() *agboxv1.WatchEventsRequest {
			return &agboxv1.WatchEventsRequest{
				AfterPosition: at,
				// Once a position is known, a new stream must not skip later events.
				LiveOnly:      o.LiveOnly && !stands,
				LabelSelector: o.Labels,
			}
		}, func(m *agboxv1.WatchEventsResponse) (bool, error) {
			if m.GetEvent() == nil {
				if stands {
					// No selected event lies before this position.
					at = max(at, m.GetPosition())
					return over(), nil
				}
				at, newest, stands = m.GetPosition(), m.GetNewestPosition(), true
				return over() || !past && !give(m), nil
			}
			if m.GetPosition() <= at {
				return false, nil
			}
			at, stands = m.GetPosition(), true
			return !give(m) || over(), nil
		})
	})
}

// PastEvents returns the events of one sandbox after a sequence number, up to the current
// newest.
func (c *Client) PastEvents(ctx context.Context, sandbox string, after uint64) iter.Seq2[*agboxv1.SandboxEvent, error] {
	return func(yield func(*agboxv1.SandboxEvent, error) bool) {
		out, err := c.GetSandbox(ctx, sandbox)
		if err != nil {
			yield(nil, err)
			return
		}
		newest := out.GetSandbox().GetLastEventSequence()
		if newest == after {
			return
		}
		// The daemon refuses a sequence beyond the newest.
		for ev, err := range c.Events(ctx, out.GetSandbox().GetSandboxId(), after) {
			if !yield(ev, err) || err != nil || ev.GetSequence() >= newest {
				return
			}
		}
	}
}

// PastEventsOfAll returns the events of all sandboxes after a position, up to the newest
// that is kept now.
func (c *Client) PastEventsOfAll(ctx context.Context, after uint64) iter.Seq2[*agboxv1.WatchEventsResponse, error] {
	return c.watchEvents(ctx, WatchOptions{After: after}, true)
}

// verdict reports whether a wait is over: done, or an error that says why the wait can no
// longer succeed.
type verdict func(*agboxv1.SandboxHandle) (done bool, err error)

// WaitOption is an option of a wait.
type WaitOption func(*waiting)

type waiting struct {
	seen func(*agboxv1.SandboxEvent)
	// from is the sequence of the last event read, if fromSet is set.
	from    uint64
	fromSet bool
	// state is the state after that event.
	state agboxv1.SandboxState
	// known is what the caller has of the sandbox already.
	known *agboxv1.SandboxHandle
}

// OnEvent calls f for each event after the sequence number after that occurs during the
// wait, in order and from the waiting goroutine.
func OnEvent(after uint64, f func(*agboxv1.SandboxEvent)) WaitOption {
	return func(w *waiting) { w.seen, w.from, w.fromSet = f, after, true }
}

// OnEventSince is OnEvent after a handle that the daemon has just answered with. It is not asked for again.
func OnEventSince(h *agboxv1.SandboxHandle, f func(*agboxv1.SandboxEvent)) WaitOption {
	return func(w *waiting) {
		OnEvent(h.GetLastEventSequence(), f)(w)
		w.known = h
	}
}

// WaitReady waits until execs can run in the sandbox and returns it. It returns the
// sandbox's error if the sandbox fails, and ErrWrongState if it is stopped or deleted. A
// sandbox that was READY during the wait and has stopped since, for example because of a
// short idle_ttl, is returned. A sandbox that is being restarted is READY afterwards.
func (c *Client) WaitReady(ctx context.Context, sandbox string, opts ...WaitOption) (*agboxv1.SandboxHandle, error) {
	return c.wait(ctx, sandbox, func(h *agboxv1.SandboxHandle) (bool, error) {
		switch h.GetState() {
		case agboxv1.SandboxState_SANDBOX_STATE_READY:
			return !h.GetRestarting(), nil
		case agboxv1.SandboxState_SANDBOX_STATE_FAILED:
			return true, SandboxError(h)
		case agboxv1.SandboxState_SANDBOX_STATE_STOPPED:
			if h.GetRestarting() {
				return false, nil
			}
			return true, overtaken(h, "was stopped before it was ready; `agbox start` starts it again")
		case agboxv1.SandboxState_SANDBOX_STATE_DELETING, agboxv1.SandboxState_SANDBOX_STATE_DELETED:
			return true, overtaken(h, "was deleted before it was ready")
		}
		return false, nil
	}, opts)
}

// WaitStopped waits until the containers of the sandbox are stopped. It returns the
// sandbox's error if the sandbox fails meanwhile, and ErrWrongState if it is deleted. A sandbox
// that was STOPPED during the wait and has been started since, for example by a restart, is
// returned.
func (c *Client) WaitStopped(ctx context.Context, sandbox string, opts ...WaitOption) (*agboxv1.SandboxHandle, error) {
	return c.wait(ctx, sandbox, func(h *agboxv1.SandboxHandle) (bool, error) {
		switch h.GetState() {
		case agboxv1.SandboxState_SANDBOX_STATE_STOPPED:
			return true, nil
		case agboxv1.SandboxState_SANDBOX_STATE_FAILED:
			return true, SandboxError(h)
		case agboxv1.SandboxState_SANDBOX_STATE_DELETING, agboxv1.SandboxState_SANDBOX_STATE_DELETED:
			return true, overtaken(h, "was deleted before it had stopped")
		}
		return false, nil
	}, opts)
}

// WaitEnded waits until a sandbox that is being deleted runs nothing any more. The daemon removes
// what is left of it after that. Give it the id, as to WaitDeleted.
func (c *Client) WaitEnded(ctx context.Context, sandbox string, opts ...WaitOption) error {
	return c.waitGone(ctx, sandbox, (*agboxv1.SandboxHandle).GetEnded, opts)
}

// WaitDeleted waits until only the history of the sandbox is left. Give it the id,
// because the name of a deleted sandbox may belong to another one. An unknown sandbox
// counts as deleted.
func (c *Client) WaitDeleted(ctx context.Context, sandbox string, opts ...WaitOption) error {
	return c.waitGone(ctx, sandbox, func(*agboxv1.SandboxHandle) bool { return false }, opts)
}

// waitGone waits until a sandbox is deleted, or enough.
func (c *Client) waitGone(ctx context.Context, sandbox string, enough func(*agboxv1.SandboxHandle) bool, opts []WaitOption) error {
	_, err := c.wait(ctx, sandbox, func(h *agboxv1.SandboxHandle) (bool, error) {
		return h.GetState() == agboxv1.SandboxState_SANDBOX_STATE_DELETED || enough(h), nil
	}, opts)
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	return err
}

func overtaken(h *agboxv1.SandboxHandle, what string) error {
	return &Error{
		Code:     codes.FailedPrecondition,
		Reason:   agboxv1.ErrorReason_SANDBOX_INVALID_STATE.String(),
		Message:  fmt.Sprintf("Sandbox %s %s.", h.GetSandboxId(), what),
		Metadata: map[string]string{"sandbox_id": h.GetSandboxId()},
	}
}

// wait checks the sandbox, now and after each event that changes its state.
func (c *Client) wait(ctx context.Context, sandbox string, judge verdict, opts []WaitOption) (*agboxv1.SandboxHandle, error) {
	w := waiting{}
	for _, opt := range opts {
		opt(&w)
	}
	for {
		h := w.known
		if w.known = nil; h == nil {
			out, err := c.sandboxes.GetSandbox(ctx, &agboxv1.GetSandboxRequest{SandboxId: sandbox, HandleOnly: true}, idempotent)
			if err != nil {
				return nil, err
			}
			h = out.GetSandbox()
		}
		if done, err := judge(h); done || err != nil {
			if err != nil && h.GetState() == agboxv1.SandboxState_SANDBOX_STATE_STOPPED && w.passed(ctx, c, h, judge) {
				err = nil
			}
			return h, err
		}
		if w.state == agboxv1.SandboxState_SANDBOX_STATE_STOPPED && w.passed(ctx, c, h, judge) {
			return h, nil // it was stopped, and started again
		}
		sandbox = h.GetSandboxId()
		if !w.fromSet {
			w.from, w.fromSet = h.GetLastEventSequence(), true
		}
		if err := w.untilChange(ctx, c, h); err != nil {
			return nil, err
		}
	}
}

// passed reports whether the awaited state has been reached and left again since the last
// event that was read.
func (w *waiting) passed(ctx context.Context, c *Client, h *agboxv1.SandboxHandle, judge verdict) bool {
	met := func(state agboxv1.SandboxState) bool {
		done, err := judge(&agboxv1.SandboxHandle{SandboxId: h.GetSandboxId(), State: state})
		return done && err == nil
	}
	if met(w.state) {
		return true
	}
	if !w.fromSet || w.from >= h.GetLastEventSequence() {
		return false
	}
	for ev, err := range c.Events(ctx, h.GetSandboxId(), w.from) {
		if err != nil || met(ev.GetSandboxState()) {
			return err == nil
		}
		if ev.GetSequence() >= h.GetLastEventSequence() {
			return false
		}
	}
	return false
}

// untilChange reads events until one has another state than h, or says that its processes have ended.
func (w *waiting) untilChange(ctx context.Context, c *Client, h *agboxv1.SandboxHandle) error {
	for ev, err := range c.Events(ctx, h.GetSandboxId(), w.from) {
		if err != nil && errors.Is(err, ErrOutOfRange) && w.from < h.GetLastEventSequence() {
			// The events in between are no longer kept. Continue from h.
			w.from = h.GetLastEventSequence()
			return w.untilChange(ctx, c, h)
		}
		if err != nil {
			return err
		}
		w.from, w.state = ev.GetSequence(), ev.GetSandboxState()
		if w.seen != nil {
			w.seen(ev)
		}
		if ev.GetSandboxState() != h.GetState() || ev.GetEventType() == agboxv1.EventType_SANDBOX_ENDED {
			return nil
		}
	}
	return &Error{Code: codes.Internal, Message: fmt.Sprintf("The events of sandbox %s ended before the sandbox did.", h.GetSandboxId())}
}
