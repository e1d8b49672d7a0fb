package client

import (
	"context"
	"iter"

	"google.golang.org/grpc"

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
	return func(yield func(AgentItem, error) bool) {
		r := &agentReader{at: o.Cursor, log: logPlace{Cursor: o.Cursor.Log}, yield: yield}
		started := false
		f := feed[agboxv1.AttachAgentResponse]{
			open: func(ctx context.Context, _ agboxv1.SandboxServiceClient) (grpc.ServerStreamingClient[agboxv1.AttachAgentResponse], error) {
				api, err := c.agents()
				if err != nil {
					return nil, err
				}
				in := &agboxv1.AttachAgentRequest{AgentId: agent}
				if o.TailLines != nil && !started {
					in.TailLines = o.TailLines
				} else {
					in.Cursor = r.request()
				}
				return api.AttachAgent(ctx, in)
			},
			take: func(m *agboxv1.AttachAgentResponse) (bool, error) {
				started = true
				return r.take(m)
			},
		}
		if err := f.run(ctx, c); err != nil {
			yield(AgentItem{}, err)
		}
	}
}

// agentReader is a reader's place in the stream of an agent.
type agentReader struct {
	at AgentCursor
	// log is the place in the output of the incarnation of at.
	log   logPlace
	yield func(AgentItem, error) bool
}

// request returns where a new call starts.
func (r *agentReader) request() *agboxv1.AgentCursor {
	log := r.log.resume()
	return &agboxv1.AgentCursor{
		Sequence: r.at.Sequence, Incarnation: r.at.Incarnation, LogEnded: r.at.LogEnded,
		Log: &agboxv1.LogCursor{StdoutOffset: log.Stdout, StderrOffset: log.Stderr},
	}
}

// give passes an item on. It returns true if the reader wants no more.
func (r *agentReader) give(item AgentItem) bool {
	r.at.Log = r.log.Cursor
	item.Cursor = r.at
	return !r.yield(item, nil)
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
		return r.give(AgentItem{Event: m.GetEvent()}), nil
	case m.GetLogEnd() != nil:
		if r.at.LogEnded {
			return false, nil
		}
		r.at.LogEnded = true
		return r.give(AgentItem{Output: &LogItem{Cursor: r.log.Cursor, End: m.GetLogEnd()}}), nil
	case m.GetEnd() != nil:
		r.give(AgentItem{End: m.GetEnd()})
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
		if !item.empty() && r.give(AgentItem{Output: &item}) {
			return true, nil
		}
	}
	if len(chunks) == 0 { // only the place
		r.at.Sequence, r.at.LogEnded = to.GetSequence(), to.GetLogEnded()
		r.log.Cursor = Cursor{Stdout: to.GetLog().GetStdoutOffset(), Stderr: to.GetLog().GetStderrOffset()}
	}
	return false, nil
}
