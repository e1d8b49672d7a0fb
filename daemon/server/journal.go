package server

import (
	"context"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/agents/journal"
	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/logs/notify"
)

// journalStream is a stream of ReadJournal.
type journalStream struct {
	s      *agentCalls
	req    *agboxv1.ReadJournalRequest
	id     string
	stream grpc.ServerStreamingServer[agboxv1.ReadJournalResponse]
	// sequence is that of the newest event that was read.
	sequence uint64
	// begun is the begin of the incarnation whose rows come next. It is nil before the first.
	begun *agboxv1.AgentEvent
	// at is the place in its journal, and after the newest row that the client has.
	at    journal.Tail
	after uint64
	// watch wakes the stream when the journal grows. It is nil if nobody follows it, or while
	// its folder is missing.
	watch *notify.Watch
}

// ReadJournal sends the journals of an agent's incarnations.
func (s *agentCalls) ReadJournal(req *agboxv1.ReadJournalRequest, stream grpc.ServerStreamingServer[agboxv1.ReadJournalResponse]) error {
	a, err := s.ledger.FindAgent(req.GetAgentId())
	switch {
	case err != nil:
		return err
	case req.GetFollow() && a.ID == agents.Init:
		return fault.New(errdefs.ErrFailedPrecondition, agboxv1.ErrorReason_AGENT_WRONG_STATE,
			"Agent %s never runs, so it reports nothing; \"agbox agent events -f %[1]s\" shows its history.", a.ID).With("agent_id", a.ID)
	}
	t := &journalStream{s: s, req: req, id: a.ID, stream: stream}
	defer t.close()
	return t.run(stream.Context())
}

// run sends the rows that there are and, if the client follows them, those that come.
func (t *journalStream) run(ctx context.Context) error {
	for {
		changed := t.s.ledger.AgentChanged(t.id)
		a, exists := t.s.ledger.Agent(t.id) // before the rows: all of an ended agent are there
		if err := t.incarnations(ctx, a); err != nil {
			return err
		}
		if err := t.rows(); err != nil {
			return err
		}
		if !t.req.GetFollow() || !exists || a.Over() && t.sequence >= a.LastSequence {
			return t.stream.Send(&agboxv1.ReadJournalResponse{})
		}
		if err := t.wait(ctx, changed); err != nil {
			return err
		}
	}
}

// incarnations reads the events that it has not read, and sends the rows of all incarnations
// among them but the last one.
func (t *journalStream) incarnations(ctx context.Context, a ledger.Agent) error {
	for more := true; more; {
		var events []*agboxv1.AgentEvent
		var err error
		if events, t.sequence, more, err = t.s.ledger.AgentEvents(ctx, t.id, t.sequence, eventPage); err != nil {
			return err
		}
		for _, ev := range events {
			if ev.GetBegun() == nil || ev.GetIncarnation() < t.req.GetIncarnation() {
				continue
			}
			if err := t.rows(); err != nil {
				return err
			}
			t.begin(a, ev)
		}
	}
	return nil
}

// begin goes on with the journal of another incarnation.
func (t *journalStream) begin(a ledger.Agent, ev *agboxv1.AgentEvent) {
	t.close()
	t.begun, t.at, t.after = ev, journal.Beginning(), 0
	t.at.Sum.Phase = agents.RulesOf(a.Spec).FirstPhase()
	if ev.GetIncarnation() == t.req.GetIncarnation() {
		t.after = t.req.GetAfterRow()
	}
}

// rows sends the rows of the incarnation that it has not sent.
func (t *journalStream) rows() error {
	if t.begun == nil {
		return nil
	}
	var err error
	t.at, err = t.s.incarnations.Journal(t.begun.GetBegun().GetSandboxId(), t.begun.GetBegun().GetExecId(), t.at, t.after, func(number uint64, row []byte) error {
		return t.stream.Send(&agboxv1.ReadJournalResponse{Incarnation: t.begun.GetIncarnation(), Row: number, Json: string(row)})
	})
	if errdefs.IsNotFound(err) { // with its sandbox the logs may be gone
		return nil
	}
	return err
}

// wait returns when there may be new rows, or a new incarnation.
func (t *journalStream) wait(ctx context.Context, changed <-chan struct{}) error {
	var written <-chan struct{}
	switch {
	case t.watch != nil:
		written = t.watch.C()
	case t.begun != nil:
		begun := t.begun.GetBegun()
		watch, err := t.s.output.logs.Watch(t.s.output.paths.SandboxLogs(begun.GetSandboxId()), begun.GetExecId())
		if err == nil {
			t.watch = watch
			return nil // there may have been rows before
		}
		if !errdefs.IsNotFound(err) {
			return unreadable(begun.GetExecId(), err)
		}
	}
	select {
	case <-written:
		return nil
	case <-changed:
		return nil
	case <-t.s.life.stopping:
		return errStopping()
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (t *journalStream) close() {
	if t.watch != nil {
		t.watch.Close()
		t.watch = nil
	}
}
