package incarnations

import (
	"context"

	"github.com/containerd/errdefs"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/agents/journal"
	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/internal/fault"
)

// streamOf reads the name of a stream in a request.
func streamOf(q request) (string, error) {
	var want struct {
		Stream string `json:"stream"`
	}
	if err := q.decode(&want); err != nil {
		return "", err
	}
	if _, held := heldStream(want.Stream); !held && !journal.ValidStream(want.Stream) {
		return "", fault.New(errdefs.ErrInvalidArgument, agboxv1.ErrorReason_INVALID_REQUEST,
			"A stream has a name of at most 63 lower-case letters, digits, dots, dashes and underscores, or is agent:NAME, and not %.80q.", want.Stream)
	}
	return want.Stream, nil
}

// open lets the agent get the messages of a stream from now on, or hold an agent.
func (r *Runner) open(ctx context.Context, a ledger.Agent, q request) (any, bool, error) {
	if err := mayAct(a, q.op); err != nil {
		return nil, false, err
	}
	stream, err := streamOf(q)
	if ref, held := heldStream(stream); held {
		return r.openHold(ctx, a, ref)
	}
	if err == nil {
		a, err = r.ledger.OpenStream(ctx, a.ID, stream)
	}
	return openStreams(a), false, err
}

// close ends that.
func (r *Runner) close(ctx context.Context, a ledger.Agent, q request) (any, bool, error) {
	stream, err := streamOf(q)
	if ref, held := heldStream(stream); held {
		return r.closeHold(ctx, a, ref)
	}
	if err == nil {
		a, err = r.ledger.CloseStream(ctx, a.ID, stream)
	}
	return openStreams(a), false, err
}

// openStreams is the answer to both.
func openStreams(a ledger.Agent) any { return map[string]any{"streams": a.Streams} }
