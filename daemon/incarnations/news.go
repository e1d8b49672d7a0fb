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
	k := r.desk.known[news.GetExecId()]
	before := k.news
	asked := k.hear(lk, news, now)
	r.desk.known[news.GetExecId()] = k
	r.desk.mu.Unlock()
	if before == nil || asked || before.GetRows() != news.GetRows() || before.GetReady() != news.GetReady() ||
		before.GetHung() != news.GetHung() || a.Liveness != liveness(a, news) {
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
	h := r.desk.of(a.Incarnation.ExecID)
	if h.news == nil {
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
	for execID, k := range r.desk.known {
		switch {
		case k.link != lk:
		case k.read == nil:
			delete(r.desk.known, execID)
		default:
			r.desk.known[execID] = known{read: k.read}
		}
	}
}

// See adds to an observation what the supervisor has told about the incarnation of an
// agent.
func (r *Runner) See(a ledger.Agent, seen *agents.Seen) {
	children := r.childrenBudget(a)
	r.desk.mu.Lock()
	defer r.desk.mu.Unlock()
	h := r.desk.known[a.Incarnation.ExecID]
	if h.news == nil {
		seen.Unknown = true
		return
	}
	read := place{}
	if h.read != nil {
		read = *h.read
	}
	seen.Ready, seen.Asked = h.news.GetReady(), len(h.open) > 0
	seen.Spoke = h.news.GetRows() > 0 && !(h.news.GetRows() == 1 && read.Sum.OnlyAsked())
	if seen.PauseMark = h.news.GetPauseMark(); h.pause != nil {
		seen.PauseMark = *h.pause // its news may be from before
	}
	seen.Untold = children != h.childrenBudget()
	seen.Unread = h.news.GetRows() > read.tried
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
	delete(r.desk.known, ended.ExecID)
	delete(r.desk.pictures, a.ID)
}

// Ready returns the result of the readiness probe of an incarnation. It is nil if it has
// none, or if its supervisor cannot be asked.
func (r *Runner) Ready(execID string) *bool {
	if h := r.desk.of(execID); h.news != nil {
		return h.news.Ready
	}
	return nil
}

// hear takes over news with their requests, and forgets those that are not open any more. It
// reports whether there are new ones.
func (k *known) hear(lk *links.Link, news *guestv1.IncarnationNews, now time.Time) (asked bool) {
	if k.link != lk {
		*k = known{link: lk, open: make(map[uint64]request), read: k.read}
	}
	k.news, k.at = news, now
	maps.DeleteFunc(k.open, func(number uint64, _ request) bool { return !slices.Contains(news.GetOpenRequests(), number) })
	for _, q := range news.GetRequests() {
		if len(k.open) < guest.MaxRequests && slices.Contains(news.GetOpenRequests(), q.GetNumber()) {
			k.open[q.GetNumber()] = request{q.GetNumber(), q.GetOp(), q.GetJson()}
			asked = true
		}
	}
	return asked
}
