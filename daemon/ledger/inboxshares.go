package ledger

import (
	"github.com/containerd/errdefs"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/store"
)

// load is a number of messages, and their sizes by messageSize.
type load struct{ messages, bytes int }

func (b load) with(m *agboxv1.AgentMessage, sign int) load {
	return load{b.messages + sign, b.bytes + sign*messageSize(m)}
}

// within reports whether there is room for one more message in a part of an inbox: 1 of parts.
func (b load) within(m *agboxv1.AgentMessage, parts int) bool {
	return b.messages < maxInbox/parts && b.bytes+messageSize(m) <= maxInboxBytes/parts
}

// An agent fills at most one of oneAgent parts of the room that an inbox has for agents, and the
// agents within the border of a sandbox together one of oneSandbox parts.
const (
	oneAgent   = 4
	oneSandbox = 2
)

// sharers are who has a part of an inbox, of which a message takes room: its sender and the
// border in which that is. Users have none, because they have all of their own room.
func sharers(m *agboxv1.AgentMessage) []string {
	switch {
	case m.GetKind() != agboxv1.MessageKind_MESSAGE_KIND_TEXT || m.GetFrom() == agents.Init:
		return nil
	case m.GetFromBorder() == "": // from before it was written down
		return []string{m.GetFrom()}
	}
	return []string{m.GetFrom(), m.GetFromBorder()}
}

// shareOverlay is the key of the uncommitted part of an inbox within a batch.
type shareOverlay struct{ to, of string }

// shareIn is what is in an inbox of an agent or a sandbox, as the batch has it so far.
func (l *Ledger) shareIn(tx *store.Tx, to, of string) load {
	if share, ok := tx.Value(shareOverlay{to, of}).(load); ok {
		return share
	}
	l.mail.mu.Lock()
	defer l.mail.mu.Unlock()
	return l.mail.shares[to][of]
}

// putShares counts a message for those who have a part of the inbox, or takes it off if sign is
// -1: within the batch, and for everybody once that is committed.
func (l *Ledger) putShares(tx *store.Tx, to string, m *agboxv1.AgentMessage, sign int) {
	for _, of := range sharers(m) {
		share := l.shareIn(tx, to, of).with(m, sign)
		tx.SetValue(shareOverlay{to, of}, share)
		tx.OnCommit(func() {
			l.mail.mu.Lock()
			defer l.mail.mu.Unlock()
			l.mail.shareLocked(to, of, share)
		})
	}
}

// shareLocked sets what is in an inbox of an agent or a sandbox.
func (m *mailroom) shareLocked(to, of string, share load) {
	if share.messages == 0 {
		if delete(m.shares[to], of); len(m.shares[to]) == 0 {
			delete(m.shares, to)
		}
		return
	}
	if m.shares[to] == nil {
		m.shares[to] = make(map[string]load)
	}
	m.shares[to][of] = share
}

// admitMessage refuses a message of an agent or a user for which there is no room. What agents send
// takes no room of users.
func (l *Ledger) admitMessage(tx *store.Tx, to Agent, box inbox, m *agboxv1.AgentMessage) error {
	switch {
	case m.GetKind() != agboxv1.MessageKind_MESSAGE_KIND_TEXT:
		return nil
	case len(m.GetText()) > maxMessage:
		return fault.New(errdefs.ErrInvalidArgument, agboxv1.ErrorReason_INVALID_REQUEST,
			"A message has at most %d bytes, and this one has %d: send a part of it, or write it into a file and send its name.", maxMessage, len(m.GetText()))
	case m.GetFrom() == agents.Init:
		return hasRoom(to, box.users, m, "users", 1)
	}
	for i, of := range sharers(m) {
		who, parts := "this agent", oneAgent
		if i > 0 {
			who, parts = "the agents of this sandbox", oneSandbox
		}
		if err := hasRoom(to, l.shareIn(tx, to.ID, of), m, who, parts); err != nil {
			return err
		}
	}
	if err := hasRoom(to, load{box.sent, box.sentBytes}, m, "agents", 1); err != nil {
		return err
	}
	return l.hasInboxRoom(tx, to, m)
}

// hasRoom refuses a message for which there is no room in a part of an inbox. who is whose part
// it is, in words.
func hasRoom(to Agent, share load, m *agboxv1.AgentMessage, who string, parts int) error {
	if share.within(m, parts) {
		return nil
	}
	return fault.New(errdefs.ErrResourceExhausted, agboxv1.ErrorReason_INBOX_FULL,
		"The inbox of agent %s has %d messages of %d bytes from %s that it has not read, and there is no room for this one (at most %d messages and %d bytes): try again when it has read some.",
		to.ID, share.messages, share.bytes, who, maxInbox/parts, maxInboxBytes/parts).With("agent_id", to.ID)
}
