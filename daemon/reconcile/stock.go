package reconcile

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/daemon/machine"
	"github.com/agbox/agbox/internal/ids"
	"github.com/containerd/errdefs"
)

// Sandboxes that are made ahead are ordinary ones: rounds of their own make, watch and repair them. The
// round of a pool only asks for one more, or for the removal of one.

const (
	// stockPauseMin and stockPauseMax bound the pause after a sandbox of a pool has failed. It doubles with
	// each further one.
	stockPauseMin, stockPauseMax = time.Second, 5 * time.Minute
	// stockStable is how long a sandbox of a pool must be READY to end these pauses, unless somebody takes it.
	stockStable = time.Minute
	// scarcePauseMin is the pause after a lack of memory, which the pool itself may cause. It doubles up to poolIdle.
	scarcePauseMin = time.Minute
	// stockRest is how long nothing is made after a request, which shall not wait for the engine's work about the
	// next one; stockRestMax bounds that while requests keep coming.
	stockRest, stockRestMax = 100 * time.Millisecond, 300 * time.Millisecond
	// scarceMemory is the part of the memory of this machine below which nothing is kept ahead, in percent,
	// and enoughMemory from which on something is made again.
	scarceMemory, enoughMemory = 10, 20
	// poolIdle is after how long without a request a pool keeps only one, and that of what was created last
	// none.
	poolIdle = time.Hour
)

// EnqueuePool schedules a look at the pool with an id.
func (l *Loop) EnqueuePool(id string) { l.workers.Enqueue(workKey{Kind: forPool, ID: id}) }

// PoolTrouble says why a pool, of which some are ready, does not get on; empty if it does.
func (l *Loop) PoolTrouble(p ledger.Pool, ready int) string {
	now, wants := l.now(), l.PoolWants(p)
	l.mu.Lock()
	defer l.mu.Unlock()
	switch s := l.stocks[p.ID]; {
	case s == nil:
		return ""
	case s.scarce:
		return fmt.Sprintf("Less than %d %% of the memory of this machine is available, so nothing is kept ahead.", scarceMemory)
	case s.trouble != "" && ready < wants:
		return s.trouble
	case now.Before(s.misfitUntil) && s.misfit != "":
		return s.misfit
	case now.Before(s.spare):
		return fmt.Sprintf("Little memory of this machine was available a while ago, so nothing is made ahead before %s.", s.spare.Local().Format(time.TimeOnly))
	}
	return ""
}

// PoolWants returns how many sandboxes a pool keeps ready now, for as long as it has no trouble.
func (l *Loop) PoolWants(p ledger.Pool) int {
	now := l.now()
	l.mu.Lock()
	defer l.mu.Unlock()
	misfit := false
	if s := l.stocks[p.ID]; s != nil {
		misfit = s.misfit != "" && now.Before(s.misfitUntil)
	}
	switch idle := now.Sub(p.UsedAt) >= poolIdle; {
	case (idle || misfit) && p.Name == ledger.AutoPool:
		return 0
	case idle:
		return min(p.Size, 1)
	}
	return p.Size
}

func (l *Loop) enqueuePoolOf(sandboxID string) {
	if sb, living := l.ledger.Sandbox(sandboxID); living && sb.Pool != "" {
		l.EnqueuePool(sb.Pool)
	}
}

// lookAtPools enqueues all pools, and the former ones that have something left.
func (l *Loop) lookAtPools(context.Context, *fullLook) error {
	known := make(map[string]bool)
	for _, p := range l.ledger.Pools() {
		known[p.ID] = true
		l.EnqueuePool(p.ID)
	}
	for _, id := range l.ledger.Stocked() {
		if !known[id] {
			known[id] = true
			l.EnqueuePool(id)
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for id, s := range l.stocks {
		if s.check = true; !known[id] {
			delete(l.stocks, id)
		}
	}
	return nil
}

// poolRound brings the sandboxes of a pool one step nearer to its size.
func (l *Loop) poolRound(ctx context.Context, id string) (wake time.Time) {
	p, exists := l.ledger.Pool(id)
	l.mu.Lock()
	s := l.stocks[id]
	if s == nil {
		s = new(stock)
		l.stocks[id] = s
	}
	check := s.check
	s.check = false
	l.mu.Unlock()
	before := s.unfit
	if check {
		s.unfit = make(map[string]bool)
	}
	var coming, ready []ledger.Sandbox
	for _, sb := range l.ledger.Ahead(id) {
		switch {
		case sb.Want == machine.WantDeleted:
		case sb.State == machine.Ready && check && l.stale(ctx, sb):
			l.unstock(ctx, sb)
		case sb.State == machine.Ready && check && l.unfit(s, before, sb):
			l.note(s, l.Condition(sb).Degraded)
			l.unstock(ctx, sb)
		case sb.State == machine.Ready:
			ready = append(ready, sb)
		case sb.State == machine.Pending:
			coming = append(coming, sb)
		default:
			l.note(s, cmp.Or(sb.ErrorMessage, sb.StopMessage, "It has stopped."))
			l.unstock(ctx, sb)
		}
	}
	size := 0
	if exists && !l.scarce(s) {
		size = l.PoolWants(p)
	}
	if sb, living := l.ledger.Sandbox(s.asked); living && (sb.Pool == "" || sb.State == machine.Ready && l.now().Sub(sb.ReadyAt) >= stockStable) {
		l.note(s, "")
	}
	extra := len(ready) + len(coming) - size
	for _, sb := range append(coming, ready...)[:max(0, extra)] {
		l.unstock(ctx, sb)
	}
	if extra >= 0 || len(coming) > 0 {
		return time.Time{}
	}
	if due := l.makeAt(p, s); l.now().Before(due) {
		return due
	}
	if err := l.restock(ctx, p, s); err != nil && ctx.Err() == nil {
		l.note(s, err.Error())
		l.log.Warn("no sandbox can be made ahead", "pool", p.Name, "error", err)
		return l.now().Add(stockPauseMin)
	}
	return time.Time{}
}

// makeAt returns when a pool may make the next sandbox.
func (l *Loop) makeAt(p ledger.Pool, s *stock) time.Time {
	now := l.now()
	l.mu.Lock()
	defer l.mu.Unlock()
	due := s.due
	if s.spare.After(due) {
		due = s.spare
	}
	rest := p.UsedAt.Add(stockRest)
	if limit := now.Add(stockRest); rest.After(limit) {
		rest = limit // the clock was set back
	}
	if now.Before(rest) {
		if s.rests.IsZero() {
			s.rests = now
		}
		if now.Sub(s.rests) < stockRestMax && rest.After(due) {
			due = rest
		}
	}
	if !now.Before(due) {
		s.rests = time.Time{}
	}
	return due
}

// unfit reports whether a sandbox is degraded now and was at the last look, so that nobody gets it.
func (l *Loop) unfit(s *stock, before map[string]bool, sb ledger.Sandbox) bool {
	if l.Condition(sb).Degraded == "" || l.Health().Err != nil {
		return false
	}
	s.unfit[sb.ID] = true
	return before[sb.ID]
}

// restock asks for one more sandbox.
func (l *Loop) restock(ctx context.Context, p ledger.Pool, s *stock) error {
	spec, err := l.ledger.PoolSpec(ctx, p)
	if err != nil {
		return err
	}
	sb, err := l.ledger.CreateAhead(ctx, ids.New(), p.ID, spec)
	switch {
	case err == nil:
		s.asked = sb.ID
		l.Enqueue(sb.ID)
	case errdefs.IsNotFound(err): // it was removed meanwhile
		return nil
	}
	return err
}

// note notes why a sandbox of a pool has failed, or with an empty text that one is ready.
func (l *Loop) note(s *stock, why string) {
	now := l.now()
	l.mu.Lock()
	defer l.mu.Unlock()
	if s.trouble, s.asked = why, ""; why == "" {
		s.failures, s.due = 0, time.Time{}
		return
	}
	s.due = now.Add(min(stockPauseMin<<min(s.failures, 16), stockPauseMax))
	s.failures++
}

// scarce reports whether this machine has too little memory to keep anything ahead.
func (l *Loop) scarce(s *stock) bool {
	percent, now := l.opts.AvailableMemory(), l.now()
	l.mu.Lock()
	defer l.mu.Unlock()
	was := s.scarce
	if s.scarce = percent < scarceMemory || was && percent < enoughMemory; was && !s.scarce {
		if now.Sub(s.spare) > poolIdle {
			s.scarcities = 0
		}
		s.spare = now.Add(min(scarcePauseMin<<min(s.scarcities, 10), poolIdle))
		s.scarcities++
	}
	return s.scarce
}

// AvailableMemory returns how much of the memory of this machine programs can have, in percent; 100 if that
// is unknown. See MemAvailable in proc_meminfo(5).
func AvailableMemory() int {
	raw, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 100
	}
	var total, available uint64
	for line := range strings.Lines(string(raw)) {
		_, _ = fmt.Sscanf(line, "MemTotal: %d kB", &total)
		_, _ = fmt.Sscanf(line, "MemAvailable: %d kB", &available)
	}
	if total == 0 || available == 0 {
		return 100
	}
	return int(100 * available / total)
}
