package faults

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/agbox/agbox/client"
	"github.com/agbox/agbox/e2e/internal/harness"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/runtime"
)

// crowd is many clients that create sandboxes and remove them, beside a pool.
type crowd struct {
	*witness
	// left is how many creates remain.
	left atomic.Int64

	// mu guards the fields below.
	mu sync.Mutex
	// owners has who was handed out each sandbox, or has asked for it by its id.
	owners map[string]string
	// killed has when the container of a sandbox was killed: before the request to the engine, and after it.
	killed map[string]interval
	took   []time.Duration
	// served counts sandboxes that the pool made, and dead those that were killed while they were taken.
	served, dead int
	violations   []string
}

type interval struct {
	began, ended time.Time
	// alone means that there was no daemon meanwhile.
	alone bool
}

// late is how long after the end of a container a busy daemon may hand it out. Its owner learns that the
// sandbox has failed. A daemon that started later has never been linked to it, so it never hands it out.
const late = 2 * time.Second

// crowdFrom reads how many creates there are and from how many clients, and the seed.
func crowdFrom(t *testing.T) (creates, clients int, seed uint64) {
	t.Helper()
	creates, clients, seed = 40, 8, 26
	var err error
	if text := os.Getenv("AGBOX_POOL_CREATES"); text != "" {
		if creates, err = strconv.Atoi(text); err != nil || creates < 1 {
			t.Fatalf("AGBOX_POOL_CREATES is %q; want a number", text)
		}
		clients = 16
	}
	if text := os.Getenv("AGBOX_SEED"); text != "" {
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("AGBOX_SEED is not a number: %v", err)
		}
	}
	t.Logf("%d creates from %d clients; AGBOX_SEED=%d", creates, clients, seed)
	return creates, clients, seed
}

func TestManyTakeFromAPoolWhileThingsAreKilled(t *testing.T) {
	t.Parallel()
	row := Row(t, 77, "SIGKILL of the daemon and of free sandboxes of a pool, while many take them", 0)
	creates, clients, seed := crowdFrom(t)
	const size = 5
	w := &crowd{witness: newWitness(t, harness.New(t)), owners: make(map[string]string), killed: make(map[string]interval)}
	// A client that hears nothing of its sandbox takes one outage after the other for a single one.
	w.c = w.in.Client(t, client.WithReconnect(2*harness.Patience))
	if _, err := w.c.Ping(harness.Bounded(t)); err != nil {
		t.Fatal(err)
	}
	if err := w.setPool(harness.Bounded(t), size); err != nil {
		t.Fatal(err)
	}
	if err := w.stocked(harness.Bounded(t)); err != nil {
		t.Fatal(err)
	}
	w.left.Store(int64(creates))
	began := time.Now()
	var work sync.WaitGroup
	for i := range clients {
		random := rand.New(rand.NewPCG(seed, uint64(i)))
		work.Go(func() {
			for n := 0; w.left.Add(-1) >= 0; n++ {
				w.one(t.Context(), fmt.Sprintf("client-%d-%d", i, n), random.IntN(2) == 0)
			}
		})
	}
	done := make(chan struct{})
	go func() { work.Wait(); close(done) }()
	daemons, members := w.killAll(t, rand.New(rand.NewPCG(seed, 1000)), done)
	length := time.Since(began)

	for _, what := range w.violations {
		t.Error(what)
	}
	p, err := w.pool(harness.Bounded(t))
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(w.took)
	figures := fmt.Sprintf("%d creates from %d clients in %v: %d served by the pool of %d (it counts %d hits, %d misses), p50 %v, p95 %v; %d daemons and %d free sandboxes killed, %d of them while they were taken; %d violations; AGBOX_SEED=%d",
		creates, clients, length.Round(time.Second), w.served, size, p.GetHits(), p.GetMisses(),
		w.took[len(w.took)/2].Round(time.Millisecond), w.took[len(w.took)*95/100].Round(time.Millisecond), daemons, members, w.dead, len(w.violations), seed)
	t.Log(figures)
	row.Note("%s", figures)
	row.Ran(daemons + members)
	if w.served == 0 || members == 0 || daemons == 0 {
		t.Errorf("the pool served %d creates, %d of its sandboxes and %d daemons were killed; want some of each", w.served, members, daemons)
	}
	if list := w.in.Must(t, "ls", "-q"); list != "" {
		t.Errorf("agbox ls shows %q, which its owners have removed", list)
	}
	if err := w.stocked(harness.Bounded(t)); err != nil {
		t.Error(err)
	}
	w.wantStock(t, size)
	w.removePool(t)
	w.check(t)
}

// killAll kills daemons and free sandboxes until all creates are done. It returns how many.
func (w *crowd) killAll(t *testing.T, random *rand.Rand, done <-chan struct{}) (daemons, members int) {
	t.Helper()
	for {
		select {
		case <-done:
			return daemons, members
		case <-time.After(time.Duration(100+random.IntN(2000)) * time.Millisecond):
		}
		kind := random.IntN(6) // 0: a daemon; 1 and 2: a daemon, and a sandbox while there is none; else a sandbox
		if kind > 0 {
			w.awaitFree(t.Context(), 20*time.Millisecond)
		}
		if kind < 3 {
			w.kill(t)
			daemons++
		}
		if kind > 0 && w.killFree(t, random, kind < 3) {
			members++
		}
		if kind < 3 {
			w.in.Must(t, "daemon", "start")
		}
	}
}

// killFree kills the container of a sandbox that nobody has, as far as is known.
func (w *crowd) killFree(t *testing.T, random *rand.Rand, alone bool) bool {
	t.Helper()
	inv, err := w.in.Engine.Inventory(harness.Bounded(t), w.installID(t))
	if err != nil {
		t.Fatal(err)
	}
	w.mu.Lock()
	free := slices.DeleteFunc(inv.Containers, func(c runtime.Container) bool {
		return w.owners[c.SandboxID] != "" || !w.killed[c.SandboxID].began.IsZero() || c.Role != runtime.RolePrimary || c.State != runtime.StateRunning
	})
	if len(free) == 0 {
		w.mu.Unlock()
		return false
	}
	victim := free[random.IntN(len(free))]
	w.killed[victim.SandboxID] = interval{began: time.Now(), alone: alone}
	w.mu.Unlock()
	if err := harness.DockerAPI.ContainerKill(harness.Bounded(t), victim.ID, "KILL"); err != nil && !errdefs.IsNotFound(err) && !errdefs.IsConflict(err) {
		t.Fatal(err) // a conflict: it has ended by itself
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	k := w.killed[victim.SandboxID]
	k.ended = time.Now()
	w.killed[victim.SandboxID] = k
	return true
}

// violated notes what must not happen.
func (w *crowd) violated(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.violations = append(w.violations, fmt.Sprintf(format, args...))
}

// one creates a sandbox, uses it and removes it. One that was killed while it was taken is replaced.
func (w *crowd) one(ctx context.Context, name string, patient bool) {
	for try := 0; ; try++ {
		if patient {
			w.awaitFree(ctx, 100*time.Millisecond)
		}
		cl := claim{id: client.NewID(), name: fmt.Sprintf("%s-%d", name, try)}
		w.mu.Lock()
		w.owners[cl.id] = cl.name
		w.mu.Unlock()
		if w.take(ctx, cl) {
			return
		}
	}
}

// awaitFree waits until the pool has something ready. Others may take it first. It does not wait for long: the
// pool pauses after sandboxes that were killed.
func (w *crowd) awaitFree(ctx context.Context, pace time.Duration) {
	for until := time.Now().Add(10 * time.Second); time.Now().Before(until); {
		p, err := w.pool(ctx)
		if err != nil {
			w.violated("list the pools: %v", err)
		}
		if err != nil || p.GetReady() > 0 {
			return
		}
		select {
		case <-time.After(pace):
		case <-ctx.Done():
			return
		}
	}
}

// take returns false if the sandbox was killed while it was taken.
func (w *crowd) take(ctx context.Context, cl claim) bool {
	ctx, cancel := context.WithTimeout(ctx, 2*harness.Patience)
	defer cancel()
	began := time.Now()
	h, err := w.c.CreateSandbox(ctx, cl.request(""))
	if err != nil {
		w.violated("create %s: %v", cl.name, err)
		return true
	}
	id := h.GetSandboxId()
	w.mu.Lock()
	if owner := w.owners[id]; owner != "" && owner != cl.name {
		w.violations = append(w.violations, fmt.Sprintf("sandbox %s was handed out to %s and to %s", id, owner, cl.name))
	}
	if w.owners[id] = cl.name; id != cl.id {
		w.served++
	}
	w.mu.Unlock()

	_, err = w.c.WaitReady(ctx, id)
	took := time.Since(began)
	var out string
	if err == nil {
		out, err = w.runIn(ctx, id, mark)
	}
	if err == nil && out != marked(cl.name) {
		w.violated("sandbox %s, called %s, says %q; want %q", id, cl.name, out, marked(cl.name))
	}
	dead := err != nil && w.killedMeanwhile(ctx, id)
	switch {
	case err == nil:
		w.mu.Lock()
		w.took = append(w.took, took)
		w.mu.Unlock()
	case dead:
		w.mu.Lock()
		w.dead++
		w.mu.Unlock()
	default:
		w.violated("%s got sandbox %s (made ahead: %v), which is unhealthy: %v; %s", cl.name, id, id != cl.id, err, w.story(ctx, id, began))
	}
	if err := errors.Join(w.c.DeleteSandbox(ctx, id), w.c.WaitDeleted(ctx, id)); err != nil {
		w.violated("remove %s: %v", id, err)
	}
	return !dead
}

// killedMeanwhile reports whether a sandbox was killed after it was handed out, or so shortly before it that
// the daemon may not have known.
func (w *crowd) killedMeanwhile(ctx context.Context, id string) bool {
	w.mu.Lock()
	k, killed := w.killed[id]
	w.mu.Unlock()
	if !killed || k.ended.IsZero() {
		return killed
	}
	if !k.alone {
		k.ended = k.ended.Add(late)
	}
	for ev, err := range w.c.PastEvents(ctx, id, 0) { // the first one is that it was handed out
		return err == nil && ev.GetOccurredAt().AsTime().Before(k.ended)
	}
	return false
}

// story says what is known of a sandbox, for the text of a violation.
func (w *crowd) story(ctx context.Context, id string, began time.Time) string {
	var told []string
	w.mu.Lock()
	if k, killed := w.killed[id]; killed {
		told = append(told, fmt.Sprintf("killed %v to %v after the request (without a daemon: %v)", k.began.Sub(began), k.ended.Sub(began), k.alone))
	}
	w.mu.Unlock()
	for ev, err := range w.c.PastEvents(ctx, id, 0) {
		if err != nil {
			return fmt.Sprint(told, err)
		}
		told = append(told, fmt.Sprintf("%d %v %+v after", ev.GetSequence(), ev.GetEventType(), ev.GetOccurredAt().AsTime().Sub(began)))
	}
	return strings.Join(told, ", ") + "; state " + w.stateOf(ctx, id).String()
}

func (w *crowd) stateOf(ctx context.Context, id string) agboxv1.SandboxState {
	out, err := w.c.GetSandbox(ctx, id)
	if err != nil {
		return agboxv1.SandboxState_SANDBOX_STATE_UNSPECIFIED
	}
	return out.GetSandbox().GetState()
}
