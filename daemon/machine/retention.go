package machine

import (
	"cmp"
	"slices"
	"time"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// Retention says what is kept, and for how long.
type Retention struct {
	// KeepDeleted is how long the history, execs and logs of a DELETED sandbox are kept.
	KeepDeleted time.Duration
	// KeepExecs is how long a finished exec of a living sandbox is kept, and a service's
	// event that is not its newest. A failed attempt to start it again, which another one
	// followed, ages like that.
	KeepExecs time.Duration
	// KeepAgents is how long an agent that has ended is kept, with its history.
	KeepAgents time.Duration
	// MaxAgents is how many agents that have ended are kept, besides those that ended in the
	// last minute and those whose record another agent needs.
	MaxAgents int
	// MaxExecs is how many finished execs of a living sandbox are kept, besides those
	// that ended in the last minute.
	MaxExecs int
	// MaxEvents is how many events of a living sandbox are kept. Of failed attempts to start
	// it those go that exceed it, and no others because of them. Other lifecycle events and
	// those of execs that run, or ended in the last minute, are kept even if they alone
	// exceed it. Of an agent that has not ended, those stay that its record needs.
	MaxEvents int
}

// AtLeast is how long every finished exec is kept, however many there are, and every event of an
// agent. The caller of an exec must be able to fetch its result.
const AtLeast = time.Minute

// History is what retention needs to know about a sandbox's events. Take adds an event,
// and Trim says what to remove.
type History struct {
	events   int
	execs    map[string]*aging
	services map[string]uint64 // newest sequence of each service
	ready    uint64            // newest sequence of SANDBOX_READY
	items    []*aging
	// failed means that the newest event of its life is SANDBOX_FAILED. start is the attempt to
	// start it again since the one before, if nothing else has happened in it.
	failed bool
	start  *aging
}

// aging is a unit of removal: the events of an exec, one event of a service, or those of a failed
// attempt to start the sandbox that another one followed. The record has nothing of such an attempt.
type aging struct {
	attempt   bool
	execID    string
	hook      *Hook // set for the exec of a hook
	main      bool  // set for the exec of the container's own command
	lost      bool  // set for one of Record.Lost
	service   string
	sequences []uint64
	// end is the sequence from which on it ages. It is 0 while an exec runs.
	end   uint64
	endAt time.Time
}

// Take adds an event. Events must be added in order.
func (h *History) Take(ev *agboxv1.SandboxEvent) {
	h.events++
	h.takeStart(ev)
	switch ev.GetEventType() {
	case agboxv1.EventType_EXEC_STARTED, agboxv1.EventType_EXEC_FOUND, agboxv1.EventType_EXEC_FINISHED,
		agboxv1.EventType_EXEC_FAILED, agboxv1.EventType_EXEC_CANCELLED:
		h.takeExec(ev)
	case agboxv1.EventType_SANDBOX_READY:
		h.ready = ev.GetSequence()
	case agboxv1.EventType_SANDBOX_SERVICE_STARTED, agboxv1.EventType_SANDBOX_SERVICE_READY, agboxv1.EventType_SANDBOX_SERVICE_FAILED:
		if h.services == nil {
			h.services = make(map[string]uint64)
		}
		name := ev.GetService().GetName()
		h.services[name] = ev.GetSequence()
		h.items = append(h.items, &aging{
			service: name, sequences: []uint64{ev.GetSequence()},
			end: ev.GetSequence(), endAt: ev.GetOccurredAt().AsTime(),
		})
	}
}

// takeStart looks for attempts to start the sandbox. One begins after a failure and ends with one.
func (h *History) takeStart(ev *agboxv1.SandboxEvent) {
	switch ev.GetEventType() {
	case agboxv1.EventType_SANDBOX_SERVICE_STARTED, agboxv1.EventType_SANDBOX_SERVICE_READY, agboxv1.EventType_SANDBOX_SERVICE_FAILED:
		return
	case agboxv1.EventType_SANDBOX_RESUME_REQUESTED:
		if h.start != nil && h.failed {
			h.items = append(h.items, h.start)
		}
		if h.start = nil; h.failed {
			h.start = &aging{attempt: true}
		}
	case agboxv1.EventType_SANDBOX_PREPARING, agboxv1.EventType_SANDBOX_FAILED:
	default:
		h.start = nil
	}
	h.failed = ev.GetEventType() == agboxv1.EventType_SANDBOX_FAILED
	if h.start != nil {
		h.start.sequences = append(h.start.sequences, ev.GetSequence())
		h.start.end, h.start.endAt = ev.GetSequence(), ev.GetOccurredAt().AsTime()
	}
}

func (h *History) takeExec(ev *agboxv1.SandboxEvent) {
	id := ev.GetExec().GetExecId()
	x := h.execs[id]
	if x == nil {
		if h.execs == nil {
			h.execs = make(map[string]*aging)
		}
		x = &aging{execID: id}
		h.execs[id] = x
		h.items = append(h.items, x)
	}
	x.sequences = append(x.sequences, ev.GetSequence())
	if ref := ev.GetExec().GetHook(); ref != nil {
		x.hook = hookOf(ref)
	}
	x.main = x.main || ev.GetExec().GetMain()
	x.lost = mayLive(ev)
	switch ev.GetEventType() {
	case agboxv1.EventType_EXEC_STARTED:
	case agboxv1.EventType_EXEC_FOUND:
		x.end = 0 // it runs
	default:
		x.end, x.endAt = ev.GetSequence(), ev.GetOccurredAt().AsTime()
	}
}

// Trim says what to remove from one sandbox.
type Trim struct {
	// Parts in the order in which they aged.
	Parts []TrimPart
	// Due is when more will be removed even if nothing happens until then. Zero means
	// never.
	Due time.Time
	// Room is how many more events there may be before it is too much.
	Room int
}

// TrimPart is a unit of removal.
type TrimPart struct {
	// ExecID is the exec whose record and logs are removed. It is empty if only events
	// are.
	ExecID string
	// Events are the sequences to remove. The events of the exec that ended last stay,
	// because they show when the sandbox was last used.
	Events []uint64
}

// Trim decides what to remove from a living sandbox's history. recorded reports whether
// the record of an exec exists. The order of ages is that of sequences: everything that
// ended before something too old is too old too, whatever the clock was.
func (h *History) Trim(rules Retention, recorded func(execID string) bool, now time.Time) Trim {
	ended := make([]*aging, 0, len(h.items))
	records, attempts := 0, 0 // attempts counts events
	var lastExec uint64
	for _, a := range h.items {
		if a.end == 0 {
			continue
		}
		ended = append(ended, a)
		if a.attempt {
			attempts += len(a.sequences)
		}
		if a.execID != "" {
			if !a.main { // the end of the main command does not count as use
				lastExec = max(lastExec, a.end)
			}
			if recorded(a.execID) {
				records++
			}
		}
	}
	slices.SortFunc(ended, func(a, b *aging) int { return cmp.Compare(a.end, b.end) })

	tooOld := 0
	for i, a := range ended {
		if now.Sub(a.endAt) >= rules.KeepExecs {
			tooOld = i + 1
		}
	}
	var trim Trim
	events := h.events
	for i, a := range ended {
		newest := a.end == lastExec || a.execID == "" && a.end == h.services[a.service] || h.counts(a)
		due := a.endAt.Add(rules.KeepExecs)
		tooMany := records > rules.MaxExecs || events-attempts > rules.MaxEvents && !newest
		if a.attempt {
			tooMany = events > rules.MaxEvents
		}
		if tooMany {
			due = a.endAt.Add(min(rules.KeepExecs, AtLeast))
		}
		if i >= tooOld && (!tooMany || now.Before(due)) {
			trim.dueAt(due)
			continue
		}
		part := TrimPart{}
		if a.execID != "" && recorded(a.execID) {
			part.ExecID = a.execID
			records--
		}
		if !newest {
			part.Events = a.sequences
			events -= len(a.sequences)
			if a.attempt {
				attempts -= len(a.sequences)
			}
		}
		if part.ExecID != "" || part.Events != nil {
			trim.Parts = append(trim.Parts, part)
		}
	}
	trim.Room = max(0, min(rules.MaxExecs-records, rules.MaxEvents-events)) // an event ends at most one exec
	return trim
}

// counts reports whether an exec runs a hook whose result no later event repeats, or is one of
// Record.Lost. Then its own events must stay.
func (h *History) counts(a *aging) bool {
	switch {
	case a.lost && a.end > h.ready:
		return true
	case a.hook == nil:
		return false
	case a.hook.Prepare: // it counts for who gets the sandbox from a pool, after it was READY there
		return true
	case a.hook.Service == "":
		return a.end > h.ready
	}
	return a.end > h.services[a.hook.Service]
}

func (t *Trim) dueAt(at time.Time) {
	if t.Due.IsZero() || at.Before(t.Due) {
		t.Due = at
	}
}

// All returns everything that ages, for a sandbox that is being forgotten.
func (h *History) All() []TrimPart {
	parts := make([]TrimPart, 0, len(h.items))
	for _, a := range h.items {
		parts = append(parts, TrimPart{ExecID: a.execID, Events: a.sequences})
	}
	return parts
}
