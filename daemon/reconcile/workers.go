// This file runs the rounds of things that change by themselves: at most one round
// at a time for each of them, and another one for as long as somebody asks. What a round
// does is not its concern.
//
// The workers own their goroutines and timers; Wait waits for them. They keep nothing of a thing
// that rests without a timer.

package reconcile

import (
	"context"
	"errors"
	"sync"
	"time"
)

// workKind says what an id names.
type workKind uint8

// The kinds.
const (
	// forSandbox ids are those of the ledger's sandboxes.
	forSandbox workKind = iota + 1
	// forAgent ids are those of the ledger's agents.
	forAgent
	// forPool ids are those of the ledger's pools of sandboxes that are made ahead.
	forPool
)

// workKey names one thing that has rounds.
type workKey struct {
	Kind workKind
	ID   string
}

// workRound makes one thing agree with what is wanted of it, as far as it can now. It returns
// when it wants to be called again even if nobody asks; zero means never.
type workRound func(ctx context.Context, turn *workTurn) (wake time.Time)

// workers call a round for every key that is enqueued.
type workers struct {
	now   func() time.Time
	round workRound
	wg    sync.WaitGroup

	// mu guards the fields below and those of the workers. It is never held across a
	// call of round.
	mu sync.Mutex
	// ctx is nil until Run; it is cancelled when Run ends.
	ctx context.Context
	// workers has the keys that have a round, a request for one, or a timer.
	workers map[workKey]*worker
}

// worker is the state of one key.
type worker struct {
	// asked means that a round was requested after the current one began. at is when.
	asked bool
	at    time.Time
	// interrupted means that one of these requests was an Interrupt.
	interrupted bool
	// running means that a goroutine is in a round, or about to begin one.
	running bool
	// cancel cancels the interruptible part of the round. It is nil outside of one.
	cancel context.CancelFunc
	// timer enqueues the key at the time that its last round returned.
	timer *time.Timer
}

// newWorkers makes a Pool. Nothing runs before Run.
func newWorkers(now func() time.Time, round workRound) *workers {
	return &workers{now: now, round: round, workers: make(map[workKey]*worker)}
}

// Begin lets rounds run until ctx ends. Requests before that are ignored.
func (p *workers) Begin(ctx context.Context) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ctx = ctx
}

// Wait stops all timers and waits for the rounds. The context of Begin must have ended.
func (p *workers) Wait() {
	p.mu.Lock()
	for _, w := range p.workers {
		w.stopTimer()
	}
	p.mu.Unlock()
	p.wg.Wait()
}

// Enqueue requests a round that begins after this call. It never blocks.
func (p *workers) Enqueue(key workKey) { p.enqueue(key, false) }

// Interrupt is Enqueue for a changed want. It also cancels the interruptible part of a
// round that is under way.
func (p *workers) Interrupt(key workKey) { p.enqueue(key, true) }

func (p *workers) enqueue(key workKey, interrupt bool) {
	now := p.now()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ctx == nil || p.ctx.Err() != nil {
		return
	}
	w := p.workers[key]
	if w == nil {
		w = new(worker)
		p.workers[key] = w
	}
	w.asked, w.at = true, now
	w.stopTimer()
	if interrupt {
		w.interrupted = true
		if w.cancel != nil {
			w.cancel()
		}
	}
	if !w.running {
		w.running = true
		p.wg.Go(func() { p.work(key, w) })
	}
}

// work runs rounds until no request is left.
func (p *workers) work(key workKey, w *worker) {
	for {
		p.mu.Lock()
		if !w.asked || p.ctx.Err() != nil {
			w.running = false
			if w.timer == nil {
				delete(p.workers, key)
			}
			p.mu.Unlock()
			return
		}
		w.asked, w.interrupted = false, false
		ctx, turn := p.ctx, &workTurn{ID: key.ID, Kind: key.Kind, Asked: w.at, workers: p, worker: w}
		p.mu.Unlock()

		wake := p.round(ctx, turn)
		now := p.now()
		p.mu.Lock()
		if !wake.IsZero() && !w.asked && ctx.Err() == nil {
			w.timer = time.AfterFunc(max(wake.Sub(now), time.Millisecond), func() { p.Enqueue(key) })
		}
		p.mu.Unlock()
	}
}

func (w *worker) stopTimer() {
	if w.timer != nil {
		w.timer.Stop()
		w.timer = nil
	}
}

// Busy reports whether a round of the key runs or is about to.
func (p *workers) Busy(key workKey) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	w := p.workers[key]
	return w != nil && w.running
}

// workTurn is one round of one key.
type workTurn struct {
	Kind workKind
	ID   string
	// Asked is when the newest request arrived that this round answers.
	Asked time.Time

	workers *workers
	worker  *worker
}

// errInterrupted ends a round: the one that was asked for meanwhile decides anew.
var errInterrupted = errors.New("another round was asked for, because something else is wanted now")

// Interruptible runs a part of the round that Interrupt may cancel. It returns errInterrupted if
// that happened, also before the part began: then it does not run at all.
func (t *workTurn) Interruptible(ctx context.Context, part func(context.Context) error) error {
	partCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	t.workers.mu.Lock()
	t.worker.cancel = cancel
	interrupted := t.worker.interrupted
	t.workers.mu.Unlock()
	defer func() {
		t.workers.mu.Lock()
		t.worker.cancel = nil
		t.workers.mu.Unlock()
	}()
	if interrupted {
		return errInterrupted
	}
	err := part(partCtx)
	if partCtx.Err() != nil && ctx.Err() == nil {
		return errInterrupted
	}
	return err
}
