package probes

import (
	"context"
	"sync"
	"time"
)

// Cause is why the probes end an incarnation.
type Cause uint8

// The causes.
const (
	// NotStarted: it was not ready in time.
	NotStarted Cause = iota
	// NotAlive: its liveness probe failed too often.
	NotAlive
)

// Host is what a Prober needs of its surroundings. All functions may be called at the same
// time. Check and End must return soon after ctx is done.
type Host struct {
	// Check makes one check. ctx ends at its timeout.
	Check func(ctx context.Context, t Target) Result
	// Reported reports whether the program has reported that it is ready, for AwaitReport.
	Reported func() bool
	// Ready is called when the result of the readiness probe changes. It begins with false.
	Ready func(ready bool)
	// End ends the incarnation.
	End func(Cause)
}

// Prober checks the program of one incarnation.
type Prober struct {
	rules Rules
	host  Host
	// cancel ends the goroutines, work counts them.
	cancel context.CancelFunc
	work   sync.WaitGroup

	// mu guards ready.
	mu sync.Mutex
	// ready means that the readiness probe has succeeded once.
	ready bool
}

// Start begins to check. The first check is made at once. A failure of the first one counts
// for nothing, because the program has only just been started.
func Start(rules Rules, host Host) *Prober {
	ctx, cancel := context.WithCancel(context.Background())
	p := &Prober{rules: rules, host: host, cancel: cancel}
	if rules.bounded() {
		p.work.Go(guarded(func() { p.watchLife(ctx) }))
	}
	if rules.Readiness.Set() {
		p.work.Go(guarded(func() { p.watchReadiness(ctx) }))
	}
	return p
}

// guarded returns fn without its panics: a fault in here must not end the supervisor, and all
// commands with it.
func guarded(fn func()) func() {
	return func() {
		defer func() { _ = recover() }()
		fn()
	}
}

// Stop ends the checks without waiting for them; Wait waits. Both accept nil.
func (p *Prober) Stop() {
	if p != nil {
		p.cancel()
	}
}

// Wait returns when no check is made any more. Stop must be called before.
func (p *Prober) Wait() {
	if p != nil {
		p.work.Wait()
	}
}

// watchLife waits for the start and then watches liveness. It ends the incarnation if one
// of them fails.
func (p *Prober) watchLife(ctx context.Context) {
	if !p.awaitStart(ctx) {
		if ctx.Err() == nil {
			p.host.End(NotStarted)
		}
		return
	}
	live := p.rules.Liveness
	if !live.Set() {
		return
	}
	gauge := Gauge{Well: true}
	every(ctx, live.Period, false, func() bool {
		var down bool
		gauge, down = gauge.Next(p.check(ctx, live), live.Failures)
		if down && ctx.Err() == nil {
			p.host.End(NotAlive)
		}
		return !down
	})
}

// awaitStart returns true when the program has started, and false at the bound of the
// start.
func (p *Prober) awaitStart(ctx context.Context) bool {
	startup := p.rules.Startup
	if !startup.Set() {
		startup.Target = p.rules.Liveness.Target
	}
	deadline := time.Now().Add(startup.bound())
	ctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	answered := !startup.Set()
	started := false
	look := func() bool {
		if !time.Now().Before(deadline) {
			return false
		}
		answered = answered || p.check(ctx, startup) == Passed
		started = answered && p.reported() && p.wasReady()
		return !started
	}
	every(ctx, startup.Period, true, look)
	// What the program has reported since the last check counts.
	return started || answered && p.reported() && p.wasReady()
}

func (p *Prober) reported() bool { return !p.rules.AwaitReport || p.host.Reported() }

func (p *Prober) wasReady() bool {
	if !p.rules.AwaitReady || !p.rules.Readiness.Set() {
		return true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ready
}

func (p *Prober) watchReadiness(ctx context.Context) {
	var gauge Gauge
	every(ctx, p.rules.Readiness.Period, true, func() bool {
		was := gauge.Well
		gauge, _ = gauge.Next(p.check(ctx, p.rules.Readiness), p.rules.Readiness.Failures)
		if gauge.Well != was && ctx.Err() == nil {
			p.mu.Lock()
			p.ready = p.ready || gauge.Well
			p.mu.Unlock()
			p.host.Ready(gauge.Well)
		}
		return true
	})
}

// check makes one check. What it says after the end of ctx is Unknown, and so is one that
// panics.
func (p *Prober) check(ctx context.Context, probe Probe) Result {
	checking, cancel := context.WithTimeout(ctx, probe.Timeout)
	defer cancel()
	r := Unknown
	guarded(func() { r = p.host.Check(checking, probe.Target) })()
	if ctx.Err() != nil {
		return Unknown
	}
	return r
}

// every calls fn once per period until it returns false or ctx is done; if now is set, also
// at once. A call that takes longer than a period delays the next ones.
func every(ctx context.Context, period time.Duration, now bool, fn func() bool) {
	next := time.Now()
	for {
		if now && (ctx.Err() != nil || !fn()) {
			return
		}
		now = true
		if next = next.Add(period); next.Before(time.Now()) {
			next = time.Now()
		}
		timer := time.NewTimer(time.Until(next))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return
		}
	}
}
