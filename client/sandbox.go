package client

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// Ping returns the identity and the state of the daemon.
func (c *Client) Ping(ctx context.Context) (*agboxv1.PingResponse, error) {
	return unary(ctx, c, agboxv1.SandboxServiceClient.Ping, &agboxv1.PingRequest{}, idempotent)
}

// CreateSandbox creates a sandbox and returns when it is accepted, in state PENDING.
// WaitReady waits until it is READY. It sets sandbox_id
// and request_key if they are empty, so repeating the call after a lost answer does not
// make a second sandbox. A caller who repeats it with the same id and spec gets the same
// sandbox.
func (c *Client) CreateSandbox(ctx context.Context, in *agboxv1.CreateSandboxRequest) (*agboxv1.SandboxHandle, error) {
	out, err := unary(ctx, c, agboxv1.SandboxServiceClient.CreateSandbox, repeatableSandbox(in), idempotent)
	return out.GetSandbox(), err
}

// GetSandbox returns one sandbox with its spec and containers. It also returns a deleted
// one whose record is kept.
func (c *Client) GetSandbox(ctx context.Context, sandbox string) (*agboxv1.GetSandboxResponse, error) {
	in := &agboxv1.GetSandboxRequest{SandboxId: sandbox}
	return unary(ctx, c, agboxv1.SandboxServiceClient.GetSandbox, in, idempotent)
}

// ListOptions selects sandboxes.
type ListOptions struct {
	// IncludeDeleted adds deleted sandboxes, of which only the history is left.
	IncludeDeleted bool
	// Labels must all match. An empty map selects all sandboxes.
	Labels map[string]string
}

// ListSandboxes returns sandboxes, newest first.
func (c *Client) ListSandboxes(ctx context.Context, o ListOptions) ([]*agboxv1.SandboxHandle, error) {
	in := &agboxv1.ListSandboxesRequest{IncludeDeleted: o.IncludeDeleted, LabelSelector: o.Labels}
	out, err := unary(ctx, c, agboxv1.SandboxServiceClient.ListSandboxes, in, idempotent)
	return out.GetSandboxes(), err
}

// ResumeSandbox starts a STOPPED sandbox again. WaitReady waits until it is READY.
func (c *Client) ResumeSandbox(ctx context.Context, sandbox string) error {
	in := &agboxv1.ResumeSandboxRequest{SandboxId: sandbox}
	_, err := unary(ctx, c, agboxv1.SandboxServiceClient.ResumeSandbox, in, idempotent)
	return err
}

// StopSandbox stops the containers and keeps them. Running execs end. WaitStopped waits
// until it is done.
func (c *Client) StopSandbox(ctx context.Context, sandbox string) error {
	in := &agboxv1.StopSandboxRequest{SandboxId: sandbox}
	_, err := unary(ctx, c, agboxv1.SandboxServiceClient.StopSandbox, in, idempotent)
	return err
}

// StopSandboxNow is StopSandbox that does not wait for agents to save their work. It may
// follow a StopSandbox that waits for them.
func (c *Client) StopSandboxNow(ctx context.Context, sandbox string) error {
	in := &agboxv1.StopSandboxRequest{SandboxId: sandbox, Now: true}
	_, err := unary(ctx, c, agboxv1.SandboxServiceClient.StopSandbox, in, idempotent)
	return err
}

// RestartSandbox stops a sandbox and starts it again, also if the caller ends in between.
// now does not wait for agents to save their work. WaitReady waits until it is READY again.
func (c *Client) RestartSandbox(ctx context.Context, sandbox string, now bool) error {
	in := &agboxv1.RestartSandboxRequest{SandboxId: sandbox, Now: now}
	_, err := unary(ctx, c, agboxv1.SandboxServiceClient.RestartSandbox, in, idempotent)
	return err
}

// RenameSandbox gives a sandbox another name, also while it is stopped. Host names in its
// containers stay as they are. Give it the id, so that it can be repeated if its answer is
// lost.
func (c *Client) RenameSandbox(ctx context.Context, id, name string) error {
	in := &agboxv1.RenameSandboxRequest{SandboxId: id, Name: name}
	_, err := unary(ctx, c, agboxv1.SandboxServiceClient.RenameSandbox, in, idempotent)
	return err
}

// DeleteSandbox removes containers and network. The output of its commands stays as long as
// the daemon keeps its record. WaitDeleted waits until it is done. Give WaitDeleted the id,
// because the name becomes free at once.
func (c *Client) DeleteSandbox(ctx context.Context, sandbox string) error {
	return c.DeleteSandboxWith(ctx, sandbox, DeleteOptions{})
}

// DeleteOptions says how a sandbox is removed.
type DeleteOptions struct {
	// Now does not wait for agents to save their work.
	Now bool
	// SpareAgents refuses the removal, with the reason SANDBOX_HAS_AGENTS, if agents in the
	// sandbox have not ended.
	SpareAgents bool
	// RemoveLogs also removes the output of its commands.
	RemoveLogs bool
}

// DeleteSandboxWith is DeleteSandbox with options.
func (c *Client) DeleteSandboxWith(ctx context.Context, sandbox string, o DeleteOptions) error {
	in := &agboxv1.DeleteSandboxRequest{SandboxId: sandbox, Now: o.Now, SpareAgents: o.SpareAgents, RemoveLogs: o.RemoveLogs}
	_, err := unary(ctx, c, agboxv1.SandboxServiceClient.DeleteSandbox, in, idempotent)
	return err
}

// DeleteSandboxes deletes all sandboxes with the labels, of which there must be at least
// one, and returns their ids. It is not repeated if its answer is lost, because a second
// answer would lack the ids of the first one.
func (c *Client) DeleteSandboxes(ctx context.Context, labels map[string]string) ([]string, error) {
	in := &agboxv1.DeleteSandboxesRequest{LabelSelector: labels}
	out, err := unary(ctx, c, agboxv1.SandboxServiceClient.DeleteSandboxes, in, atMostOnce)
	return out.GetDeletedSandboxIds(), err
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
}

// OnEvent calls f for each event after the sequence number after that occurs during the
// wait, in order and from the waiting goroutine.
func OnEvent(after uint64, f func(*agboxv1.SandboxEvent)) WaitOption {
	return func(w *waiting) { w.seen, w.from, w.fromSet = f, after, true }
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

// WaitDeleted waits until only the history of the sandbox is left. Give it the id,
// because the name of a deleted sandbox may belong to another one. An unknown sandbox
// counts as deleted.
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

// wait checks the sandbox, now and after each event that changes its state.
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

// untilChange reads events until one has another state than h.
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
		if ev.GetSandboxState() != h.GetState() {
			return nil
		}
	}
	return &Error{Code: codes.Internal, Message: fmt.Sprintf("The events of sandbox %s ended before the sandbox did.", h.GetSandboxId())}
}

// Stats yields the resource usage of the containers of the given sandboxes, or of all if
// none is given, every second. It continues if the daemon restarts. It ends with an
// error, when the caller ends its loop, when none of the given sandboxes exists any more,
// or, with once, after the first item.
func (c *Client) Stats(ctx context.Context, sandboxes []string, once bool) iter.Seq2[*agboxv1.WatchStatsResponse, error] {
	return func(yield func(*agboxv1.WatchStatsResponse, error) bool) {
		f := feed[agboxv1.WatchStatsResponse]{
			closes: true,
			open: func(ctx context.Context, api agboxv1.SandboxServiceClient) (grpc.ServerStreamingClient[agboxv1.WatchStatsResponse], error) {
				return api.WatchStats(ctx, &agboxv1.WatchStatsRequest{SandboxIds: sandboxes, Once: once})
			},
			take: func(m *agboxv1.WatchStatsResponse) (bool, error) { return !yield(m, nil) || once, nil },
		}
		if err := f.run(ctx, c); err != nil {
			yield(nil, err)
		}
	}
}

// Processes lists the processes in the primary of a READY sandbox.
func (c *Client) Processes(ctx context.Context, sandbox string) (*agboxv1.ListProcessesResponse, error) {
	in := &agboxv1.ListProcessesRequest{SandboxId: sandbox}
	return unary(ctx, c, agboxv1.SandboxServiceClient.ListProcesses, in, idempotent)
}

// Uncovered is what came into the writable mounts of a sandbox after it was made, and that
// this machine executes or agbox reads: the sandbox may have written it.
type Uncovered struct {
	// Paths are absolute paths on the host. A folder of git stands for a repository.
	Paths []string
	// NotSearched are mounts that are too large to find everything.
	NotSearched []string
}

// Uncovered returns what has no cover in a sandbox's writable mounts. The sandbox may be
// stopped.
func (c *Client) Uncovered(ctx context.Context, sandbox string) (Uncovered, error) {
	out, err := fileCall(ctx, c, agboxv1.FileServiceClient.ListUncovered, &agboxv1.ListUncoveredRequest{SandboxId: sandbox}, idempotent)
	return Uncovered{texts(out.GetPaths()), texts(out.GetNotSearched())}, err
}

func texts(all [][]byte) (out []string) {
	for _, one := range all {
		out = append(out, string(one))
	}
	return out
}
