package faults

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/agbox/agbox/client"
	"github.com/agbox/agbox/e2e/internal/harness"
	"github.com/agbox/agbox/e2e/internal/results"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/runtime"
)

// kill is one SIGKILL of the daemon.
type kill struct {
	// n is the number of the boundary, from 1.
	n int
	// before is the call before which the daemon was killed. It is "" if the operation
	// completed and nothing was killed.
	before string
	at     time.Time
}

// operation is an operation during which the daemon is killed, at each boundary once.
type operation struct {
	name string
	// prepare makes what the operation needs before the daemon is traced, or is nil.
	prepare func(t *testing.T, n int)
	// run returns when the caller has its result. It uses the client, which waits for the
	// next daemon by itself.
	run func(ctx context.Context, n int) error
	// dead examines the state while there is no daemon, or is nil.
	dead func(t *testing.T, n int)
	// below has the boundaries be the changes of files below this folder, if it is not empty.
	below string
	// step is the number of boundaries from one kill to the next. 0 means one. AGBOX_SWEEP can
	// say "all", or with which boundary to begin. Without it each day begins with another one.
	step int
	// verify checks the result of a round, or is nil. The witness checks its invariants
	// at the end in any case.
	verify func(t *testing.T, k kill)
}

// mostBoundaries ends a sweep that does not end by itself.
const mostBoundaries = 400

// sweep repeats the operation and kills the daemon in it one step later each time, until
// the operation completes. It returns the number of kills and the calls before them.
func sweep(t *testing.T, w *witness, op operation) (kills int, calls string) {
	t.Helper()
	seen := make(map[string]int)
	first, step := shareOf(t, op)
	for n := first; n <= mostBoundaries; n += step {
		k := runUnder(t, w, op, n)
		if op.verify != nil {
			op.verify(t, k)
		}
		if k.before == "" {
			return kills, counted(seen)
		}
		if t.Failed() {
			t.Fatalf("%s: ended at boundary %d, before %s", op.name, n, k.before)
		}
		seen[k.before]++
		kills++
	}
	t.Fatalf("%s has more than %d boundaries", op.name, mostBoundaries)
	return 0, ""
}

// shareOf returns the first boundary of a sweep, and the number from one to the next.
func shareOf(t *testing.T, op operation) (first, step int) {
	t.Helper()
	step = max(op.step, 1)
	seed := os.Getenv("AGBOX_SWEEP")
	switch n, err := strconv.Atoi(seed); {
	case seed == "all" || step == 1:
		return 1, 1
	case seed == "":
		first = 1 + int(time.Now().Unix()/86400)%step
	case err != nil || n < 1:
		t.Fatalf("AGBOX_SWEEP is %q; want all, or the number of the first boundary", seed)
	default:
		first = 1 + (n-1)%step
	}
	t.Logf("%s: every boundary number %d of %d; AGBOX_SWEEP=%d repeats them", op.name, first, step, first)
	return first, step
}

// runUnder runs the operation with a kill at the n-th boundary.
func runUnder(t *testing.T, w *witness, op operation, n int) kill {
	t.Helper()
	if op.prepare != nil {
		op.prepare(t, n)
	}
	tr := traceAndKill(t, w.in.Status(t).PID, n, op.below)
	done, killed := make(chan error, 1), make(chan string, 1)
	ctx := harness.Bounded(t)
	go func() { done <- op.run(ctx, n) }()
	go func() { killed <- tr.killed() }()
	k := kill{n: n}
	var err error
	over := false
	select {
	case err = <-done:
		over = true
		tr.end() // calls after the answer do not concern the caller
		k.before = <-killed
	case k.before = <-killed:
	}
	k.at = time.Now()
	if k.before != "" {
		if op.dead != nil {
			op.dead(t, n)
		}
		w.in.Must(t, "daemon", "start")
	}
	if !over {
		err = <-done
	}
	if err != nil {
		t.Errorf("%s with a kill at boundary %d (%s): %v", op.name, n, k.before, err)
	}
	return k
}

func counted(seen map[string]int) string {
	var parts []string
	for _, name := range []string{"fdatasync", "fsync", "rename", "send", "write", "chmod", "mkdir", "symlink", "unlink"} {
		if n := seen[name]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d x %s", n, name))
		}
	}
	return strings.Join(parts, ", ")
}

func TestKillAtEachBoundaryOfACreate(t *testing.T) {
	t.Parallel()
	uncommitted := Row(t, 1, "SIGKILL before the intent to create is committed", 0)
	committed := Row(t, 2, "SIGKILL after the intent, before the container is made", 0)
	made := Row(t, 3, "SIGKILL after the container is made, before READY", 0)
	unanswered := Row(t, 4, "SIGKILL after the commit, before the reply", 0)
	w := newWitness(t, harness.New(t))
	id := func(n int) string { return fmt.Sprintf("c-%d", n) }
	var answered time.Time
	var hadContainer bool
	var times [5]int
	op := operation{name: "create"}
	op.prepare = func(*testing.T, int) { answered, hadContainer = time.Time{}, false }
	op.run = func(ctx context.Context, n int) error {
		_, err := w.c.CreateSandbox(ctx, &agboxv1.CreateSandboxRequest{SandboxId: id(n), CreateSpec: &agboxv1.CreateSpec{Image: harness.ImageBusybox}})
		if err != nil {
			return err
		}
		answered = time.Now()
		_, err = w.c.WaitReady(ctx, id(n))
		return err
	}
	op.dead = func(t *testing.T, n int) { hadContainer = exists(t, "agbox-primary-"+id(n)) }
	op.verify = func(t *testing.T, k kill) {
		accepted := time.Time{}
		for ev, err := range w.c.PastEvents(harness.Bounded(t), id(k.n), 0) {
			if err != nil {
				t.Fatal(err)
			}
			if ev.GetEventType() == agboxv1.EventType_SANDBOX_ACCEPTED {
				accepted = ev.GetOccurredAt().AsTime()
			}
		}
		switch before := accepted.Before(k.at); {
		case k.before == "":
		case !before:
			times[1]++
		case hadContainer:
			times[3]++
		default:
			times[2]++
		}
		if k.before != "" && accepted.Before(k.at) && answered.After(k.at) {
			times[4]++
		}
		w.verifyCreate(t, id(k.n))
	}
	kills, calls := sweep(t, w, op)
	uncommitted.Note("create: %d kills, before %s", kills, calls)
	for i, r := range []*results.Row{uncommitted, committed, made, unanswered} {
		if r.Ran(times[i+1]); times[i+1] == 0 {
			t.Errorf("no kill was one of fault %d", i+1)
		}
	}
	w.check(t)
}

func TestKillAtManyBoundariesOfARun(t *testing.T) {
	t.Parallel()
	row := Row(t, 2, "SIGKILL at every sixth boundary of \"agbox run --rm\"", 0)
	w := newWitness(t, harness.New(t))
	kills, calls := sweep(t, w, operation{
		name: "run",
		step: 6, // of about 60, at several seconds each
		run: func(ctx context.Context, _ int) error {
			var stdout, stderr bytes.Buffer
			cmd := w.in.Command(ctx, "agbox", "run", "--rm", harness.ImageBusybox, "--", "sh", "-c", "echo ran; exit 7")
			cmd.Stdout, cmd.Stderr = &stdout, &stderr
			var exit *exec.ExitError
			if err := cmd.Run(); !errors.As(err, &exit) || exit.ExitCode() != 7 || stdout.String() != "ran\n" {
				return fmt.Errorf("stdout %q, stderr %q: %w", &stdout, &stderr, err)
			}
			return nil
		},
		verify: func(t *testing.T, _ kill) {
			if left := w.in.Must(t, "ls", "-q"); left != "" {
				t.Errorf("sandbox %s is left", left)
			}
		},
	})
	row.Ran(kills)
	row.Note("run --rm: before %s", calls)
	w.check(t)
}

// verifyCreate checks that a sandbox whose daemon was killed while it was made is
// READY, with one container and one network. Then it removes the sandbox.
func (w *witness) verifyCreate(t *testing.T, id string) {
	t.Helper()
	out, err := w.c.GetSandbox(harness.Bounded(t), id)
	if err != nil {
		t.Fatal(err)
	}
	if h := out.GetSandbox(); h.GetState() != agboxv1.SandboxState_SANDBOX_STATE_READY {
		t.Errorf("sandbox %s is %v", id, h)
	}
	install := w.in.Status(t).InstallID
	var inv runtime.Inventory
	// The engine may make a network for the killed daemon after the next daemon has made
	// its own. The next look at the sandbox removes it.
	harness.EventuallyOr(t, func() bool {
		if inv, err = w.in.Engine.SandboxInventory(harness.Bounded(t), install, id); err != nil {
			t.Fatal(err)
		}
		return len(inv.Networks) == 1
	}, func() { t.Errorf("sandbox %s has the networks %v", id, inv.Networks) })
	if len(inv.Containers) != 1 {
		t.Errorf("sandbox %s has the containers %v", id, inv.Containers)
	}
	w.in.Must(t, "exec", id, "--", "true")
	w.in.Must(t, "rm", "--wait", "-f", id)
	w.holds(id, agboxv1.SandboxState_SANDBOX_STATE_DELETED)
}

// exists reports whether the engine has a container of that name.
func exists(t *testing.T, name string) bool {
	t.Helper()
	_, err := harness.DockerAPI.ContainerInspect(harness.Bounded(t), name)
	return err == nil
}

func TestKillAtEachBoundaryOfAnExec(t *testing.T) {
	t.Parallel()
	row := Row(t, 6, "SIGKILL at each boundary from accepting an exec to its end", 0)
	w := newWitness(t, harness.New(t))
	box := w.box(t)
	kills, calls := sweep(t, w, operation{
		name: "exec",
		run: func(ctx context.Context, n int) error {
			j := job{id: fmt.Sprintf("e-%d", n), box: box, lines: 50, code: n % 100}
			if err := w.start(ctx, j); err != nil {
				return err
			}
			for _, err := range w.c.FollowLogs(ctx, j.id, client.LogOptions{Follow: true}) {
				if err != nil {
					return err
				}
			}
			return nil
		},
	})
	row.Ran(kills)
	row.Note("exec: before %s", calls)
	w.check(t)
}

func TestKillAtEachBoundaryOfAStopAndAStart(t *testing.T) {
	t.Parallel()
	stops := Row(t, 2, "SIGKILL at each boundary of a stop", 0)
	starts := Row(t, 2, "SIGKILL at each boundary of a start of what was stopped", 0)
	w := newWitness(t, harness.New(t))
	box := w.box(t)
	stop := func(ctx context.Context) error {
		if err := w.c.StopSandbox(ctx, box); err != nil {
			return err
		}
		_, err := w.c.WaitStopped(ctx, box)
		return err
	}
	start := func(ctx context.Context) error {
		if err := w.c.ResumeSandbox(ctx, box); err != nil {
			return err
		}
		_, err := w.c.WaitReady(ctx, box)
		return err
	}
	wellEnded := func(t *testing.T, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	kills, calls := sweep(t, w, operation{
		name:   "stop",
		run:    func(ctx context.Context, _ int) error { return stop(ctx) },
		verify: func(t *testing.T, _ kill) { wellEnded(t, start(harness.Bounded(t))) },
	})
	stops.Ran(kills)
	stops.Note("stop: before %s", calls)
	kills, calls = sweep(t, w, operation{
		name:    "start",
		prepare: func(t *testing.T, _ int) { wellEnded(t, stop(harness.Bounded(t))) },
		run:     func(ctx context.Context, _ int) error { return start(ctx) },
	})
	starts.Ran(kills)
	starts.Note("start: before %s", calls)
	wellEnded(t, w.start(harness.Bounded(t), job{id: "after", box: box, lines: 10, code: 3}))
	w.check(t)
}

func TestKillAtEachBoundaryOfADelete(t *testing.T) {
	t.Parallel()
	row := Row(t, 5, "SIGKILL at each boundary of a delete", 0)
	w := newWitness(t, harness.New(t))
	var box string
	kills, calls := sweep(t, w, operation{
		name: "delete",
		prepare: func(t *testing.T, n int) {
			box = w.in.Must(t, "create", "--image", harness.ImageBusybox)
			w.in.Must(t, "exec", "-d", box, "--", "sleep", "1000")
		},
		run: func(ctx context.Context, _ int) error {
			if err := w.c.DeleteSandbox(ctx, box); err != nil {
				return err
			}
			return w.c.WaitDeleted(ctx, box)
		},
		verify: func(*testing.T, kill) { w.holds(box, agboxv1.SandboxState_SANDBOX_STATE_DELETED) },
	})
	row.Ran(kills)
	row.Note("delete: before %s", calls)
	w.check(t)
}
