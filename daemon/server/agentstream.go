package server

import (
	"context"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/agents/journal"
	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/logs"
	"github.com/agbox/agbox/logs/notify"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// agentStream is a stream of AttachAgent.
type agentStream struct {
	s      *agentCalls
	id     string
	stream grpc.ServerStreamingServer[agboxv1.AttachAgentResponse]
	// begun is the position of the newest event when the stream was opened.
	begun uint64
	// at is the place of the stream. While log is set, its place in the log is that of log.
	at *agboxv1.AgentCursor
	// log follows the output of the incarnation that at names. It is nil if all of it was
	// sent, or before the first incarnation.
	log *follower
}

// AttachAgent replays and follows the events and the output of an agent.
func (s *agentCalls) AttachAgent(req *agboxv1.AttachAgentRequest, stream grpc.ServerStreamingServer[agboxv1.AttachAgentResponse]) error {
	if req.TailLines != nil && req.GetCursor() != nil {
		return invalid("Give either cursor or tail_lines: both say where to start.")
	}
	a, err := s.ledger.FindAgent(req.GetAgentId())
	switch {
	case err != nil:
		return err
	case a.ID == agents.Init:
		return fault.New(errdefs.ErrFailedPrecondition, agboxv1.ErrorReason_AGENT_WRONG_STATE,
			"Agent %s never runs, so it has no output; \"agbox agent events %[1]s\" shows its history.", a.ID).With("agent_id", a.ID)
	case req.GetCursor().GetSequence() > a.LastSequence:
		return fault.New(errdefs.ErrOutOfRange, agboxv1.ErrorReason_CURSOR_OUT_OF_RANGE,
			"Agent %s has no event %d (the newest is %d); start again from the beginning.", a.ID, req.GetCursor().GetSequence(), a.LastSequence).With("agent_id", a.ID)
	}
	t := &agentStream{s: s, id: a.ID, stream: stream, begun: s.ledger.NewestOfAgents(), at: new(agboxv1.AgentCursor)}
	defer t.closeLog()
	if err := t.start(stream.Context(), a, req); err != nil {
		return err
	}
	return t.run(stream.Context())
}

// start sets the place of the stream and informs the client about it.
func (t *agentStream) start(ctx context.Context, a ledger.Agent, req *agboxv1.AttachAgentRequest) error {
	if c := req.GetCursor(); c != nil {
		t.at = &agboxv1.AgentCursor{Sequence: c.GetSequence(), Incarnation: c.GetIncarnation(), Log: c.GetLog(), LogEnded: c.GetLogEnded()}
	}
	if req.TailLines != nil {
		t.at = &agboxv1.AgentCursor{Sequence: a.LastSequence, Incarnation: a.Incarnations}
	}
	if t.at.Incarnation != 0 && !t.at.LogEnded {
		if err := t.resumeLog(ctx, a, req.GetCursor().GetLog()); err != nil {
			return err
		}
	}
	if err := t.send(new(agboxv1.AttachAgentResponse)); err != nil || t.log == nil || req.TailLines == nil {
		return err
	}
	t.log.part, t.log.selective = logs.Part{Tail: true, Lines: req.GetTailLines()}, true
	if a.Incarnation == nil { // its end is before the cursor
		return t.endLog(ctx)
	}
	return nil
}

// resumeLog goes on with the output of the incarnation that the cursor names.
func (t *agentStream) resumeLog(ctx context.Context, a ledger.Agent, at *agboxv1.LogCursor) error {
	execID := agents.ExecID(t.id, t.at.Incarnation)
	from := logs.Cursor{Stdout: at.GetStdoutOffset(), Stderr: at.GetStderrOffset()}
	if a.Incarnation != nil && a.Incarnation.N == t.at.Incarnation {
		t.openLog(a.Incarnation.SandboxID, execID, from)
		return nil
	}
	sandboxID, err := t.s.ledger.FindExec(ctx, execID)
	switch {
	case errdefs.IsNotFound(err): // it never started, or is not kept any more
		return nil
	case err == nil:
		t.openLog(sandboxID, execID, from)
	}
	return err
}

// run sends what there is and what comes, until the agent has ended.
func (t *agentStream) run(ctx context.Context) error {
	for {
		changed := t.s.ledger.AgentChanged(t.id)
		a, exists := t.s.ledger.Agent(t.id)
		events, next, more, err := t.s.ledger.AgentEvents(ctx, t.id, t.at.Sequence, eventPage)
		if err != nil {
			return err
		}
		for _, ev := range events {
			if err := t.event(ctx, ev); err != nil {
				return err
			}
			if ev.GetType() == agboxv1.AgentEventType_AGENT_ENDED {
				return t.end()
			}
		}
		t.at.Sequence = max(t.at.Sequence, next)
		switch {
		case more:
			continue
		case !exists || a.Over() && t.at.Sequence >= a.LastSequence:
			return t.end()
		}
		if err := t.wait(ctx, changed); err != nil {
			return err
		}
	}
}

// wait sends output until the agent has changed.
func (t *agentStream) wait(ctx context.Context, changed <-chan struct{}) error {
	if t.log == nil {
		return t.s.life.wait(ctx, changed)
	}
	t.log.other = changed
	err := error(nil)
	if t.log.watch == nil { // before the first read, so that no write is missed
		err = t.log.subscribe(true)
	}
	if err == nil {
		err = t.log.deliver(ctx, false)
	}
	if err == nil {
		err = t.log.wait(ctx)
	}
	return t.orUnreadable(err)
}

// event sends an event. The output of an incarnation comes before its end.
func (t *agentStream) event(ctx context.Context, ev *agboxv1.AgentEvent) error {
	switch ev.GetType() {
	case agboxv1.AgentEventType_AGENT_INCARNATION_ENDED:
		if t.log != nil {
			if err := t.endLog(ctx); err != nil {
				return err
			}
		}
	case agboxv1.AgentEventType_AGENT_BEGUN:
		t.openLog(ev.GetBegun().GetSandboxId(), ev.GetBegun().GetExecId(), logs.Cursor{})
		t.at.Incarnation, t.at.Log, t.at.LogEnded = ev.GetIncarnation(), nil, false
	}
	t.at.Sequence = ev.GetSequence()
	ev.Replay = ev.GetPosition() <= t.begun
	return t.send(&agboxv1.AttachAgentResponse{Item: &agboxv1.AttachAgentResponse_Event{Event: ev}})
}

// end sends the last message.
func (t *agentStream) end() error {
	a, exists := t.s.ledger.Agent(t.id)
	if !exists {
		_, err := t.s.ledger.FindAgent(t.id)
		return err
	}
	return t.send(&agboxv1.AttachAgentResponse{Item: &agboxv1.AttachAgentResponse_End{End: t.s.answer(a).GetAgent()}})
}

// openLog begins with the output of an exec, which may not have started yet.
func (t *agentStream) openLog(sandboxID, execID string, from logs.Cursor) {
	t.closeLog()
	t.log = t.s.output.newFollower(agentOutput{t}, sandboxID, execID, from)
	t.log.batches = true
	t.log.done = nil // its end is an event of the agent
}

// endLog sends the rest of the output of an incarnation that has ended, and the end of it.
func (t *agentStream) endLog(ctx context.Context) error {
	t.log.other, t.log.done = nil, t.s.ledger.ExecDone(t.log.execID)
	_, err := t.s.ledger.Exec(ctx, t.log.sandboxID, t.log.execID)
	if errdefs.IsNotFound(err) {
		t.closeLog() // it never started, or is not kept any more
		return nil
	}
	if err == nil {
		err = t.log.deliver(ctx, true)
	}
	if err == nil {
		err = t.log.finish(ctx)
	}
	if err = t.orUnreadable(err); err == nil {
		t.closeLog()
	}
	return err
}

// orUnreadable ends the output with a notice if its log cannot be read: the agent goes on.
// Other errors are returned.
func (t *agentStream) orUnreadable(err error) error {
	f := fault.Of(err)
	if f == nil || f.Reason != agboxv1.ErrorReason_LOG_UNREADABLE {
		return err
	}
	err = agentOutput{t}.sendEnd(&agboxv1.LogEnd{Notice: f.Error()})
	t.closeLog()
	return err
}

func (t *agentStream) closeLog() {
	if t.log != nil {
		t.log.close()
		t.log = nil
	}
}

// send sends a message with the place after it.
func (t *agentStream) send(m *agboxv1.AttachAgentResponse) error {
	m.Cursor = proto.CloneOf(t.at)
	if t.log != nil {
		m.Cursor.Log = cursorMessage(t.log.at)
	}
	return t.stream.Send(m)
}

// agentOutput sends the output of an incarnation. Its methods run while the handler waits
// for them.
type agentOutput struct{ t *agentStream }

func (o agentOutput) sendChunk(chunk *agboxv1.LogChunk) error {
	return o.t.send(&agboxv1.AttachAgentResponse{Item: &agboxv1.AttachAgentResponse_Chunk{Chunk: chunk}})
}

func (o agentOutput) sendBatch(chunks []*agboxv1.LogChunk) error {
	return o.t.send(&agboxv1.AttachAgentResponse{Item: &agboxv1.AttachAgentResponse_Batch{Batch: &agboxv1.LogBatch{Chunks: chunks}}})
}

func (o agentOutput) sendMoved(*agboxv1.LogCursor) error {
	return o.t.send(new(agboxv1.AttachAgentResponse))
}

func (o agentOutput) sendEnd(end *agboxv1.LogEnd) error {
	o.t.at.LogEnded = true
	return o.t.send(&agboxv1.AttachAgentResponse{Item: &agboxv1.AttachAgentResponse_LogEnd{LogEnd: end}})
}

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
