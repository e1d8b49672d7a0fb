package incarnations

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/internal/fault"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"
	"github.com/agbox/agbox/runtime/guest/rpc"
)

// handler decides about a request of an agent. result is made JSON of. pending means that it
// cannot decide yet: it is called again when the agent is enqueued. An error that is a
// *fault.Error refuses the request, unless its class is unavailable; with that and with any
// other, the request is offered again later.
//
// A handler must be idempotent: after a crash, a request is offered again whose effect was
// committed.
type handler func(r *Runner, ctx context.Context, a ledger.Agent, q request) (result any, pending bool, err error)

// with is the handler of requests with fields. Those that a request has besides are ignored.
func with[Fields any](handle func(r *Runner, ctx context.Context, a ledger.Agent, q request, f Fields) (any, bool, error)) handler {
	return func(r *Runner, ctx context.Context, a ledger.Agent, q request) (any, bool, error) {
		var f Fields
		if err := q.decode(&f); err != nil {
			return nil, false, err
		}
		return handle(r, ctx, a, q, f)
	}
}

// handlers has the ops that gate.Ops leaves to the daemon. The shapes of most answers are in
// package gate, too.
var handlers = map[string]handler{
	"spawn":    (*Runner).spawn,
	"children": (*Runner).children,
	"pause":    with((*Runner).pause),
	"resumed":  with((*Runner).resumed),
	"recv":     with((*Runner).recv),
	"wait":     with((*Runner).wait),
	"kill":     with((*Runner).kill),
	"acquire":  with((*Runner).acquire),
	"release":  with((*Runner).release),
	"open":     (*Runner).open,
	"close":    (*Runner).close,
}

// Answer decides about the open requests of the agent's incarnation, in the order in which
// they were made. Those about which it cannot decide yet stay open.
func (r *Runner) Answer(ctx context.Context, a ledger.Agent) error {
	execID := a.Incarnation.ExecID
	r.desk.mu.Lock()
	open := maps.Clone(r.desk.known[execID].open)
	r.desk.mu.Unlock()
	var failed []error
	for _, number := range slices.Sorted(maps.Keys(open)) {
		now, exists := r.ledger.Agent(a.ID) // as the request before left it
		if !exists || now.Incarnation == nil || now.Incarnation.ExecID != execID {
			break
		}
		if err := r.decide(ctx, now, open[number]); err != nil {
			failed = append(failed, err)
		}
	}
	return errors.Join(failed...)
}

// maxAnswer bounds an answer, in bytes. A larger one would not fit into a call of the
// supervisor, and the request would be offered again for ever.
const maxAnswer = rpc.MaxFrame / 2

// decide decides about one request, and sends the answer.
func (r *Runner) decide(ctx context.Context, a ledger.Agent, q request) error {
	answer := &guestv1.AnswerRequest{ExecId: a.Incarnation.ExecID, Number: q.number}
	handle, known := handlers[q.op]
	if !known {
		answer.Code, answer.Message = "UNKNOWN_OP", fmt.Sprintf("The daemon does not know the op %q; upgrade it.", q.op)
		return r.send(ctx, a, answer)
	}
	result, pending, err := handle(r, ctx, a, q)
	no := new(fault.Error)
	switch {
	case errdefs.IsUnavailable(err): // for example, the disk is full: as if there were no daemon
		return err
	case errors.As(err, &no):
		answer.Code, answer.Message = fault.ReasonOf(err).String(), strings.ToValidUTF8(no.Error(), "\uFFFD")
	case err != nil:
		return err
	case pending:
		return nil
	default:
		if q.op == "spawn" { // before it goes on
			if err := r.TellChildren(ctx, a); err != nil {
				return err
			}
		}
		if answer.Json, err = json.Marshal(result); err != nil {
			return err
		}
		if size := len(answer.Json); size > maxAnswer {
			answer.Json = nil
			answer.Code, answer.Message = "ANSWER_TOO_LARGE", fmt.Sprintf("The answer has %d bytes, and at most %d can be sent: ask for less.", size, maxAnswer)
		}
	}
	return r.send(ctx, a, answer)
}

// send sends an answer, and forgets the request.
func (r *Runner) send(ctx context.Context, a ledger.Agent, answer *guestv1.AnswerRequest) error {
	err := r.execs.Answer(ctx, a.Incarnation.SandboxID, answer)
	if err != nil && fault.ReasonOf(err) != agboxv1.ErrorReason_EXEC_ALREADY_TERMINAL {
		return err
	}
	r.desk.mu.Lock()
	defer r.desk.mu.Unlock()
	delete(r.desk.known[a.Incarnation.ExecID].open, answer.GetNumber())
	return nil
}
