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
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/daemon/machine"
	"github.com/agbox/agbox/internal/fault"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/store"
)

// SendMessage delivers a text and returns its seq in the inbox.
func (l *Ledger) SendMessage(ctx context.Context, from, to, key, text string) (seq uint64, err error) {
	err = l.store.Update(ctx, func(tx *store.Tx) error {
		m := &agboxv1.AgentMessage{Kind: agboxv1.MessageKind_MESSAGE_KIND_TEXT, From: from, Key: key, Text: text}
		if err := l.deliver(tx, to, m); err != nil {
			return err
		}
		seq = m.GetSeq()
		return nil
	})
	return seq, err
}

// deliver puts a message into the inbox of an agent and wakes it if its pause allows that
// (agent.WakesOnMessage). It sets seq and time of the message. A message with sender, stream and key of an earlier one is not added
// again: it gets the seq of that. Messages of one sender are read in the order of their
// delivery.
//
// The error is AGENT_NOT_FOUND, AGENT_WRONG_STATE for an agent that has ended, or
// INBOX_FULL; the latter only for MESSAGE_KIND_TEXT. Then nothing was changed. The inbox of
// init always exists.
//
// It must not be called inside a change of the recipient itself (withinAgent).
func (l *Ledger) deliver(tx *store.Tx, to string, m *agboxv1.AgentMessage) error {
	a := l.agentIn(tx, to)
	switch {
	case to == agents.Init:
	case !a.Exists() || a.Deleted:
		return recipientNotFound(to)
	case a.Over():
		return cannot(a, "sent a message", "nobody would read it")
	}
	if m.GetKey() != "" {
		if seq := tx.MessageWithKey(to, m); seq != 0 {
			m.Seq = seq
			return nil
		}
	}
	if m.GetKind() != agboxv1.MessageKind_MESSAGE_KIND_TEXT {
		if err := l.makeRoom(tx, to); err != nil {
			return err
		}
	}
	box := l.inboxIn(tx, to)
	a.ID = to // init may have no record yet
	if err := l.admitMessage(tx, a, box, m); err != nil {
		return err
	}
	now := l.now()
	if m.At = timestamppb.New(now); agents.IsSignal(m) {
		m.Tries = 1
	}
	if err := tx.PutMessage(to, m); err != nil {
		return err
	}
	l.putInbox(tx, to, box.with(m, 1).awaits(m, now))
	l.putShares(tx, to, m, 1)
	err := l.wakeByMessage(tx, a, fmt.Sprintf("a message of %s", m.GetFrom()))
	l.enqueue(tx, to)
	return err
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

// hasInboxRoom refuses a message of an agent if the inboxes of a stack that its recipient is in
// have no room for it.
func (l *Ledger) hasInboxRoom(tx *store.Tx, to Agent, m *agboxv1.AgentMessage) error {
	for _, root := range to.StackRoots {
		rules := agents.StackOf(l.agentIn(tx, root).Spec)
		if rules.InboxBytes == 0 {
			continue
		}
		if used := l.stackBytesIn(tx, root) + messageSize(m); uint64(used) > rules.InboxBytes {
			return fault.New(errdefs.ErrResourceExhausted, agboxv1.ErrorReason_INBOX_FULL,
				"The agents of stack %s may have %d bytes of messages that they have not read, and there is no room for this one: try again when they have read some.",
				rules.Name, rules.InboxBytes).With("agent_id", to.ID)
		}
	}
	return nil
}

// wakeByMessage wakes an agent that has got a message, if its pause allows that. A drain is not
// taken back: its agent goes on once it is over. The message holds an agent that nobody holds.
func (l *Ledger) wakeByMessage(tx *store.Tx, a Agent, by string) error {
	if !a.Exists() || a.ID == agents.Init {
		return nil
	}
	_, err := l.withinAgent(tx, a.ID, func(t *agentTxn) error {
		if err := t.holdByInbox(); err != nil {
			return err
		}
		on, wanted := t.a.Spec.GetWakeOn(), t.a.PauseWanted.GetReason()
		switch {
		case t.a.State == agents.Paused && !t.a.Pause.Woken && agents.WakesOnMessage(t.a.Pause.Reason, on):
			return t.wake(&agboxv1.AgentWake{By: by})
		case wanted == forRequest && agents.WakesOnMessage(wanted, on):
			return t.wantPause(forDrain, "A message came while it was drained.")
		case t.a.LastSequence == a.LastSequence:
			return errNothing
		}
		return nil
	})
	return err
}

// wakeIdle wakes an agent that is IDLE.
func (l *Ledger) wakeIdle(tx *store.Tx, a Agent, by string) error {
	if a.State != agents.Paused || a.Pause.Reason != forIdle || a.Pause.Woken {
		return nil
	}
	_, err := l.withinAgent(tx, a.ID, func(t *agentTxn) error { return t.wake(&agboxv1.AgentWake{By: by}) })
	return err
}

// wakeForUnread wakes an agent that has become IDLE while it had messages, and one that a message
// wakes and that got one while it was drained because its sandbox stops.
func (l *Ledger) wakeForUnread(tx *store.Tx, before, after Agent) error {
	if after.LastSequence == before.LastSequence || l.inboxIn(tx, after.ID).unread() == 0 {
		return nil
	}
	if after.State == agents.Paused && after.Pause.Reason == forDrain && after.Pause.Begun > before.LastSequence && l.calledWhileStopping(tx, after) {
		return l.wakeByMessage(tx, after, "a message that came while its sandbox was stopped")
	}
	return l.wakeIdle(tx, after, "a message that it has not read")
}

// calledWhileStopping reports whether an agent has a message that came after its sandbox was
// requested to stop.
func (l *Ledger) calledWhileStopping(tx *store.Tx, a Agent) bool {
	sb, known := l.sandboxIn(tx, a.SandboxID)
	if !known || sb.Want != machine.WantStopped || !agents.WakesOnMessage(forDrain, a.Spec.GetWakeOn()) {
		return false
	}
	for page := (store.Page[*agboxv1.AgentMessage]{More: true}); page.More; {
		page = tx.Messages(a.ID, page.Next, messagePage, 0)
		for _, m := range page.Records {
			if m.GetKind() != agboxv1.MessageKind_MESSAGE_KIND_OBSERVATION && !m.GetAt().AsTime().Before(sb.StopRequestedAt) {
				return true
			}
		}
	}
	return false
}

// messagePage is how many messages are read at once.
const messagePage = 100

// Messages returns the oldest messages in the inbox of an agent after a seq, of at most
// maxBytes, but at least one. left is the number of further ones.
func (l *Ledger) Messages(ctx context.Context, agentID string, after uint64, maxBytes int) (list []*agboxv1.AgentMessage, left int, err error) {
	err = l.store.View(ctx, func(tx *store.Tx) error {
		page := tx.Messages(agentID, after, messagePage, maxBytes)
		list = page.Records
		if page.More {
			left = tx.CountMessages(agentID, page.Next)
		}
		return nil
	})
	return list, left, err
}

// NewestMessage is the highest seq of a message that an inbox ever had; 0 if it never had any.
func (l *Ledger) NewestMessage(ctx context.Context, agentID string) (seq uint64, err error) {
	return look(ctx, l, func(tx *store.Tx) uint64 { return tx.NewestMessage(agentID) })
}

// Unread is the number of messages in the inbox of an agent, without that of its observation.
func (l *Ledger) Unread(agentID string) int {
	l.mail.mu.Lock()
	defer l.mail.mu.Unlock()
	return l.mail.inboxes[agentID].unread()
}

// Acknowledge removes the messages of an inbox up to a seq. Without any it writes nothing.
func (l *Ledger) Acknowledge(ctx context.Context, agentID string, upto uint64) error {
	if upto == 0 || l.Unread(agentID) == 0 && !l.Observes(agentID) {
		return nil
	}
	return l.store.Update(ctx, func(tx *store.Tx) error {
		box, removed := l.inboxIn(tx, agentID), 0
		if err := tx.RemoveMessages(agentID, upto, func(m *agboxv1.AgentMessage) {
			removed++
			box = box.with(m, -1)
			l.putShares(tx, agentID, m, -1)
		}); err != nil {
			return err
		}
		if removed > 0 {
			l.putInbox(tx, agentID, box)
			l.enqueue(tx, agentID) // its messages may have held it
		}
		return nil
	})
}

// withdraw removes a message of agbox that a newer one replaces, and reads its body. It leaves one
// that is damaged.
func (l *Ledger) withdraw(tx *store.Tx, to string, box inbox, seq uint64, body any) (found bool, err error) {
	m := tx.Message(to, seq)
	if m == nil {
		return false, nil
	}
	_ = json.Unmarshal([]byte(m.GetBody()), body)
	l.putInbox(tx, to, box.with(m, -1))
	return true, tx.RemoveMessage(to, seq)
}

// NotifyAgents sets the function that schedules a round of an agent for which somebody else
// has done something: sent it a message, for example. It is called by the goroutine that
// commits, so it must be short, must not block and must not use the ledger.
func (l *Ledger) NotifyAgents(enqueue func(agentID string)) {
	l.mail.mu.Lock()
	defer l.mail.mu.Unlock()
	l.mail.enqueue = enqueue
}

// InboxChanged returns a channel that is closed when the inbox of an agent changes after this
// call, or the agent is removed.
func (l *Ledger) InboxChanged(agentID string) <-chan struct{} {
	l.mail.mu.Lock()
	defer l.mail.mu.Unlock()
	return l.mail.changed.on(agentID)
}

const (
	// maxOwn is how many messages of agbox itself an inbox has before a further one. Only the
	// newest word about each agent that lives can be more.
	maxOwn = 1000
	// ownRoom is how many places are made in an inbox that is full, because that reads all of it.
	ownRoom = 100
	// maxDigested is how many agents a digest names.
	maxDigested = 100
)

// digest is the body of a message that stands for earlier ones about other agents.
type digest struct {
	// Messages is how many these were, and States what they told.
	Messages int            `json:"messages"`
	States   map[string]int `json:"states"`
	// Agents are the ids of those that were told of last.
	Agents []string `json:"agents"`
}

// makeRoom keeps the messages of agbox itself in an inbox within their bound. Of those about
// other agents, the oldest are put together into one, with what they told. The newest word about
// an agent that lives stays, because that may wait for its parent; what has ended stays among the
// children. Nobody need read the inbox of init, so there the oldest one is removed.
func (l *Ledger) makeRoom(tx *store.Tx, to string) error {
	box := l.inboxIn(tx, to)
	if box.own < maxOwn {
		return nil
	}
	n, fits := 1, func(m *agboxv1.AgentMessage) bool { return m.GetKind() != agboxv1.MessageKind_MESSAGE_KIND_TEXT }
	if to != agents.Init {
		n, fits = box.own-maxOwn+ownRoom, l.notNews(tx, to)
	}
	var gone []*agboxv1.AgentMessage
	for page := (store.Page[*agboxv1.AgentMessage]{More: true}); page.More && len(gone) < n; {
		page = tx.Messages(to, page.Next, min(8*n, messagePage), 0)
		for _, m := range page.Records {
			if len(gone) < n && fits(m) {
				gone = append(gone, m)
			}
		}
	}
	for _, m := range gone {
		box = box.with(m, -1)
		if err := tx.RemoveMessage(to, m.GetSeq()); err != nil {
			return err
		}
	}
	l.putInbox(tx, to, box)
	if to == agents.Init || len(gone) == 0 {
		return nil
	}
	return l.putDigest(tx, to, gone)
}

// notNews reports of the messages of an inbox whether they are about another agent or a breaker,
// but not the newest word about a breaker or an agent that lives.
func (l *Ledger) notNews(tx *store.Tx, to string) func(*agboxv1.AgentMessage) bool {
	newest := make(map[string]uint64)
	for page := (store.Page[*agboxv1.AgentMessage]{More: true}); page.More; {
		page = tx.Messages(to, page.Next, messagePage, 0)
		for _, m := range page.Records {
			if agents.IsSignal(m) {
				newest[subject(m)] = m.GetSeq()
			}
		}
	}
	return func(m *agboxv1.AgentMessage) bool {
		if !agents.IsSignal(m) {
			return false
		}
		if newest[subject(m)] != m.GetSeq() {
			return true
		}
		a := l.agentIn(tx, m.GetFrom())
		return m.GetKind() != agboxv1.MessageKind_MESSAGE_KIND_BREAKER && (m.GetFrom() == agents.Init || !a.Exists() || a.Over() || a.Deleted)
	}
}

// isDigest reports whether a message stands for others.
func isDigest(m *agboxv1.AgentMessage) bool {
	return m.GetFrom() == agents.Init && m.GetKind() == agboxv1.MessageKind_MESSAGE_KIND_CHILD
}

// putDigest adds the message that stands for others.
func (l *Ledger) putDigest(tx *store.Tx, to string, gone []*agboxv1.AgentMessage) error {
	sum := digest{States: make(map[string]int)}
	for _, m := range gone {
		var before digest
		if isDigest(m) && json.Unmarshal([]byte(m.GetBody()), &before) == nil {
			sum.Messages += before.Messages
			for state, n := range before.States {
				sum.States[state] += n
			}
			sum.Agents = append(sum.Agents, before.Agents...)
			continue
		}
		var told kinNews
		_ = json.Unmarshal([]byte(m.GetBody()), &told) // one about a conflict has none
		sum.Messages++
		sum.States[cmp.Or(told.State, "PAUSED")]++
		sum.Agents = append(sum.Agents, m.GetFrom())
	}
	sum.Agents = sum.Agents[max(0, len(sum.Agents)-maxDigested):]
	var states []string
	for _, state := range slices.Sorted(maps.Keys(sum.States)) {
		states = append(states, fmt.Sprint(sum.States[state], " ", state))
	}
	body, err := json.Marshal(sum)
	if err != nil {
		return err
	}
	now := l.now()
	m := &agboxv1.AgentMessage{
		Kind: agboxv1.MessageKind_MESSAGE_KIND_CHILD, From: agents.Init, At: timestamppb.New(now), Tries: 1, Body: string(body),
		Text: fmt.Sprintf("[SIGCHLD] %d earlier messages about other agents were put together: %s. \"agbox-agent children\" lists the children.", sum.Messages, strings.Join(states, ", ")),
	}
	if err := tx.PutMessage(to, m); err != nil {
		return err
	}
	l.putInbox(tx, to, l.inboxIn(tx, to).with(m, 1).awaits(m, now))
	return nil
}
