package ledger

import (
	"cmp"
	"encoding/json"
	"fmt"

	"google.golang.org/protobuf/proto"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/internal/fault"
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
	spawned, _ := tx.Value(spawnOverlay{}).([]Agent)
	near, parent := to, l.livingParent(tx, sender)
	for _, a := range append(l.agents.among(l.agents.index.named, to), spawned...) {
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
		last, err := l.takeBack(tx, sender.ID, box)
		if err != nil {
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

// takeBack removes the newest bounce from an inbox.
func (l *Ledger) takeBack(tx *store.Tx, agentID string, box inbox) (last bounced, err error) {
	page := tx.Messages(agentID, box.lastBounce-1, 1, 0)
	if len(page.Messages) == 0 || page.Messages[0].GetSeq() != box.lastBounce {
		return last, nil // it was damaged
	}
	m := proto.CloneOf(page.Messages[0])
	_ = json.Unmarshal([]byte(m.GetBody()), &last)
	if err := tx.RemoveMessage(agentID, m.GetSeq()); err != nil {
		return last, err
	}
	l.putInbox(tx, agentID, box.with(m, -1))
	return last, nil
}
