package ledger

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/internal/fault"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/store"
)

// notifyKin delivers to the parent of an agent, and to init, what follows from a change of the
// agent. The key of a message names the newest event and what it tells, so it is delivered once.
func (l *Ledger) notifyKin(tx *store.Tx, before, after Agent) error {
	if !before.Exists() || after.ID == agents.Init || after.LastSequence == before.LastSequence {
		return nil
	}
	heir := l.heirIn(tx, after)
	if after.Parent != before.Parent {
		text := fmt.Sprintf("[ADOPTED] %s is your child now: its parent %s has ended. It is %s.", after.Called(), before.Parent, after.Word())
		if err := l.tell(tx, heir, after, agboxv1.MessageKind_MESSAGE_KIND_ADOPTED, text, before.Parent); err != nil {
			return err
		}
	}
	news, tells := agents.News(before.Record, after.Record), after.Spec.GetTells()
	if news == agboxv1.MessageKind_MESSAGE_KIND_UNSPECIFIED {
		return nil
	}
	if kind := after.ToParent(news, tells, heir == agents.Init); kind != 0 {
		if err := l.tell(tx, heir, after, kind, newsText(news, after), ""); err != nil {
			return err
		}
	}
	if kind := after.ToInit(news, tells); kind != 0 && heir != agents.Init {
		return l.tell(tx, agents.Init, after, kind, newsText(news, after), "")
	}
	return nil
}

// maxKinText is how much of a text of an agent a message about it has, in bytes.
const maxKinText = 4 << 10

// newsText says in words what a change of an agent tells.
func newsText(news agboxv1.MessageKind, a Agent) string {
	says := a.Done.GetMessage()
	switch {
	case news == agboxv1.MessageKind_MESSAGE_KIND_CRASH:
		says = fmt.Sprintf("Crash %d: %s.", a.Crashes, strings.TrimRight(a.Pause.Message, ".\n "))
		if !a.Pause.WakeAt.IsZero() {
			says += " It is tried again at " + a.Pause.WakeAt.UTC().Format(time.RFC3339) + "."
		}
	case news == agboxv1.MessageKind_MESSAGE_KIND_APPROVAL:
		says = fmt.Sprintf("It asks: %s A user decides: \"agbox agent approve %s\" or \"agbox agent deny %s\".", shortened(a.Decision.Message), a.Called(), a.Called())
	case a.Pause != nil && news == agboxv1.MessageKind_MESSAGE_KIND_DRAIN:
		says = a.Pause.Message
	}
	return strings.TrimSpace(fmt.Sprintf("[SIGCHLD] %s is %s. %s", a.Called(), a.Word(), says))
}

// shortened cuts a text to maxKinText.
func shortened(text string) string {
	return strings.ToValidUTF8(text[:min(len(text), maxKinText)], "")
}

// tell delivers a message about an agent.
func (l *Ledger) tell(tx *store.Tx, to string, a Agent, kind agboxv1.MessageKind, text, from string) error {
	news := kinNews{
		Agent: a.ID, Name: a.Name, Title: a.Spec.GetTitle(), State: a.Word(), Message: shortened(a.Done.GetMessage()),
		LastMessage: shortened(a.Progress.GetLastMessage()), From: from, Crashes: a.Crashes,
	}
	if a.Pause != nil {
		news.Message = shortened(a.Pause.Message)
		if !a.Pause.WakeAt.IsZero() {
			news.Until = &a.Pause.WakeAt
		}
	}
	if a.AwaitsApproval() {
		news.Message = shortened(a.Decision.Message)
	}
	return l.deliverNews(tx, to, &agboxv1.AgentMessage{
		Key: fmt.Sprintf("%s/%d %s", a.ID, a.LastSequence, kind), Kind: kind, From: a.ID, Text: shortened(text),
	}, news)
}

// replaceable are the kinds of which only the newest message counts, so that an agent that
// crashes or is drained again and again fills no inbox.
func replaceable(kind agboxv1.MessageKind) bool {
	switch kind {
	case agboxv1.MessageKind_MESSAGE_KIND_CRASH, agboxv1.MessageKind_MESSAGE_KIND_APPROVAL,
		agboxv1.MessageKind_MESSAGE_KIND_DRAIN, agboxv1.MessageKind_MESSAGE_KIND_BREAKER:
		return true
	}
	return false
}

// deliverNews delivers a message with a body. One of the same kind about the same agent or class
// that the recipient has not acknowledged is replaced.
func (l *Ledger) deliverNews(tx *store.Tx, to string, m *agboxv1.AgentMessage, news kinNews) error {
	box := l.inboxIn(tx, to)
	subject := subjectOf(m, news)
	i := slices.IndexFunc(box.signals, func(s signal) bool { return s.kind == m.GetKind() && s.subject == subject })
	if i >= 0 && replaceable(m.GetKind()) && tx.MessageWithKey(to, m) == 0 {
		var before kinNews
		found, err := l.withdraw(tx, to, box, box.signals[i].seq, &before)
		if err != nil {
			return err
		}
		if found {
			news.Earlier = before.Earlier + 1
		}
	}
	body, err := json.Marshal(news)
	if err != nil {
		return err
	}
	m.Body = string(body)
	return l.deliver(tx, to, m)
}

// tellUnstarted tells init, once, that agbox cannot write down the start of an agent, which
// waits for that. An inbox that is full does not hold up the agent.
func (l *Ledger) tellUnstarted(tx *store.Tx, before, after Agent) error {
	if before.Unstarted > 0 || after.Unstarted == 0 {
		return nil
	}
	err := l.deliver(tx, agents.Init, &agboxv1.AgentMessage{
		Kind: agboxv1.MessageKind_MESSAGE_KIND_TEXT, From: after.ID, Key: fmt.Sprintf("never-started/%d", after.LastSequence),
		Text: "The agent cannot be started. That counts as no crash, and is tried again. " + after.UnstartedWhy,
	})
	if fault.ReasonOf(err) == agboxv1.ErrorReason_INBOX_FULL {
		return nil
	}
	return err
}

// askToEnd delivers the message that asks an agent to end by itself, with the request.
func (l *Ledger) askToEnd(tx *store.Tx, before, after Agent) error {
	if before.EndsItself() || !after.EndsItself() || after.Over() {
		return nil
	}
	return l.deliver(tx, after.ID, sigterm(after.ID))
}

// sigterm is the message that asks an agent to end.
func sigterm(agentID string) *agboxv1.AgentMessage {
	return &agboxv1.AgentMessage{
		Key: "SIGTERM", Kind: agboxv1.MessageKind_MESSAGE_KIND_SIGTERM, From: agentID,
		Text: "[SIGTERM] You are asked to end: finish what you do, close what you have open, report your outcome and exit. Acknowledge this message within 30 seconds.",
	}
}

// Acknowledged reports whether an agent that is asked to end has acknowledged that.
func (l *Ledger) Acknowledged(ctx context.Context, agentID string) (yes bool, err error) {
	return look(ctx, l, func(tx *store.Tx) bool {
		seq := tx.MessageWithKey(agentID, sigterm(agentID)) // 0: so many followed it that its key is forgotten
		return seq == 0 || tx.Message(agentID, seq) == nil
	})
}

// Signal is when an agent was told last of a message about another agent that it has not
// acknowledged; of several, the longest ago. It is zero if there is none.
func (l *Ledger) Signal(agentID string) (oldest time.Time) {
	l.mail.mu.Lock()
	defer l.mail.mu.Unlock()
	for _, s := range l.mail.inboxes[agentID].signals {
		if !s.givenUp && (oldest.IsZero() || s.last.Before(oldest)) {
			oldest = s.last
		}
	}
	return oldest
}

// RepeatSignals tries all messages of an agent again that are due: it is woken if it is IDLE,
// and its program can receive them. One that was tried often enough is given up: that is
// recorded, and the message stays in the inbox.
func (l *Ledger) RepeatSignals(ctx context.Context, agentID string) error {
	return l.store.Update(ctx, func(tx *store.Tx) error {
		a, box, now := l.agentIn(tx, agentID), l.inboxIn(tx, agentID), l.now()
		if a.Incarnation == nil || a.Over() {
			return nil
		}
		repeated := false
		for _, s := range box.signals {
			if s.givenUp || now.Before(a.SignalDue(s.last)) {
				continue
			}
			repeated, box.signals = true, box.without(s.seq)
			m, err := l.repeatSignal(tx, a, s.seq)
			if err != nil {
				return err
			}
			if m != nil {
				box = box.awaits(m, now)
			}
		}
		if !repeated {
			return nil
		}
		l.putInbox(tx, agentID, box)
		return l.wakeIdle(tx, l.agentIn(tx, agentID), "a message that it has not read")
	})
}

// repeatSignal counts one more try of a message, or gives it up. It returns the message, or
// nil if that cannot be read.
func (l *Ledger) repeatSignal(tx *store.Tx, a Agent, seq uint64) (*agboxv1.AgentMessage, error) {
	m := tx.Message(a.ID, seq)
	if m == nil {
		return nil, nil
	}
	if m.GetTries() < agents.SignalTries {
		m.Tries++
		return m, tx.ReplaceMessage(a.ID, m)
	}
	m.GivenUp = true
	if err := tx.ReplaceMessage(a.ID, m); err != nil {
		return nil, err
	}
	_, err := l.withinAgent(tx, a.ID, func(t *agentTxn) error { return t.append(agents.SignalFailed(m)) })
	return m, err
}
