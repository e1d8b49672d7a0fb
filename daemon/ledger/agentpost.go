package ledger

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/internal/fault"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/store"
)

// Reports are what an incarnation has reported.
type Reports struct {
	// Events have the numbers of their rows as journal_upto. The last row of a message is one
	// of those.
	Events []*agboxv1.AgentEvent
	// Sent are the messages, in the order of their rows.
	Sent []Sent
}

// Sent is a message that an incarnation has reported.
type Sent struct {
	// Row is the number of its row in the journal.
	Row uint64
	// To is the recipient as the program named it: the id or name of an agent, or "parent".
	// It is empty if the message goes to all who have Stream open.
	To, Stream string
	Key        string
	// Text is not empty.
	Text string
}

// toParent is the recipient that every agent has.
const toParent = "parent"

// maxBounces is the number of messages in an inbox that say that another one could not be
// delivered. Further ones are counted by the last.
const maxBounces = 100

// post delivers what an incarnation has sent, if the change from before to after consumes
// its rows. A message that cannot be delivered returns as MESSAGE_KIND_BOUNCE.
func (l *Ledger) post(tx *store.Tx, before, after Agent, sent []Sent) error {
	if len(sent) == 0 || after.LastSequence == before.LastSequence || before.Incarnation == nil {
		return nil
	}
	known := make(map[string]string)
	for _, s := range sent {
		if s.Row <= before.Incarnation.JournalUpto {
			continue
		}
		if err := l.postOne(tx, after, s, known); err != nil {
			return err
		}
	}
	return nil
}

// postOne delivers one message. known has the recipients that were looked up before.
func (l *Ledger) postOne(tx *store.Tx, sender Agent, s Sent, known map[string]string) error {
	if s.Stream != "" {
		return l.fanOut(tx, sender, s)
	}
	to, found := known[s.To]
	if !found {
		to = l.recipient(tx, sender, s.To)
		known[s.To] = to
	}
	m := &agboxv1.AgentMessage{Kind: agboxv1.MessageKind_MESSAGE_KIND_TEXT, From: sender.ID, FromBorder: sender.SentFrom(), Key: s.Key, Text: s.Text}
	err := l.mayReach(tx, sender, to)
	if err == nil {
		err = l.deliver(tx, to, m)
	}
	if err != nil {
		return l.bounce(tx, sender, s, err)
	}
	return nil
}

// recipient returns the id of the agent that a sender means: an id, the name of a living
// agent, or "parent". Of several with a name, one that it reaches is meant, else one within the
// border of its sandbox. What fits none is returned as it is.
func (l *Ledger) recipient(tx *store.Tx, sender Agent, to string) string {
	if to == toParent {
		return l.livingParent(tx, sender)
	}
	if to == agents.Init || l.agentIn(tx, to).Exists() {
		return to
	}
	near, parent := to, l.livingParent(tx, sender)
	for _, a := range append(l.agents.among(l.agents.index.named, to), spawnedIn(tx)...) {
		switch a = l.agentIn(tx, a.ID); {
		case a.Name != to || a.Over():
		case sender.Reaches(a.Record, parent):
			return a.ID
		case sender.World() == a.World():
			near = a.ID
		}
	}
	return near
}

// livingParent returns the nearest ancestor that has not ended.
func (l *Ledger) livingParent(tx *store.Tx, a Agent) string {
	for a.Parent != "" && a.Parent != agents.Init {
		if a = l.agentIn(tx, a.Parent); a.Exists() && !a.Over() {
			return a.ID
		}
	}
	return agents.Init
}

// mayReach refuses a message of an agent that would cross a border. One to an agent within the
// border of another sandbox is refused like one to an agent that does not exist.
func (l *Ledger) mayReach(tx *store.Tx, sender Agent, to string) error {
	recipient := l.agentIn(tx, to)
	if !recipient.Exists() && to != agents.Init {
		return nil // that is said by deliver
	}
	if to == agents.Init {
		recipient.ID = agents.Init
	}
	switch {
	case sender.Reaches(recipient.Record, l.livingParent(tx, sender)):
		return nil
	case to != agents.Init && sender.World() != recipient.World():
		return recipientNotFound(to)
	}
	return fault.New(errdefs.ErrPermissionDenied, agboxv1.ErrorReason_STACK_BORDER,
		"Agent %s is in another stack; send to \"parent\" instead.", to).With("agent_id", to)
}

// bounced is the body of a message that says that another one was not delivered.
type bounced struct {
	To     string `json:"to,omitempty"`
	Stream string `json:"stream,omitempty"`
	Key    string `json:"key,omitempty"`
	// Reason is the name of an ErrorReason.
	Reason string `json:"reason"`
	// More is the number of earlier messages that were not delivered either, and of which
	// nothing else is known.
	More int `json:"more,omitempty"`
}

// bounce tells the sender that a message was not delivered, and why. If it has not read many
// such messages, the last one is replaced by one that counts it. An error that is no refusal
// is returned.
func (l *Ledger) bounce(tx *store.Tx, sender Agent, s Sent, why error) error {
	if fault.ReasonOf(why) == 0 {
		return why
	}
	about := bounced{To: s.To, Stream: s.Stream, Key: s.Key, Reason: fault.ReasonOf(why).String()}
	text := fmt.Sprintf("The message to %s was not delivered: %v", cmp.Or(s.To, "the stream "+s.Stream), why)
	if box := l.inboxIn(tx, sender.ID); box.bounces >= maxBounces {
		var last bounced
		if _, err := l.withdraw(tx, sender.ID, box, box.lastBounce, &last); err != nil {
			return err
		}
		about.More = last.More + 1
		text += fmt.Sprintf(" %d earlier ones were not delivered either.", about.More)
	}
	body, err := json.Marshal(about)
	if err != nil {
		return err
	}
	err = l.deliver(tx, sender.ID, &agboxv1.AgentMessage{Kind: agboxv1.MessageKind_MESSAGE_KIND_BOUNCE, From: agents.Init, Text: text, Body: string(body)})
	if fault.ReasonOf(err) != 0 {
		return nil // the sender has ended: nobody can be told
	}
	return err
}

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

// streamOverlay is the key of the agents that have opened a stream in a batch.
type streamOverlay struct{ stream string }

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
