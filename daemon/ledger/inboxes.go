package ledger

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/internal/fault"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/store"
)

// inbox says how full the inbox of an agent is.
type inbox struct {
	// sent counts the messages of agents, and sentBytes their sizes. users has the same of those
	// of users. own counts those of agbox. bounces counts those of them that are
	// MESSAGE_KIND_BOUNCE, and lastBounce is the seq of the newest one.
	sent, sentBytes, own, bounces int
	users                         load
	lastBounce                    uint64
	// observation is the seq of the MESSAGE_KIND_OBSERVATION, or 0. None of the counts has it.
	observation uint64
	// signals are those messages of agbox that are about others. It is never changed in place.
	signals []signal
}

// signal is a message about an agent or a class. It is tried again until it is acknowledged or
// given up.
type signal struct {
	seq     uint64
	kind    agboxv1.MessageKind
	subject string
	givenUp bool
	// last is when it was tried last, or when this daemon began.
	last time.Time
}

// awaits returns the inbox with a message that is tried again, if it is one.
func (b inbox) awaits(m *agboxv1.AgentMessage, last time.Time) inbox {
	if agents.IsSignal(m) {
		b.signals = append(b.signals[:len(b.signals):len(b.signals)], signal{m.GetSeq(), m.GetKind(), subject(m), m.GetGivenUp(), last})
	}
	return b
}

// without returns the signals but one.
func (b inbox) without(seq uint64) []signal {
	return slices.DeleteFunc(slices.Clone(b.signals), func(s signal) bool { return s.seq == seq })
}

// with returns the inbox with one more message, or with one less if sign is -1.
func (b inbox) with(m *agboxv1.AgentMessage, sign int) inbox {
	if m.GetKind() == agboxv1.MessageKind_MESSAGE_KIND_OBSERVATION {
		b.observation = 0
		if sign > 0 {
			b.observation = m.GetSeq()
		}
		return b
	}
	if m.GetKind() != agboxv1.MessageKind_MESSAGE_KIND_TEXT {
		b.own += sign
		if sign < 0 && len(b.signals) > 0 {
			b.signals = b.without(m.GetSeq())
		}
		if m.GetKind() == agboxv1.MessageKind_MESSAGE_KIND_BOUNCE {
			b.bounces += sign
			b.lastBounce = max(b.lastBounce, m.GetSeq())
		}
		return b
	}
	if m.GetFrom() == agents.Init {
		b.users = b.users.with(m, sign)
		return b
	}
	b.sent += sign
	b.sentBytes += sign * messageSize(m)
	return b
}

func (b inbox) unread() int { return b.sent + b.users.messages + b.own }

func (b inbox) empty() bool { return b.unread() == 0 && b.observation == 0 }

// messageSize is what a message counts in its inbox, in bytes.
func messageSize(m *agboxv1.AgentMessage) int {
	return len(m.GetText()) + len(m.GetBody()) + len(m.GetKey()) + len(m.GetFrom()) + len(m.GetStream())
}

// mailroom has the inboxes that are not empty.
type mailroom struct {
	// mu guards the fields below. It is held only for map operations, never for I/O.
	mu      sync.Mutex
	inboxes map[string]inbox
	// shares has by recipient what is in its inbox of each agent and of each sandbox.
	shares map[string]map[string]load
	// stacks has by root the sum of sentBytes of all agents in a stack, ended ones too.
	stacks map[string]int
	// changed has channels that are closed when an inbox changes.
	changed map[string]chan struct{}
	// enqueue schedules a round of an agent. It may be nil.
	enqueue func(agentID string)
}

// inboxOverlay is the key of the uncommitted inbox of an agent within a batch.
type inboxOverlay struct{ agentID string }

// stackOverlay is the key of the uncommitted sum of a stack within a batch.
type stackOverlay struct{ root string }

// openInboxes counts what is in the inboxes of all agents.
func (l *Ledger) openInboxes(ctx context.Context) error {
	l.mail.inboxes, l.mail.changed, l.mail.stacks = make(map[string]inbox), make(map[string]chan struct{}), make(map[string]int)
	l.mail.shares = make(map[string]map[string]load)
	for _, id := range append(idsOfAgents(l.Agents(nil)), agents.Init) {
		var box inbox
		for page := (store.MessagePage{More: true}); page.More; {
			err := l.store.View(ctx, func(tx *store.Tx) error {
				page = tx.Messages(id, page.Next, loadPage, 0)
				return nil
			})
			if err != nil {
				return fmt.Errorf("read the inbox of agent %s: %w", id, err)
			}
			for _, bad := range page.Bad {
				l.log.Error("a message cannot be read and is left out", "agent_id", id, "error", bad)
			}
			for _, m := range page.Messages {
				box = box.with(m, 1).awaits(m, l.now())
				for _, of := range sharers(m) {
					l.mail.shareLocked(id, of, l.mail.shares[id][of].with(m, 1)) // nobody else uses the ledger yet
				}
			}
		}
		if !box.empty() {
			l.mail.inboxes[id] = box
		}
		a, _ := l.Agent(id)
		l.mail.addLocked(a.StackRoots, box.sentBytes) // nobody else uses the ledger yet
	}
	return nil
}

// addLocked changes the sums of the stacks of an agent.
func (m *mailroom) addLocked(roots []string, bytes int) {
	for _, root := range roots {
		if m.stacks[root] += bytes; m.stacks[root] == 0 {
			delete(m.stacks, root)
		}
	}
}

// stackBytesIn is the sum of sentBytes of a stack as the batch has it so far.
func (l *Ledger) stackBytesIn(tx *store.Tx, root string) int {
	if sum, ok := tx.Value(stackOverlay{root}).(int); ok {
		return sum
	}
	l.mail.mu.Lock()
	defer l.mail.mu.Unlock()
	return l.mail.stacks[root]
}

func idsOfAgents(list []Agent) []string {
	ids := make([]string, len(list))
	for i, a := range list {
		ids[i] = a.ID
	}
	return ids
}

// NotifyAgents sets the function that schedules a round of an agent for which somebody else
// has done something: sent it a message, for example. It is called by the goroutine that
// commits, so it must be short, must not block and must not use the ledger.
func (l *Ledger) NotifyAgents(enqueue func(agentID string)) {
	l.mail.mu.Lock()
	defer l.mail.mu.Unlock()
	l.mail.enqueue = enqueue
}

// stir schedules a round of an agent once the transaction is committed. It is for agents
// other than the one whom the caller enqueues anyway.
func (l *Ledger) stir(tx *store.Tx, agentID string) {
	tx.OnCommit(func() {
		l.mail.mu.Lock()
		enqueue := l.mail.enqueue
		l.mail.mu.Unlock()
		if enqueue != nil {
			enqueue(agentID)
		}
	})
}

// inboxIn returns the inbox of an agent as the batch has it so far.
func (l *Ledger) inboxIn(tx *store.Tx, agentID string) inbox {
	if box, ok := tx.Value(inboxOverlay{agentID}).(inbox); ok {
		return box
	}
	l.mail.mu.Lock()
	defer l.mail.mu.Unlock()
	return l.mail.inboxes[agentID]
}

// putInbox replaces the inbox of an agent within a batch, and for everybody once that is
// committed.
func (l *Ledger) putInbox(tx *store.Tx, agentID string, box inbox) {
	more := box.sentBytes - l.inboxIn(tx, agentID).sentBytes
	roots := l.agentIn(tx, agentID).StackRoots
	for _, root := range roots {
		tx.SetValue(stackOverlay{root}, l.stackBytesIn(tx, root)+more)
	}
	tx.SetValue(inboxOverlay{agentID}, box)
	tx.OnCommit(func() {
		l.mail.mu.Lock()
		defer l.mail.mu.Unlock()
		l.mail.addLocked(roots, more)
		if box.empty() {
			delete(l.mail.inboxes, agentID)
		} else {
			l.mail.inboxes[agentID] = box
		}
		l.mail.tellLocked(agentID)
	})
}

// InboxChanged returns a channel that is closed when the inbox of an agent changes after this
// call, or the agent is removed.
func (l *Ledger) InboxChanged(agentID string) <-chan struct{} {
	l.mail.mu.Lock()
	defer l.mail.mu.Unlock()
	changed, exists := l.mail.changed[agentID]
	if !exists {
		changed = make(chan struct{})
		l.mail.changed[agentID] = changed
	}
	return changed
}

// tellLocked wakes those who wait for a change of an inbox.
func (m *mailroom) tellLocked(agentID string) {
	if changed, exists := m.changed[agentID]; exists {
		close(changed)
		delete(m.changed, agentID)
	}
}

// forget removes the inbox of a deleted agent from memory.
func (m *mailroom) forget(a Agent) {
	agentID := a.ID
	m.mu.Lock()
	defer m.mu.Unlock()
	m.addLocked(a.StackRoots, -m.inboxes[agentID].sentBytes)
	delete(m.inboxes, agentID)
	delete(m.shares, agentID)
	m.tellLocked(agentID)
}

// Unread is the number of messages in the inbox of an agent, without that of its observation.
func (l *Ledger) Unread(agentID string) int {
	l.mail.mu.Lock()
	defer l.mail.mu.Unlock()
	return l.mail.inboxes[agentID].unread()
}

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
