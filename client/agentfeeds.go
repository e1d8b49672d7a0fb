package client

import (
	"context"
	"iter"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// AgentCursor is a place in the history and the output of an agent.
type AgentCursor struct {
	// Sequence is the newest event before it; 0 is the beginning.
	Sequence uint64
	// Incarnation is the one whose output comes next; 0 before the first. Log is how much of
	// it is before the cursor, and LogEnded means all of it and its end.
	Incarnation uint32
	Log         Cursor
	LogEnded    bool
}

// AgentAttachOptions say where AttachAgent starts.
type AgentAttachOptions struct {
	// Cursor is where to start. The zero value is the beginning.
	Cursor AgentCursor
	// TailLines, if not nil, starts with this many last lines of the newest incarnation, and
	// with no earlier event. Cursor must be zero then.
	TailLines *uint64
}

// AgentItem is an event of an agent, a piece of its output or, as the last one, its end.
// One of Event, Output and End is set.
type AgentItem struct {
	Event *agboxv1.AgentEvent
	// Output is a piece of the output of an incarnation, or the end of it. That end has no
	// exec if the output is not kept any more.
	Output *LogItem
	// End is the agent after it has ended.
	End *agboxv1.Agent
	// Cursor is the place after this item. Start there to continue.
	Cursor AgentCursor
}

// AttachAgent reads the history and the output of an agent and goes on over all its
// incarnations until it has ended. If the daemon goes away, the client waits for it and
// continues at the same place: no event and no byte is lost or repeated. The output of an
// incarnation comes after its AGENT_BEGUN, and all of it before its AGENT_INCARNATION_ENDED.
// A name is looked up again after each loss, so use the id.
func (c *Client) AttachAgent(ctx context.Context, agent string, o AgentAttachOptions) iter.Seq2[AgentItem, error] {
	return sequence(func(give func(AgentItem) bool) error {
		r := &agentReader{at: o.Cursor, log: logPlace{Cursor: o.Cursor.Log}, give: give}
		started := false
		return follow(ctx, c, c.agents.AttachAgent, endless, func() *agboxv1.AttachAgentRequest {
			in := &agboxv1.AttachAgentRequest{AgentId: agent}
			if o.TailLines != nil && !started {
				in.TailLines = o.TailLines
			} else {
				in.Cursor = r.request()
			}
			return in
		}, func(m *agboxv1.AttachAgentResponse) (bool, error) {
			started = true
			return r.take(m)
		})
	})
}

// agentReader is a reader's place in the stream of an agent.
type agentReader struct {
	at AgentCursor
	// log is the place in the output of the incarnation of at.
	log  logPlace
	give func(AgentItem) bool
}

// request returns where a new call starts.
func (r *agentReader) request() *agboxv1.AgentCursor {
	log := r.log.resume()
	return &agboxv1.AgentCursor{
		Sequence: r.at.Sequence, Incarnation: r.at.Incarnation, LogEnded: r.at.LogEnded,
		Log: &agboxv1.LogCursor{StdoutOffset: log.Stdout, StderrOffset: log.Stderr},
	}
}

// pass passes an item on. It returns true if the reader wants no more.
func (r *agentReader) pass(item AgentItem) bool {
	r.at.Log = r.log.Cursor
	item.Cursor = r.at
	return !r.give(item)
}

// take passes on what is new in a message.
func (r *agentReader) take(m *agboxv1.AttachAgentResponse) (done bool, err error) {
	to := m.GetCursor()
	if to.GetIncarnation() != r.at.Incarnation {
		r.at.Incarnation, r.at.LogEnded, r.log = to.GetIncarnation(), false, logPlace{}
	}
	switch {
	case m.GetEvent() != nil:
		if m.GetEvent().GetSequence() <= r.at.Sequence {
			return false, nil
		}
		r.at.Sequence = to.GetSequence()
		return r.pass(AgentItem{Event: m.GetEvent()}), nil
	case m.GetLogEnd() != nil:
		if r.at.LogEnded {
			return false, nil
		}
		r.at.LogEnded = true
		return r.pass(AgentItem{Output: &LogItem{Cursor: r.log.Cursor, End: m.GetLogEnd()}}), nil
	case m.GetEnd() != nil:
		r.pass(AgentItem{End: m.GetEnd()})
		return true, nil
	}
	chunks := m.GetBatch().GetChunks()
	if chunk := m.GetChunk(); chunk != nil {
		chunks = []*agboxv1.LogChunk{chunk}
	}
	for _, chunk := range chunks {
		item, err := r.log.take(chunk)
		if err != nil {
			return false, err
		}
		if !item.empty() && r.pass(AgentItem{Output: &item}) {
			return true, nil
		}
	}
	if len(chunks) == 0 { // only the place
		r.at.Sequence, r.at.LogEnded = to.GetSequence(), to.GetLogEnded()
		r.log.Cursor = Cursor{Stdout: to.GetLog().GetStdoutOffset(), Stderr: to.GetLog().GetStderrOffset()}
	}
	return false, nil
}

// ReadJournal reads what the incarnations of an agent have reported, oldest first: those
// from the given incarnation on; 0 means all. Each row is a JSON object. If the daemon goes
// away, the client waits for it and continues at the same place.
func (c *Client) ReadJournal(ctx context.Context, agent string, incarnation uint32) iter.Seq2[*agboxv1.ReadJournalResponse, error] {
	return c.readJournal(ctx, &agboxv1.ReadJournalRequest{AgentId: agent, Incarnation: incarnation})
}

// FollowJournal is ReadJournal of all incarnations, and goes on with what is reported from now
// on until the agent has ended.
func (c *Client) FollowJournal(ctx context.Context, agent string) iter.Seq2[*agboxv1.ReadJournalResponse, error] {
	return c.readJournal(ctx, &agboxv1.ReadJournalRequest{AgentId: agent, Follow: true})
}

func (c *Client) readJournal(ctx context.Context, next *agboxv1.ReadJournalRequest) iter.Seq2[*agboxv1.ReadJournalResponse, error] {
	return sequence(func(give func(*agboxv1.ReadJournalResponse) bool) error {
		return follow(ctx, c, c.agents.ReadJournal, endless, func() *agboxv1.ReadJournalRequest { return next }, func(m *agboxv1.ReadJournalResponse) (bool, error) {
			if m.GetJson() == "" {
				return true, nil
			}
			next = &agboxv1.ReadJournalRequest{AgentId: next.GetAgentId(), Incarnation: m.GetIncarnation(), AfterRow: m.GetRow(), Follow: next.GetFollow()}
			return !give(m), nil
		})
	})
}

// SendMessage puts a text of at most 64 KiB into the inbox of an agent and returns its
// number there. A repeated call with the same key sends nothing more; if key is empty, it
// chooses one.
func (c *Client) SendMessage(ctx context.Context, agent, key, text string) (uint64, error) {
	if key == "" {
		key = NewID()
	}
	out, err := c.agents.SendMessage(ctx, &agboxv1.SendMessageRequest{AgentId: agent, Key: key, Text: text}, idempotent)
	return out.GetSeq(), err
}

// SendOnStream sends a text of at most 64 KiB to all agents that have a stream open: in stacks
// with the name stack or, if that is empty, in no stack. It returns all of them; one that
// refused the text has a reason. A repeated call with the same key sends nothing more; if key
// is empty, it chooses one. Without a recipient the error is ErrNotFound.
func (c *Client) SendOnStream(ctx context.Context, stream, stack, key, text string) ([]*agboxv1.StreamRecipient, error) {
	if key == "" {
		key = NewID()
	}
	out, err := c.agents.SendMessage(ctx, &agboxv1.SendMessageRequest{Stream: stream, Stack: stack, Key: key, Text: text}, idempotent)
	return out.GetRecipients(), err
}

// Inbox returns the messages in the inbox of an agent, oldest first. It ends with an error,
// or after those that there are.
func (c *Client) Inbox(ctx context.Context, agent string) iter.Seq2[*agboxv1.AgentMessage, error] {
	return sequence(func(give func(*agboxv1.AgentMessage) bool) error {
		in := &agboxv1.ReadInboxRequest{AgentId: agent}
		return pages(give, func() ([]*agboxv1.AgentMessage, bool, error) {
			out, err := c.agents.ReadInbox(ctx, in, idempotent)
			for _, m := range out.GetMessages() {
				in.After = m.GetSeq()
			}
			return out.GetMessages(), out.GetMore(), err
		})
	})
}

// FollowInbox returns the messages in the inbox of an agent, oldest first, and then those that
// come. It ends with an error, or when the agent was removed. If the daemon goes away, the
// client waits for it and continues at the same place.
func (c *Client) FollowInbox(ctx context.Context, agent string) iter.Seq2[*agboxv1.AgentMessage, error] {
	return sequence(func(give func(*agboxv1.AgentMessage) bool) error {
		next := &agboxv1.FollowInboxRequest{AgentId: agent}
		return follow(ctx, c, c.agents.FollowInbox, endless, func() *agboxv1.FollowInboxRequest { return next }, func(r *agboxv1.FollowInboxResponse) (bool, error) {
			if r.GetMessage() == nil {
				return true, nil
			}
			next = &agboxv1.FollowInboxRequest{AgentId: agent, After: r.GetMessage().GetSeq()}
			return !give(r.GetMessage()), nil
		})
	})
}

// AcknowledgeInbox removes the messages up to a number from the inbox of the operator,
// which is that of "init".
func (c *Client) AcknowledgeInbox(ctx context.Context, upto uint64) error {
	_, err := c.agents.ReadInbox(ctx, &agboxv1.ReadInboxRequest{AgentId: "init", Ack: upto, After: upto}, idempotent)
	return err
}
