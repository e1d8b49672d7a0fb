package client

import (
	"context"
	"iter"
	"slices"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// Ping returns the identity and the state of the daemon.
func (c *Client) Ping(ctx context.Context) (*agboxv1.PingResponse, error) {
	return c.sandboxes.Ping(ctx, &agboxv1.PingRequest{}, idempotent)
}

// CreateSandbox creates a sandbox and returns when it is accepted, in state PENDING.
// WaitReady waits until it is READY. It sets sandbox_id
// and request_key if they are empty, so repeating the call after a lost answer does not
// make a second sandbox. A caller who repeats it with the same id and spec gets the same
// sandbox.
func (c *Client) CreateSandbox(ctx context.Context, in *agboxv1.CreateSandboxRequest) (*agboxv1.SandboxHandle, error) {
	out, err := c.sandboxes.CreateSandbox(ctx, repeatableSandbox(in), idempotent)
	return out.GetSandbox(), err
}

// GetSandbox returns one sandbox with its spec and containers. It also returns a deleted
// one whose record is kept.
func (c *Client) GetSandbox(ctx context.Context, sandbox string) (*agboxv1.GetSandboxResponse, error) {
	return c.sandboxes.GetSandbox(ctx, &agboxv1.GetSandboxRequest{SandboxId: sandbox}, idempotent)
}

// ListOptions selects sandboxes.
type ListOptions struct {
	// IncludeDeleted adds deleted sandboxes, of which only the history is left, and those of IncludeEnded.
	IncludeDeleted bool
	// IncludeEnded adds sandboxes that are being removed and of which nothing runs any more.
	IncludeEnded bool
	// Labels must all match. An empty map selects all sandboxes.
	Labels map[string]string
}

// ListSandboxes returns sandboxes, newest first.
func (c *Client) ListSandboxes(ctx context.Context, o ListOptions) ([]*agboxv1.SandboxHandle, error) {
	out, err := c.sandboxes.ListSandboxes(ctx, &agboxv1.ListSandboxesRequest{IncludeDeleted: o.IncludeDeleted, LabelSelector: o.Labels}, idempotent)
	list := out.GetSandboxes()
	if !o.IncludeDeleted && !o.IncludeEnded {
		list = slices.DeleteFunc(list, (*agboxv1.SandboxHandle).GetEnded)
	}
	return list, err
}

// ResumeSandbox starts a STOPPED sandbox again. WaitReady waits until it is READY.
func (c *Client) ResumeSandbox(ctx context.Context, sandbox string) error {
	_, err := c.sandboxes.ResumeSandbox(ctx, &agboxv1.ResumeSandboxRequest{SandboxId: sandbox}, idempotent)
	return err
}

// StopSandbox stops the containers and keeps them. Running execs end. WaitStopped waits
// until it is done.
func (c *Client) StopSandbox(ctx context.Context, sandbox string) error {
	_, err := c.sandboxes.StopSandbox(ctx, &agboxv1.StopSandboxRequest{SandboxId: sandbox}, idempotent)
	return err
}

// StopSandboxNow is StopSandbox that does not wait for agents to save their work. It may
// follow a StopSandbox that waits for them.
func (c *Client) StopSandboxNow(ctx context.Context, sandbox string) error {
	_, err := c.sandboxes.StopSandbox(ctx, &agboxv1.StopSandboxRequest{SandboxId: sandbox, Now: true}, idempotent)
	return err
}

// RestartSandbox stops a sandbox and starts it again, also if the caller ends in between.
// now does not wait for agents to save their work. WaitReady waits until it is READY again.
func (c *Client) RestartSandbox(ctx context.Context, sandbox string, now bool) error {
	_, err := c.sandboxes.RestartSandbox(ctx, &agboxv1.RestartSandboxRequest{SandboxId: sandbox, Now: now}, idempotent)
	return err
}

// RenameSandbox gives a sandbox another name, also while it is stopped. Host names in its
// containers stay as they are. Give it the id, so that it can be repeated if its answer is
// lost.
func (c *Client) RenameSandbox(ctx context.Context, id, name string) error {
	_, err := c.sandboxes.RenameSandbox(ctx, &agboxv1.RenameSandboxRequest{SandboxId: id, Name: name}, idempotent)
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
	_, err := c.sandboxes.DeleteSandbox(ctx, &agboxv1.DeleteSandboxRequest{SandboxId: sandbox, Now: o.Now, SpareAgents: o.SpareAgents, RemoveLogs: o.RemoveLogs}, idempotent)
	return err
}

// DeleteSandboxes deletes all sandboxes with the labels, of which there must be at least
// one, and returns their ids. It is not repeated if its answer is lost, because a second
// answer would lack the ids of the first one.
func (c *Client) DeleteSandboxes(ctx context.Context, labels map[string]string) ([]string, error) {
	out, err := c.sandboxes.DeleteSandboxes(ctx, &agboxv1.DeleteSandboxesRequest{LabelSelector: labels})
	return out.GetDeletedSandboxIds(), err
}

// Stats yields the resource usage of the containers of the given sandboxes, or of all if
// none is given, every second. It continues if the daemon restarts. It ends with an
// error, when the caller ends its loop, when none of the given sandboxes exists any more,
// or, with once, after the first item.
func (c *Client) Stats(ctx context.Context, sandboxes []string, once bool) iter.Seq2[*agboxv1.WatchStatsResponse, error] {
	return sequence(func(give func(*agboxv1.WatchStatsResponse) bool) error {
		return follow(ctx, c, c.sandboxes.WatchStats, ends, func() *agboxv1.WatchStatsRequest {
			return &agboxv1.WatchStatsRequest{SandboxIds: sandboxes, Once: once}
		}, func(m *agboxv1.WatchStatsResponse) (bool, error) { return !give(m) || once, nil })
	})
}

// Processes lists the processes in the primary of a READY sandbox.
func (c *Client) Processes(ctx context.Context, sandbox string) (*agboxv1.ListProcessesResponse, error) {
	return c.sandboxes.ListProcesses(ctx, &agboxv1.ListProcessesRequest{SandboxId: sandbox}, idempotent)
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
	out, err := c.files.ListUncovered(ctx, &agboxv1.ListUncoveredRequest{SandboxId: sandbox}, idempotent)
	return Uncovered{texts(out.GetPaths()), texts(out.GetNotSearched())}, err
}

func texts(all [][]byte) (out []string) {
	for _, one := range all {
		out = append(out, string(one))
	}
	return out
}
