package incarnations

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/containerd/errdefs"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"

	"github.com/agbox/agbox/daemon/guests/links"
	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/runtime/guest"
	"github.com/agbox/agbox/runtime/guest/wire"
)

// request is what the program of an incarnation asks. Its supervisor tells it again over each
// new link until it is answered.
type request struct {
	// number counts the requests of the incarnation from 1.
	number uint64
	op     string
	body   []byte
}

// decode reads the fields of a request. Those that it does not have are ignored.
func (q request) decode(into any) error {
	if err := json.Unmarshal(q.body, into); err != nil {
		return fault.New(errdefs.ErrInvalidArgument, agboxv1.ErrorReason_INVALID_REQUEST, "The fields of the op %s cannot be read: %v.", q.op, err)
	}
	return nil
}

// handler decides about a request of an agent. result is made JSON of. pending means that it
// cannot decide yet: it is called again when the agent is enqueued. An error that is a
// *fault.Error refuses the request, unless its class is unavailable; with that and with any
// other, the request is offered again later.
//
// A handler must be idempotent: after a crash, a request is offered again whose effect was
// committed.
type handler func(r *Runner, ctx context.Context, a ledger.Agent, q request) (result any, pending bool, err error)

// handlers has the ops of requests.
var handlers = map[string]handler{
	"spawn":    (*Runner).spawn,
	"children": (*Runner).children,
	"pause":    (*Runner).pause,
	"resumed":  (*Runner).resumed,
	"recv":     (*Runner).recv,
	"wait":     (*Runner).wait,
	"kill":     (*Runner).kill,
	"acquire":  (*Runner).acquire,
	"release":  (*Runner).release,
	"open":     (*Runner).open,
	"close":    (*Runner).close,
}

// openRequests are the requests that a supervisor has told of and that were not answered.
type openRequests struct {
	link     *links.Link
	byNumber map[uint64]request
}

// askedLocked takes over the requests of news, and forgets those that are not open any more.
// It reports whether there are new ones.
func (d *desk) askedLocked(lk *links.Link, news *guestv1.IncarnationNews) bool {
	open := d.open[news.GetExecId()]
	if open.link != lk {
		open = openRequests{lk, make(map[uint64]request)}
	}
	maps.DeleteFunc(open.byNumber, func(number uint64, _ request) bool { return !slices.Contains(news.GetOpenRequests(), number) })
	asked := false
	for _, q := range news.GetRequests() {
		if len(open.byNumber) < guest.MaxRequests && slices.Contains(news.GetOpenRequests(), q.GetNumber()) {
			open.byNumber[q.GetNumber()] = request{q.GetNumber(), q.GetOp(), q.GetJson()}
			asked = true
		}
	}
	if len(open.byNumber) == 0 {
		delete(d.open, news.GetExecId())
	} else {
		d.open[news.GetExecId()] = open
	}
	return asked
}

// Answer decides about the open requests of the agent's incarnation, in the order in which
// they were made. Those about which it cannot decide yet stay open.
func (r *Runner) Answer(ctx context.Context, a ledger.Agent) error {
	execID := a.Incarnation.ExecID
	r.desk.mu.Lock()
	open := maps.Clone(r.desk.open[execID].byNumber)
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
const maxAnswer = wire.MaxFrame / 2

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
		answer.Code, answer.Message = fault.ReasonOf(err).String(), no.Error()
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

// mayAct refuses what the state of the agent does not allow. Its supervisor refuses it, too,
// once it knows the state.
func mayAct(a ledger.Agent, op string) error {
	if a.Acts(op) {
		return nil
	}
	return fault.New(errdefs.ErrFailedPrecondition, agboxv1.ErrorReason_AGENT_WRONG_STATE,
		"Agent %s is %s, so its program may not do this (%s) now. A paused one takes the observation once it is woken, and says how it goes on with resumed; one that plans reports the phase EXECUTING first.",
		a.Called(), a.Word(), op).With("agent_id", a.ID)
}

// send sends an answer, and forgets the request.
func (r *Runner) send(ctx context.Context, a ledger.Agent, answer *guestv1.AnswerRequest) error {
	err := r.execs.Answer(ctx, a.Incarnation.SandboxID, answer)
	if err != nil && fault.ReasonOf(err) != agboxv1.ErrorReason_EXEC_ALREADY_TERMINAL {
		return err
	}
	r.desk.mu.Lock()
	defer r.desk.mu.Unlock()
	delete(r.desk.open[a.Incarnation.ExecID].byNumber, answer.GetNumber())
	return nil
}
