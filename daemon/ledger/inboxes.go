package ledger

import (
	"encoding/json"
	"slices"
	"sync"
	"time"

	"github.com/agbox/agbox/agents"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

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
	changed waiters
	// enqueue schedules a round of an agent. It may be nil.
	enqueue func(agentID string)
}

// addLocked changes the sums of the stacks of an agent.
func (m *mailroom) addLocked(roots []string, bytes int) {
	for _, root := range roots {
		if m.stacks[root] += bytes; m.stacks[root] == 0 {
			delete(m.stacks, root)
		}
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

// forget removes the inbox of a deleted agent from memory.
func (m *mailroom) forget(a Agent) {
	agentID := a.ID
	m.mu.Lock()
	defer m.mu.Unlock()
	m.addLocked(a.StackRoots, -m.inboxes[agentID].sentBytes)
	delete(m.inboxes, agentID)
	delete(m.shares, agentID)
	m.changed.wake(agentID)
}

func idsOfAgents(list []Agent) []string {
	ids := make([]string, len(list))
	for i, a := range list {
		ids[i] = a.ID
	}
	return ids
}

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

// The bounds of messages from agents and users. makeRoom has that of agbox's own.
const (
	// maxMessage is the length of a text, in bytes.
	maxMessage = 64 << 10
	// maxInbox is the number of messages of agents in an inbox, and of those of users beside
	// them. maxInboxBytes is their size.
	maxInbox      = 1000
	maxInboxBytes = 1 << 20
)

// messageSize is what a message counts in its inbox, in bytes.
func messageSize(m *agboxv1.AgentMessage) int {
	return len(m.GetText()) + len(m.GetBody()) + len(m.GetKey()) + len(m.GetFrom()) + len(m.GetStream())
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

// kinNews is the body of a message about another agent, or about the breaker of a class.
type kinNews struct {
	Agent string `json:"agent,omitempty"`
	Name  string `json:"name,omitempty"`
	Title string `json:"title,omitempty"`
	// State is as users see it; that of a breaker is openWord or closedWord.
	State string `json:"state"`
	// Message says how it ended or why it is paused, and LastMessage is what it said last.
	Message     string `json:"message,omitempty"`
	LastMessage string `json:"last_message,omitempty"`
	// From is the parent that has ended, if the recipient has adopted the agent.
	From string `json:"from,omitempty"`
	// Crashes is how often it has crashed so far.
	Crashes uint32 `json:"crashes,omitempty"`
	// Until is when it is tried again, or when a breaker lets an agent begin.
	Until *time.Time `json:"until,omitempty"`
	// Class is that of the breaker.
	Class string `json:"class,omitempty"`
	// Earlier counts the messages of the same kind that the recipient had not acknowledged, and
	// that this one replaces.
	Earlier int `json:"earlier,omitempty"`
}

// subjectOf is what a message of agbox is about: an agent or, with a prefix that no id has, the
// breaker of a class.
func subjectOf(m *agboxv1.AgentMessage, news kinNews) string {
	if m.GetKind() == agboxv1.MessageKind_MESSAGE_KIND_BREAKER {
		return "class:" + news.Class
	}
	return m.GetFrom()
}

// subject is subjectOf for a message that was stored.
func subject(m *agboxv1.AgentMessage) string {
	var news kinNews
	if m.GetKind() == agboxv1.MessageKind_MESSAGE_KIND_BREAKER {
		_ = json.Unmarshal([]byte(m.GetBody()), &news) // agbox wrote it
	}
	return subjectOf(m, news)
}
