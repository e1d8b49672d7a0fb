package client

import (
	"context"
	"errors"
	"fmt"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"google.golang.org/grpc/codes"
)

// verdict tells whether a wait is over: done, or an error that says why it can
// no longer succeed.
type verdict func(*agboxv1.SandboxHandle) (done bool, err error)

// WaitOption changes a wait.
type WaitOption func(*waiting)

type waiting struct {
	seen func(*agboxv1.SandboxEvent)
	// from is the sequence of the last event read, once fromSet is set.
	from    uint64
	fromSet bool
	// state is the one that this event has led to.
	state agboxv1.SandboxState
}

// OnEvent has f called with each event after the sequence number after that
// passes during the wait, in order and from the goroutine that waits.
func OnEvent(after uint64, f func(*agboxv1.SandboxEvent)) WaitOption {
	return func(w *waiting) { w.seen, w.from, w.fromSet = f, after, true }
}

// WaitReady waits until execs can run in the sandbox and returns it. A sandbox
// that fails ends the wait with its error, one that is stopped or deleted with
// ErrWrongState. One that was ready during the wait and has stopped since, as with a
// short idle_ttl, is returned. With WithAutostart it starts a daemon that crashes
// meanwhile again; one that was stopped is waited for.
func (c *Client) WaitReady(ctx context.Context, sandbox string, opts ...WaitOption) (*agboxv1.SandboxHandle, error) {
	return c.wait(withRestart(ctx), sandbox, func(h *agboxv1.SandboxHandle) (bool, error) {
		switch h.GetState() {
		case agboxv1.SandboxState_SANDBOX_STATE_READY:
			return true, nil
		case agboxv1.SandboxState_SANDBOX_STATE_FAILED:
			return true, SandboxError(h)
		case agboxv1.SandboxState_SANDBOX_STATE_STOPPED:
			return true, overtaken(h, "was stopped before it was ready; `agbox start` starts it again")
		case agboxv1.SandboxState_SANDBOX_STATE_DELETING, agboxv1.SandboxState_SANDBOX_STATE_DELETED:
			return true, overtaken(h, "was deleted before it was ready")
		}
		return false, nil
	}, opts)
}

// WaitStopped waits until the containers of the sandbox are stopped. A sandbox
// that fails meanwhile ends the wait with its error, one that is deleted with
// ErrWrongState.
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

// WaitDeleted waits until nothing is left of the sandbox but its history. Give
// it the id: the name of a deleted sandbox may belong to another. A sandbox
// that is not known has been deleted.
func (c *Client) WaitDeleted(ctx context.Context, sandbox string, opts ...WaitOption) error {
	_, err := c.wait(ctx, sandbox, func(h *agboxv1.SandboxHandle) (bool, error) {
		return h.GetState() == agboxv1.SandboxState_SANDBOX_STATE_DELETED, nil
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

// wait looks at the sandbox, and again after each event that changes its state.
func (c *Client) wait(ctx context.Context, sandbox string, judge verdict, opts []WaitOption) (*agboxv1.SandboxHandle, error) {
	w := waiting{}
	for _, opt := range opts {
		opt(&w)
	}
	for {
		out, err := c.GetSandbox(ctx, sandbox)
		if err != nil {
			return nil, err
		}
		h := out.GetSandbox()
		if done, err := judge(h); done || err != nil {
			if err != nil && h.GetState() == agboxv1.SandboxState_SANDBOX_STATE_STOPPED && w.passed(ctx, c, h, judge) {
				err = nil
			}
			return h, err
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

// passed tells whether what is waited for has come and gone since the last event
// that was read.
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

// untilChange reads events until one shows another state than h.
func (w *waiting) untilChange(ctx context.Context, c *Client, h *agboxv1.SandboxHandle) error {
	for ev, err := range c.Events(ctx, h.GetSandboxId(), w.from) {
		if err != nil && errors.Is(err, ErrOutOfRange) && w.from < h.GetLastEventSequence() {
			// What came in between is no longer kept: go on from what h shows.
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
		if ev.GetSandboxState() != h.GetState() {
			return nil
		}
	}
	return &Error{Code: codes.Internal, Message: fmt.Sprintf("The events of sandbox %s ended before the sandbox did.", h.GetSandboxId())}
}
