package ledger

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/types/known/timestamppb"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/store"
)

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
	for page := (store.MessagePage{More: true}); page.More && len(gone) < n; {
		page = tx.Messages(to, page.Next, min(8*n, messagePage), 0)
		for _, m := range page.Messages {
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
	for page := (store.MessagePage{More: true}); page.More; {
		page = tx.Messages(to, page.Next, messagePage, 0)
		for _, m := range page.Messages {
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
