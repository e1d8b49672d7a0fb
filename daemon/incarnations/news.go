package incarnations

import (
	"sync"
	"time"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/agents/journal"
	"github.com/agbox/agbox/daemon/guests/links"
	"github.com/agbox/agbox/daemon/ledger"
)

// desk has what is known about running incarnations besides the ledger. Nothing of it is
// stored: the supervisors tell it again over each new link, and the journals are files.
type desk struct {
	// mu guards the fields below. It is never held across I/O.
	mu sync.Mutex
	// heard has the newest news, by exec id.
	heard map[string]heard
	// read has how far the journals were read, by exec id.
	read map[string]place
	// open has the open requests, by exec id.
	open map[string]openRequests
	// paused has of which pauses they were told, by exec id.
	paused map[string]toldPause
	// children has what they were told of the budget of children, by exec id.
	children map[string]toldChildren
	// pictures has what was seen before the newest pause, by agent id.
	pictures map[string]pictured
}

// heard is what a supervisor has told.
type heard struct {
	// link is the link over which it came.
	link *links.Link
	news *guestv1.IncarnationNews
	at   time.Time
}

// place is a place in a journal.
type place struct {
	journal.Tail
	// tried is the number of rows that the supervisor had told of when the journal was read
	// last. The file may have fewer, because root in the sandbox can change it.
	tried uint64
}

func newDesk() *desk {
	return &desk{heard: make(map[string]heard), read: make(map[string]place), open: make(map[string]openRequests), paused: make(map[string]toldPause), children: make(map[string]toldChildren), pictures: make(map[string]pictured)}
}

// Told receives what a supervisor knows about an incarnation. A supervisor is believed only
// about incarnations in its sandbox.
func (r *Runner) Told(lk *links.Link, news *guestv1.IncarnationNews) {
	a, ok := r.ledger.AgentOf(lk.SandboxID, news.GetExecId())
	if !ok {
		return
	}
	now := r.now()
	r.desk.mu.Lock()
	before, known := r.desk.heard[news.GetExecId()]
	r.desk.heard[news.GetExecId()] = heard{lk, news, now}
	asked := r.desk.askedLocked(lk, news)
	r.desk.mu.Unlock()
	if !known || asked || before.news.GetRows() != news.GetRows() || before.news.GetReady() != news.GetReady() ||
		before.news.GetHung() != news.GetHung() || a.Liveness != liveness(a, news) {
		r.enqueue(a.ID)
	}
}

// liveness is how alive an incarnation looks by the newest news.
func liveness(a ledger.Agent, news *guestv1.IncarnationNews) agboxv1.AgentLiveness {
	return agents.Liveness(silence(news), news.GetArmed(), agents.RulesOf(a.Spec).Heartbeat)
}

// silence is as the supervisor measured it. Time that has passed since is not added: what
// it does not tell has not happened, for example because the container is paused.
func silence(news *guestv1.IncarnationNews) time.Duration {
	return time.Duration(news.GetSilentMs()) * time.Millisecond
}

// Show adds to what clients see of an agent what the supervisor of its incarnation has told.
func (r *Runner) Show(a ledger.Agent, view *agboxv1.Agent) {
	if a.Incarnation == nil {
		return
	}
	r.desk.mu.Lock()
	h, known := r.desk.heard[a.Incarnation.ExecID]
	r.desk.mu.Unlock()
	if !known {
		return
	}
	view.Liveness, view.HeapUsedMb = liveness(a, h.news), h.news.HeapUsedMb
	if h.news.GetRows() > 0 { // otherwise it has not said so
		view.Lifecycle = lifecycles[h.news.GetLifecycle()]
	}
}

// Silent forgets what came over a link that tells nothing more.
func (r *Runner) Silent(lk *links.Link) {
	r.desk.mu.Lock()
	defer r.desk.mu.Unlock()
	for id, h := range r.desk.heard {
		if h.link == lk {
			delete(r.desk.heard, id)
		}
	}
	for id, open := range r.desk.open {
		if open.link == lk {
			delete(r.desk.open, id)
		}
	}
	for id, told := range r.desk.paused {
		if told.link == lk {
			delete(r.desk.paused, id)
		}
	}
	for id, told := range r.desk.children {
		if told.link == lk {
			delete(r.desk.children, id)
		}
	}
}

// See adds to an observation what the supervisor has told about the incarnation of an
// agent.
func (r *Runner) See(a ledger.Agent, seen *agents.Seen) {
	children := r.childrenBudget(a)
	r.desk.mu.Lock()
	defer r.desk.mu.Unlock()
	h, known := r.desk.heard[a.Incarnation.ExecID]
	if !known {
		seen.Unknown = true
		return
	}
	seen.Ready, seen.Asked = h.news.GetReady(), len(r.desk.open[a.Incarnation.ExecID].byNumber) > 0
	seen.Spoke = h.news.GetRows() > 0 && !(h.news.GetRows() == 1 && r.desk.read[a.Incarnation.ExecID].Sum.OnlyAsked())
	if seen.PauseMark = h.news.GetPauseMark(); r.desk.paused[a.Incarnation.ExecID].link == h.link {
		seen.PauseMark = r.desk.paused[a.Incarnation.ExecID].mark // its news may be from before
	}
	seen.Untold = children != r.desk.toldChildrenLocked(a.Incarnation.ExecID)
	seen.Unread = h.news.GetRows() > r.desk.read[a.Incarnation.ExecID].tried
	seen.Silent, seen.Armed, seen.Hung = silence(h.news), h.news.GetArmed(), h.news.GetHung()
}

// placeOf returns how far the journal of an incarnation was read, and the number of rows of
// which the supervisor has told.
func (r *Runner) placeOf(a ledger.Agent) (at place, rows uint64) {
	r.desk.mu.Lock()
	defer r.desk.mu.Unlock()
	at, known := r.desk.read[a.Incarnation.ExecID]
	if !known {
		at = place{Tail: journal.Beginning()}
		at.Sum.Phase = agents.RulesOf(a.Spec).FirstPhase()
	}
	return at, r.desk.heard[a.Incarnation.ExecID].news.GetRows()
}

// advance remembers how far a journal was read.
func (r *Runner) advance(execID string, at place) {
	r.desk.mu.Lock()
	defer r.desk.mu.Unlock()
	r.desk.read[execID] = at
}

// Forget drops what is known about an incarnation, and the files that it left, if its end is
// recorded in the agent.
func (r *Runner) Forget(a ledger.Agent, ended *agents.Incarnation) {
	if a.Incarnation != nil && a.Incarnation.N == ended.N {
		return
	}
	r.tidy(a, ended)
	r.desk.mu.Lock()
	defer r.desk.mu.Unlock()
	delete(r.desk.heard, ended.ExecID)
	delete(r.desk.read, ended.ExecID)
	delete(r.desk.open, ended.ExecID)
	delete(r.desk.paused, ended.ExecID)
	delete(r.desk.children, ended.ExecID)
	delete(r.desk.pictures, a.ID)
}

// Ready returns the result of the readiness probe of an incarnation. It is nil if it has
// none, or if its supervisor cannot be asked.
func (r *Runner) Ready(execID string) *bool {
	r.desk.mu.Lock()
	defer r.desk.mu.Unlock()
	if h, known := r.desk.heard[execID]; known {
		return h.news.Ready
	}
	return nil
}
