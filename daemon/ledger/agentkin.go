package ledger

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/daemon/machine/agent"
	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/store"
)

// maxKinText is how much of a text of an agent a message about it has, in bytes.
const maxKinText = 4 << 10

// kinNews is the body of a message about a child.
type kinNews struct {
	Agent string `json:"agent"`
	Name  string `json:"name,omitempty"`
	Title string `json:"title,omitempty"`
	// State is as users see it.
	State string `json:"state"`
	// Message says how it ended, and LastMessage is what it said last.
	Message     string `json:"message,omitempty"`
	LastMessage string `json:"last_message,omitempty"`
	// From is the parent that has ended, if the recipient has adopted the agent.
	From string `json:"from,omitempty"`
}

// tellKin delivers to the parent of an agent what follows from a change of the agent. The key
// of a message names the newest event and what it tells, so it is delivered once.
func (l *Ledger) tellKin(tx *store.Tx, before, after Agent) error {
	if !before.Exists() || after.ID == agent.Init || after.LastSequence == before.LastSequence {
		return nil
	}
	if after.Parent != before.Parent {
		text := fmt.Sprintf("[ADOPTED] %s is your child now: its parent %s has ended. It is %s.", cmp.Or(after.Name, after.ID), before.Parent, after.Word())
		if err := l.tellParent(tx, after, agboxv1.MessageKind_MESSAGE_KIND_ADOPTED, text, before.Parent); err != nil {
			return err
		}
	}
	if !(after.Over() && !before.Over()) && !(idles(after) && !idles(before)) {
		return nil
	}
	text := fmt.Sprintf("[SIGCHLD] %s is %s. %s", cmp.Or(after.Name, after.ID), after.Word(), after.Done.GetMessage())
	return l.tellParent(tx, after, agboxv1.MessageKind_MESSAGE_KIND_CHILD, strings.TrimSpace(text), "")
}

// idles reports whether an agent has nothing to do until it gets a message.
func idles(a Agent) bool {
	return a.State == agent.Paused && a.Pause.Reason == forIdle && !a.Pause.Woken
}

// tellParent delivers a message about an agent to its nearest living ancestor.
func (l *Ledger) tellParent(tx *store.Tx, a Agent, kind agboxv1.MessageKind, text, from string) error {
	body, err := json.Marshal(kinNews{
		Agent: a.ID, Name: a.Name, Title: a.Spec.GetTitle(), State: a.Word(), Message: shortened(a.Done.GetMessage()),
		LastMessage: shortened(a.Progress.GetLastMessage()), From: from,
	})
	if err != nil {
		return err
	}
	to := l.heirIn(tx, a)
	return l.deliver(tx, to, &agboxv1.AgentMessage{
		Key: fmt.Sprintf("%s/%d %s", a.ID, a.LastSequence, kind), Kind: kind, From: a.ID, Text: shortened(text), Body: string(body),
	})
}

// shortened cuts a text to maxKinText.
func shortened(text string) string {
	return strings.ToValidUTF8(text[:min(len(text), maxKinText)], "")
}

// tellUnstarted tells init, once, that agbox cannot write down the start of an agent, which
// waits for that. An inbox that is full does not hold up the agent.
func (l *Ledger) tellUnstarted(tx *store.Tx, before, after Agent) error {
	if before.Unstarted > 0 || after.Unstarted == 0 {
		return nil
	}
	err := l.deliver(tx, agent.Init, &agboxv1.AgentMessage{
		Kind: agboxv1.MessageKind_MESSAGE_KIND_TEXT, From: after.ID, Key: fmt.Sprintf("never-started/%d", after.LastSequence),
		Text: "The agent cannot be started. That counts as no crash, and is tried again. " + after.UnstartedWhy,
	})
	if fault.ReasonOf(err) == agboxv1.ErrorReason_INBOX_FULL {
		return nil
	}
	return err
}
