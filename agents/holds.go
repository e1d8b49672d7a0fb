package agents

import (
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// Bounds of holds.
const (
	// MaxHolders is how many holders an agent can have.
	MaxHolders = 64
	// HoldLinger is how long the hold of a client stays after its connection was lost, if the
	// client does not say: as long as a client waits for a daemon.
	HoldLinger = 30 * time.Second
)

// InboxHolder holds an agent that a message wakes, while nobody else does and it has messages
// that it has not acknowledged. Without it, such an agent would be suspended again at once.
const InboxHolder = "inbox"

// AgentHolder is the id of an agent as a holder.
func AgentHolder(agentID string) string { return agentPrefix + agentID }

// ClientHolder is the id of a client as a holder. The client has chosen its own.
func ClientHolder(id string) string { return clientPrefix + id }

// Agent returns the id of the agent that the holder is.
func (h Holder) Agent() (id string, is bool) { return strings.CutPrefix(h.ID, agentPrefix) }

// HeldBy reports whether the agent has that holder.
func (r Record) HeldBy(holder string) bool {
	return slices.ContainsFunc(r.Holders, func(h Holder) bool { return h.ID == holder })
}

// Unheld reports whether the agent must not go on, because nobody holds it.
func (r Record) Unheld() bool { return r.Held && len(r.Holders) == 0 && !r.Over() }

// HeldOnlyBy reports whether the agent lives only because another one holds it. Its messages
// are not somebody.
func (r Record) HeldOnlyBy(agentID string) bool {
	others := r.without(InboxHolder)
	return r.Held && len(others) == 1 && others[0].ID == AgentHolder(agentID)
}

// Suspended reports whether the agent is paused until somebody holds it.
func (r Record) Suspended() bool {
	return r.State == Paused && r.Pause.Reason == agboxv1.PauseReason_PAUSE_REASON_UNHELD && !r.Pause.Woken
}

// foldHeld makes the parent of a held agent its first holder. A user holds it by a client.
func foldHeld(r Record, ev *agboxv1.AgentEvent) Record {
	r.Held = ev.GetSpawned().GetLifetime() == agboxv1.AgentLifetime_AGENT_LIFETIME_HELD
	if r.Held && r.Parent != Init {
		r.Holders = []Holder{{ID: AgentHolder(r.Parent), Since: ev.GetOccurredAt().AsTime()}}
	}
	return r
}

// without returns the holders but one.
func (r Record) without(holder string) []Holder {
	return slices.DeleteFunc(slices.Clone(r.Holders), func(h Holder) bool { return h.ID == holder })
}

func foldOpened(r Record, ev *agboxv1.AgentEvent) Record {
	h := ev.GetHold()
	if h.GetStream() != "" {
		return r.withStream(h.GetStream())
	}
	r.Holders = append(r.without(h.GetHolder()), Holder{ID: h.GetHolder(), Since: ev.GetOccurredAt().AsTime(), Linger: h.GetLinger().AsDuration()})
	return r
}

// foldReparented moves the hold of the former parent to the new one.
func foldReparented(r Record, ev *agboxv1.AgentEvent) Record {
	from, to := AgentHolder(r.Parent), AgentHolder(ev.GetReparent().GetParent())
	r.Parent = ev.GetReparent().GetParent()
	if r.HeldBy(from) {
		r.Holders = append(slices.DeleteFunc(r.without(from), func(h Holder) bool { return h.ID == to }), Holder{ID: to, Since: ev.GetOccurredAt().AsTime()})
	}
	return r
}

// unheld is the sentence for people about an agent that nobody holds.
const unheld = "Nobody holds it."

// suspends returns the wish that an agent with a running incarnation is suspended, or nil.
// One that waits for a decision about it goes on waiting.
func suspends(r Record) *agboxv1.AgentEvent {
	if !r.Unheld() || r.PauseWanted != nil || r.Done != nil {
		return nil
	}
	if r.State == Paused && !r.Pause.Woken {
		switch r.Pause.Reason {
		case agboxv1.PauseReason_PAUSE_REASON_APPROVAL, agboxv1.PauseReason_PAUSE_REASON_CONFLICT:
			return nil
		}
	}
	return PauseRequested(agboxv1.PauseReason_PAUSE_REASON_UNHELD, unheld)
}

// suspended is the pause of an agent that would begin an incarnation.
func suspended() *agboxv1.AgentEvent {
	return PausedFor(agboxv1.PauseReason_PAUSE_REASON_UNHELD, unheld)
}

// Opened is the event of a new hold. linger is 0 for that of an agent.
func Opened(holder string, linger time.Duration) *agboxv1.AgentEvent {
	hold := &agboxv1.AgentHold{Holder: holder}
	if linger > 0 {
		hold.Linger = durationpb.New(linger)
	}
	return &agboxv1.AgentEvent{Type: agboxv1.AgentEventType_AGENT_OPENED, Details: &agboxv1.AgentEvent_Hold{Hold: hold}}
}

// Closed is the event of the end of a hold.
func Closed(holder, why string) *agboxv1.AgentEvent {
	return &agboxv1.AgentEvent{
		Type: agboxv1.AgentEventType_AGENT_CLOSED, Details: &agboxv1.AgentEvent_Hold{Hold: &agboxv1.AgentHold{Holder: holder, Why: why}},
	}
}

// MaxStreams is how many streams an agent can have open.
const MaxStreams = 64

// Opens reports whether the agent gets the messages of a stream.
func (r Record) Opens(stream string) bool {
	_, open := slices.BinarySearch(r.Streams, stream)
	return open
}

func (r Record) withStream(stream string) Record {
	if i, open := slices.BinarySearch(r.Streams, stream); !open {
		r.Streams = slices.Insert(slices.Clone(r.Streams), i, stream)
	}
	return r
}

func (r Record) withoutStream(stream string) []string {
	i, open := slices.BinarySearch(r.Streams, stream)
	if !open {
		return r.Streams
	}
	return slices.Delete(slices.Clone(r.Streams), i, i+1)
}

// StreamOpened is the event of an agent that gets the messages of a stream from now on.
func StreamOpened(stream string) *agboxv1.AgentEvent {
	return ofStream(agboxv1.AgentEventType_AGENT_OPENED, stream)
}

// StreamClosed is the event of an agent that gets no more messages of a stream.
func StreamClosed(stream string) *agboxv1.AgentEvent {
	return ofStream(agboxv1.AgentEventType_AGENT_CLOSED, stream)
}

func ofStream(typ agboxv1.AgentEventType, stream string) *agboxv1.AgentEvent {
	return &agboxv1.AgentEvent{Type: typ, Details: &agboxv1.AgentEvent_Hold{Hold: &agboxv1.AgentHold{Stream: stream}}}
}
