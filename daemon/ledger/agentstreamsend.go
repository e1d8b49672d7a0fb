package ledger

import (
	"context"
	"slices"
	"strings"

	"github.com/containerd/errdefs"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/store"
)

// StreamText is a text for all agents that have a stream open.
type StreamText struct {
	// From is the sender, who is in no stack.
	From string
	// Stream is the name of the stream, and Stack that of the stack in which it is. Without
	// one, the text goes to agents that are in no stack.
	Stream, Stack string
	// Key makes it repeatable: a recipient that has it already does not get it again.
	Key  string
	Text string
}

// Delivery is what became of a message for one recipient.
type Delivery struct {
	To Agent
	// Seq is the number of the message in its inbox.
	Seq uint64
	// Refused says why it was not delivered. It is nil if it was.
	Refused *fault.Error
}

// SendOnStream delivers a text to all that have the stream open, by ascending id. A recipient
// that refuses it does not keep it from the others. Without a recipient it fails with
// AGENT_NOT_FOUND.
func (l *Ledger) SendOnStream(ctx context.Context, s StreamText) (list []Delivery, err error) {
	err = l.store.Update(ctx, func(tx *store.Tx) error {
		list = nil
		var elsewhere []string
		for _, id := range l.subscribers(tx, s.Stream) {
			a := l.agentIn(tx, id)
			if a.Stack != s.Stack {
				elsewhere = append(elsewhere, a.Stack)
				continue
			}
			m := &agboxv1.AgentMessage{Kind: agboxv1.MessageKind_MESSAGE_KIND_TEXT, From: s.From, Key: s.Key, Stream: s.Stream, Text: s.Text}
			err := l.deliver(tx, id, m)
			refused := fault.Of(err)
			if err != nil && refused == nil {
				return err
			}
			list = append(list, Delivery{To: a, Seq: m.GetSeq(), Refused: refused})
		}
		if len(list) == 0 {
			return nobodyListens(s, elsewhere)
		}
		return nil
	})
	return list, err
}

// nobodyListens refuses a text without a recipient. elsewhere has the stacks of the agents that
// have such a stream open.
func nobodyListens(s StreamText, elsewhere []string) error {
	slices.Sort(elsewhere)
	elsewhere = slices.Compact(elsewhere)
	switch {
	case s.Stack != "":
		return fault.New(errdefs.ErrNotFound, agboxv1.ErrorReason_AGENT_NOT_FOUND, "No agent in a stack %q has the stream %q open.", s.Stack, s.Stream)
	case len(elsewhere) > 0:
		return fault.New(errdefs.ErrNotFound, agboxv1.ErrorReason_AGENT_NOT_FOUND,
			"No agent outside of stacks has the stream %q open. Agents in these stacks have: %s. Name a stack to send it there.", s.Stream, strings.Join(elsewhere, ", "))
	}
	return fault.New(errdefs.ErrNotFound, agboxv1.ErrorReason_AGENT_NOT_FOUND,
		`No agent has the stream %q open. A program opens it with "agbox-agent open %[1]s".`, s.Stream)
}
