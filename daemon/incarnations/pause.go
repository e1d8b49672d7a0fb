package incarnations

import (
	"context"
	"encoding/json"

	"github.com/containerd/errdefs"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/agents/journal"
	"github.com/agbox/agbox/daemon/guests/links"
	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/internal/fault"
)

// toldPause is the pause of which an incarnation was told, over which link.
type toldPause struct {
	link *links.Link
	mark uint64
}

// maxRefusal is the size of an observation that fits into the refusal of a call, in bytes. A
// larger one must be asked for.
const maxRefusal = 16 << 10

// TellPause tells the incarnation of the agent whether the agent is paused, and what changed
// if it was woken. A supervisor that is too old is not told.
func (r *Runner) TellPause(ctx context.Context, a ledger.Agent) error {
	r.desk.mu.Lock()
	link := r.desk.heard[a.Incarnation.ExecID].link
	r.desk.mu.Unlock()
	req := &guestv1.PauseRequest{ExecId: a.Incarnation.ExecID, Mark: a.PauseMark()}
	if req.GetMark() != 0 {
		req.Message = a.Pause.Message
	}
	if req.GetMark() != 0 && a.PendingObservation() != 0 {
		raw, err := json.Marshal(r.observe(ctx, a))
		if err != nil {
			return err
		}
		if req.Phase = journal.Executing; a.GoesOn() == agents.Planning {
			req.Phase = journal.Planning
		}
		if len(raw) <= maxRefusal {
			req.Observation = raw
		}
	}
	err := r.execs.Pause(ctx, a.Incarnation.SandboxID, req)
	if err != nil && !errdefs.IsNotImplemented(err) && fault.ReasonOf(err) != agboxv1.ErrorReason_EXEC_ALREADY_TERMINAL {
		return err
	}
	r.desk.mu.Lock()
	defer r.desk.mu.Unlock()
	r.desk.paused[a.Incarnation.ExecID] = toldPause{link, req.GetMark()}
	return nil
}
