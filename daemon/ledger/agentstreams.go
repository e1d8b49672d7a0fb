package ledger

import (
	"context"
	"maps"
	"slices"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/store"
)

// streamOverlay is the key of the agents that have opened a stream in a batch.
type streamOverlay struct{ stream string }

// subscribeLocked updates the sets of the streams that an agent has open.
func (b *agentBook) subscribeLocked(before, after Agent) {
	for _, stream := range before.Streams {
		b.streams.remove(stream, before.ID)
	}
	if after.Over() || after.Deleted {
		return
	}
	for _, stream := range after.Streams {
		b.streams.add(stream, after.ID)
	}
}

// OpenStream lets an agent get all messages that others send on a stream from now on. It
// does nothing if the agent has that open.
func (l *Ledger) OpenStream(ctx context.Context, id, stream string) (Agent, error) {
	return l.updateAgent(ctx, id, func(t *agentTxn) error { return t.openStream(id, stream) })
}

func (t *agentTxn) openStream(id, stream string) error {
	switch a := t.a; {
	case !a.Exists():
		return agentNotFound(id)
	case a.Opens(stream):
		return errNothing
	case len(a.Streams) >= agents.MaxStreams:
		return fault.New(errdefs.ErrResourceExhausted, agboxv1.ErrorReason_AGENT_LIMIT,
			"Agent %s has %d streams open already, which is the limit; close some first.", id, agents.MaxStreams).With("agent_id", id)
	}
	opened, _ := t.tx.Value(streamOverlay{stream}).([]string)
	t.tx.SetValue(streamOverlay{stream}, append(slices.Clone(opened), id))
	return t.append(id, agents.StreamOpened(stream))
}

// CloseStream ends that. It does nothing if the agent has no such stream open.
func (l *Ledger) CloseStream(ctx context.Context, id, stream string) (Agent, error) {
	return l.updateAgent(ctx, id, func(t *agentTxn) error {
		switch {
		case !t.a.Exists():
			return agentNotFound(id)
		case !t.a.Opens(stream):
			return errNothing
		}
		return t.append(id, agents.StreamClosed(stream))
	})
}

// subscribers returns the ids of the living agents that have a stream open, in byte order.
func (l *Ledger) subscribers(tx *store.Tx, stream string) []string {
	l.agents.mu.RLock()
	ids := slices.Collect(maps.Keys(l.agents.streams[stream]))
	l.agents.mu.RUnlock()
	opened, _ := tx.Value(streamOverlay{stream}).([]string)
	ids = append(ids, opened...)
	slices.Sort(ids)
	return slices.DeleteFunc(slices.Compact(ids), func(id string) bool {
		a := l.agentIn(tx, id)
		return a.Over() || !a.Opens(stream)
	})
}

// Subscribers is how many agents have a stream open, in whatever stack.
func (l *Ledger) Subscribers(stream string) int {
	l.agents.mu.RLock()
	defer l.agents.mu.RUnlock()
	return len(l.agents.streams[stream])
}

// fanOut delivers a message on a stream to all within the innermost border of its sender who have it open, but
// not to the sender. A recipient without room does not keep it from the others.
func (l *Ledger) fanOut(tx *store.Tx, sender Agent, s Sent) error {
	recipients := slices.DeleteFunc(l.subscribers(tx, s.Stream), func(id string) bool {
		return id == sender.ID || l.agentIn(tx, id).StackRoot() != sender.StackRoot()
	})
	if len(recipients) == 0 {
		return l.bounce(tx, sender, s, fault.New(errdefs.ErrNotFound, agboxv1.ErrorReason_AGENT_NOT_FOUND, "No other agent that it shares streams with has the stream %s open.", s.Stream))
	}
	m := &agboxv1.AgentMessage{Kind: agboxv1.MessageKind_MESSAGE_KIND_TEXT, From: sender.ID, FromBorder: sender.SentFrom(), Key: s.Key, Stream: s.Stream, Text: s.Text}
	for _, to := range recipients {
		one := s
		one.To = to
		if err := l.deliver(tx, to, proto.CloneOf(m)); err == nil {
			continue
		} else if err := l.bounce(tx, sender, one, err); err != nil {
			return err
		}
	}
	return nil
}
