package incarnations

import (
	"maps"
	"slices"
	"time"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/daemon/guests/links"
	"github.com/agbox/agbox/daemon/ledger"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"
	"github.com/agbox/agbox/runtime/guest"
)

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
	maps.DeleteFunc(r.desk.heard, func(_ string, h heard) bool { return h.link == lk })
	maps.DeleteFunc(r.desk.open, func(_ string, open openRequests) bool { return open.link == lk })
	maps.DeleteFunc(r.desk.paused, func(_ string, told toldPause) bool { return told.link == lk })
	maps.DeleteFunc(r.desk.children, func(_ string, told toldChildren) bool { return told.link == lk })
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

// askedLocked takes over the requests of news, and forgets those that are not open any more.
// It reports whether there are new ones.
func (d *desk) askedLocked(lk *links.Link, news *guestv1.IncarnationNews) bool {
	open := d.open[news.GetExecId()]
	if open.link != lk {
		open = openRequests{lk, make(map[uint64]request)}
	}
	maps.DeleteFunc(open.byNumber, func(number uint64, _ request) bool { return !slices.Contains(news.GetOpenRequests(), number) })
	asked := false
	for _, q := range news.GetRequests() {
		if len(open.byNumber) < guest.MaxRequests && slices.Contains(news.GetOpenRequests(), q.GetNumber()) {
			open.byNumber[q.GetNumber()] = request{q.GetNumber(), q.GetOp(), q.GetJson()}
			asked = true
		}
	}
	if len(open.byNumber) == 0 {
		delete(d.open, news.GetExecId())
	} else {
		d.open[news.GetExecId()] = open
	}
	return asked
}
