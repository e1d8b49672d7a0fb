package machine

import (
	"cmp"
	"slices"
	"time"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// Retention says how long and how much is kept.
type Retention struct {
	// KeepDeleted is how long the history, execs and logs of a DELETED sandbox are kept.
	KeepDeleted time.Duration
	// KeepExecs is how long a finished exec of a living sandbox is kept, and a
	// service's event that is not its newest.
	KeepExecs time.Duration
	// MaxExecs is how many finished execs of a living sandbox are kept, apart from
	// those that ended in the last minute.
	MaxExecs int
	// MaxEvents is how many events of a living sandbox are kept. Lifecycle events
	// and those of execs that run, or ended in the last minute, are kept even if
	// they alone are more.
	MaxEvents int
}

// atLeast is how long an exec is kept however many there are: who ran it must be
// able to fetch how it ended.
const atLeast = time.Minute

// History is what retention needs to know of a sandbox's events. Take fills it;
// Trim says what of it shall go.
type History struct {
	events   int
	execs    map[string]*aging
	services map[string]uint64 // newest sequence of each service
	ready    uint64            // newest sequence of SANDBOX_READY
	items    []*aging
}

// aging is what goes as one: the events of an exec, or one event of a service.
type aging struct {
	execID    string
	hook      *Hook // of an exec that is one
	main      bool  // of an exec that is the container's own command
	service   string
	sequences []uint64
	// end is the sequence from which on it ages; 0 while an exec runs.
	end   uint64
	endAt time.Time
}

// Take adds an event. Events must come in order.
func (h *History) Take(ev *agboxv1.SandboxEvent) {
	h.events++
	switch ev.GetEventType() {
	case agboxv1.EventType_EXEC_STARTED, agboxv1.EventType_EXEC_FINISHED,
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
	if ev.GetEventType() != agboxv1.EventType_EXEC_STARTED {
		x.end, x.endAt = ev.GetSequence(), ev.GetOccurredAt().AsTime()
	}
}

// Trim is what shall go of one sandbox.
type Trim struct {
	// Parts in the order in which they aged.
	Parts []TrimPart
	// Due is when more is to go though nothing happens until then; zero: never.
	Due time.Time
}

// TrimPart is what goes as one.
type TrimPart struct {
	// ExecID is the exec whose record and logs go; empty when only events go.
	ExecID string
	// Events are the sequences that go. Those of the exec that ended last stay:
	// they tell when the sandbox was last used.
	Events []uint64
}

// Trim says what of a living sandbox's history shall go. recorded tells whether
// the record of an exec is kept. Age goes by the sequence: what ended before
// something that is too old is too old as well, whatever the clock said then.
func (h *History) Trim(rules Retention, recorded func(execID string) bool, now time.Time) Trim {
	ended := make([]*aging, 0, len(h.items))
	records := 0
	var lastExec uint64
	for _, a := range h.items {
		if a.end == 0 {
			continue
		}
		ended = append(ended, a)
		if a.execID != "" {
			if !a.main { // its end is no use of the sandbox
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
		tooMany := records > rules.MaxExecs || events > rules.MaxEvents && !newest
		if tooMany {
			due = a.endAt.Add(min(rules.KeepExecs, atLeast))
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
		}
		if part.ExecID != "" || part.Events != nil {
			trim.Parts = append(trim.Parts, part)
		}
	}
	return trim
}

// counts tells whether an exec is a hook whose outcome is not yet told by a later
// event: then its own must stay.
func (h *History) counts(a *aging) bool {
	switch {
	case a.hook == nil:
		return false
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

// All is the whole of what ages, for a sandbox that is to be forgotten.
func (h *History) All() []TrimPart {
	parts := make([]TrimPart, 0, len(h.items))
	for _, a := range h.items {
		parts = append(parts, TrimPart{ExecID: a.execID, Events: a.sequences})
	}
	return parts
}
