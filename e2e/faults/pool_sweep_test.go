package faults

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agbox/agbox/e2e/internal/harness"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/runtime"
)

// poolName is the name of the one pool of an install.
const poolName = "stock"

// pool returns the pool of the install, or nil.
func (w *witness) pool(ctx context.Context) (*agboxv1.Pool, error) {
	all, err := w.c.ListPools(ctx)
	for _, p := range all {
		if p.GetName() == poolName {
			return p, err
		}
	}
	return nil, err
}

// stocked waits until the pool has what its size says, and nothing is being made.
func (w *witness) stocked(ctx context.Context) error {
	for {
		p, err := w.pool(ctx)
		if err != nil {
			return err
		}
		if p.GetReady() == p.GetSize() && p.GetComing() == 0 {
			return nil
		}
		select {
		case <-time.After(200 * time.Millisecond): // each answer is a boundary of a sweep
		case <-ctx.Done():
			return fmt.Errorf("the pool has %d of %d ready, and %d being made (trouble %q): %w", p.GetReady(), p.GetSize(), p.GetComing(), p.GetTrouble(), ctx.Err())
		}
	}
}

// objects returns how many containers and networks each sandbox of the install has in the engine.
func (w *witness) objects(t *testing.T) map[string]string {
	t.Helper()
	inv, err := w.in.Engine.Inventory(harness.Bounded(t), w.installID(t))
	if err != nil {
		t.Fatal(err)
	}
	containers, networks := make(map[string]int), make(map[string]int)
	for _, c := range inv.Containers {
		if c.Role == runtime.RolePrimary {
			containers[c.SandboxID]++
		}
	}
	for _, n := range inv.Networks {
		containers[n.SandboxID] += 0
		networks[n.SandboxID]++
	}
	have := make(map[string]string)
	for id, n := range containers {
		have[id] = fmt.Sprintf("%d containers, %d networks", n, networks[id])
	}
	return have
}

// wantStock checks that the engine has the objects of so many sandboxes of the pool, each complete, and
// nothing else. The engine may have made something for a killed daemon: the next look removes it.
func (w *witness) wantStock(t *testing.T, size int) {
	t.Helper()
	var have map[string]string
	harness.EventuallyOr(t, func() bool {
		have = w.objects(t)
		for _, objects := range have {
			if objects != "1 containers, 1 networks" {
				return false
			}
		}
		return len(have) == size
	}, func() { t.Errorf("the engine has %v; want %d sandboxes of the pool", have, size) })
}

// removePool removes the pool once it is full. Nothing of it may be left.
func (w *witness) removePool(t *testing.T) {
	t.Helper()
	if err := w.stocked(harness.Bounded(t)); err != nil {
		t.Error(err)
	}
	inv, err := w.in.Engine.Inventory(harness.Bounded(t), w.installID(t))
	if err != nil {
		t.Fatal(err)
	}
	w.in.Must(t, "pool", "rm", poolName)
	w.wantStock(t, 0)
	// The engine does not list a network while it removes it. A daemon that stops then keeps its rules.
	for _, n := range inv.Networks {
		harness.Eventually(t, "the interface of network "+n.Name+" is gone", func() bool {
			_, err := os.Stat(filepath.Join("/sys/class/net", n.Interface))
			return n.Interface == "" || os.IsNotExist(err)
		})
	}
}

// setPool makes the pool, or changes its size.
func (w *witness) setPool(ctx context.Context, size int) error {
	out, err := w.in.Command(ctx, "agbox", "pool", "set", poolName, "--size", fmt.Sprint(size), "--image", harness.ImageBusybox).CombinedOutput()
	if err != nil {
		return fmt.Errorf("agbox pool set: %w: %s", err, out)
	}
	return nil
}

// claim is a request that a sandbox of the pool fits, with what makes the sandbox its own.
type claim struct {
	id, name string
	// furnished adds a file that is copied in, and a command that runs before it is READY.
	furnished bool
}

func (cl claim) request(source string) *agboxv1.CreateSandboxRequest {
	spec := &agboxv1.CreateSpec{Image: harness.ImageBusybox, Name: cl.name, Envs: map[string]string{"OWNER": cl.name}}
	if cl.furnished {
		spec.Copies = []*agboxv1.CopySpec{{Source: source, Target: "/copied"}}
		spec.PostCreate = []string{"cat /copied >> /made; hostname >> /made"}
	}
	return &agboxv1.CreateSandboxRequest{SandboxId: cl.id, RequestKey: "key-of-" + cl.id, AnyId: true, CreateSpec: spec}
}

// mark is what a sandbox runs first: it prints what it is, and a trace of an earlier owner if there is one.
const mark = `cat /owned 2>/dev/null; echo "$OWNER" > /owned; hostname; cat /etc/hostname; echo "$HOSTNAME $OWNER"`

// marked is what it prints in a sandbox of that name that is used for the first time.
func marked(name string) string { return strings.Repeat(name+"\n", 2) + name + " " + name + "\n" }

// runIn runs a shell script in a sandbox and returns what it printed.
func (w *witness) runIn(ctx context.Context, box, script string) (string, error) {
	var stdout, stderr bytes.Buffer
	end, err := w.c.Run(ctx, &agboxv1.CreateExecRequest{SandboxId: box, Command: []string{"sh", "-c", script}}, &stdout, &stderr)
	if err == nil && (end.Code != 0 || stderr.Len() > 0) {
		err = fmt.Errorf("%q ended with %d: %s", script, end.Code, &stderr)
	}
	return stdout.String(), err
}

func TestKillAtManyBoundariesOfTheFillingOfAPool(t *testing.T) {
	t.Parallel()
	row := Row(t, 75, "SIGKILL at boundaries from \"agbox pool set\" until the pool is full", 0)
	w := newWitness(t, harness.New(t))
	const size = 2
	kills, calls := sweep(t, w, operation{
		name: "fill",
		step: 24, // of about 120, at several seconds each
		run: func(ctx context.Context, _ int) error {
			if err := w.setPool(ctx, size); err != nil {
				return err
			}
			return w.stocked(ctx)
		},
		verify: func(t *testing.T, _ kill) {
			w.wantStock(t, size)
			if list := w.in.Must(t, "ls", "-qa"); list != "" {
				t.Errorf("agbox ls shows %s, which nobody has created", list)
			}
			w.removePool(t)
		},
	})
	row.Ran(kills)
	row.Note("fill: before %s", calls)
	w.check(t)
}

func TestKillAtManyBoundariesOfACreateThatAPoolServes(t *testing.T) {
	t.Parallel()
	row := Row(t, 76, "SIGKILL at boundaries of a create that takes a sandbox of a pool", 0)
	sweepClaims(t, row.Ran, row.Note, operation{name: "claim", step: 3 /* of about 26 */}, false)
}

func TestKillAtManyBoundariesOfAClaimThatIsFurnished(t *testing.T) {
	t.Parallel()
	row := Row(t, 76, "the same with a file that is copied in and a command of post_create, until the pool is full again", 0)
	sweepClaims(t, row.Ran, row.Note, operation{name: "furnished claim", step: 12 /* of about 100 */}, true)
}

// sweepClaims kills the daemon while a sandbox of a pool is taken. furnished also has it made the
// requester's own, and waits until there is another one instead.
func sweepClaims(t *testing.T, ran func(int), note func(string, ...any), op operation, furnished bool) {
	t.Helper()
	w := newWitness(t, harness.New(t))
	const size = 2
	if err := w.setPool(harness.Bounded(t), size); err != nil {
		t.Fatal(err)
	}
	source := filepath.Join(t.TempDir(), "copied")
	if err := os.WriteFile(source, []byte("content\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	of := func(n int) claim {
		return claim{id: fmt.Sprintf("c-%d", n), name: fmt.Sprintf("box-%d", n), furnished: furnished}
	}
	var got *agboxv1.SandboxHandle
	seen, hits, killedHits := make(map[string]bool), 0, 0
	op.prepare = func(t *testing.T, _ int) {
		if err := w.stocked(harness.Bounded(t)); err != nil {
			t.Fatal(err)
		}
	}
	op.run = func(ctx context.Context, n int) error {
		h, err := w.c.CreateSandbox(ctx, of(n).request(source))
		if err != nil {
			return err
		}
		if got, err = w.c.WaitReady(ctx, h.GetSandboxId()); err != nil || !furnished {
			return err
		}
		return w.stocked(ctx)
	}
	op.verify = func(t *testing.T, k kill) {
		id := got.GetSandboxId()
		if seen[id] {
			t.Errorf("sandbox %s was handed out twice", id)
		}
		if seen[id] = true; id != of(k.n).id {
			if hits++; k.before != "" {
				killedHits++
			}
		}
		again, err := w.c.CreateSandbox(harness.Bounded(t), of(k.n).request(source))
		if err != nil || again.GetSandboxId() != id {
			t.Errorf("the repeated request got sandbox %s (%v) instead of %s", again.GetSandboxId(), err, id)
		}
		if list := w.in.Must(t, "ls", "-qa"); list != id {
			t.Errorf("agbox ls shows %q after one create, which got %s", list, id)
		}
		w.verifyClaim(t, id, of(k.n))
		w.in.Must(t, "rm", "--wait", "-f", id)
		if err := w.stocked(harness.Bounded(t)); err != nil {
			t.Error(err)
		}
		w.wantStock(t, size)
	}
	kills, calls := sweep(t, w, op)
	if killedHits == 0 {
		t.Errorf("none of %d kills was in a create that the pool served", kills)
	}
	ran(kills)
	note("%s: %d kills, before %s; %d of %d creates got a sandbox of the pool", op.name, kills, calls, hits, len(seen))
	w.removePool(t)
	w.check(t)
}

// verifyClaim checks that a sandbox is whole, is its owner's, and was nobody's before.
func (w *witness) verifyClaim(t *testing.T, id string, cl claim) {
	t.Helper()
	out, err := w.runIn(harness.Bounded(t), id, mark)
	if err != nil || out != marked(cl.name) {
		t.Errorf("sandbox %s, called %s, says %q (%v); want %q", id, cl.name, out, err, marked(cl.name))
	}
	if cl.furnished {
		if out, err := w.runIn(harness.Bounded(t), id, "cat /made"); err != nil || out != "content\n"+cl.name+"\n" {
			t.Errorf("post_create in sandbox %s left %q (%v)", id, out, err)
		}
	}
	next, first := uint64(0), agboxv1.EventType_EVENT_TYPE_UNSPECIFIED
	for ev, err := range w.c.PastEvents(harness.Bounded(t), id, 0) {
		if err != nil {
			t.Fatal(err)
		}
		if next == 0 {
			first, next = ev.GetEventType(), ev.GetSequence()
		}
		if ev.GetSequence() != next {
			t.Errorf("sandbox %s has event %d after %d", id, ev.GetSequence(), next-1)
		}
		next = ev.GetSequence() + 1
	}
	if first != agboxv1.EventType_SANDBOX_ACCEPTED {
		t.Errorf("the history of sandbox %s begins with %v", id, first)
	}
	install := w.installID(t)
	var inv runtime.Inventory
	harness.EventuallyOr(t, func() bool {
		if inv, err = w.in.Engine.SandboxInventory(harness.Bounded(t), install, id); err != nil {
			t.Fatal(err)
		}
		return len(inv.Networks) == 1
	}, func() { t.Errorf("sandbox %s has the networks %v", id, inv.Networks) })
	if len(inv.Containers) != 1 {
		t.Errorf("sandbox %s has the containers %v", id, inv.Containers)
	}
}
