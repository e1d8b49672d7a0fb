package agents

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agbox/agbox/client"
	"github.com/agbox/agbox/e2e/internal/engine"
	"github.com/agbox/agbox/e2e/internal/harness"
	"github.com/agbox/agbox/e2e/internal/robot"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

const (
	// families is how many sandboxes have a tree of robots each.
	families = 8
	// disorder is how long the chaos lasts, and calm how long everything may then take to
	// end. "make chaos-agents" sets AGBOX_CHAOS to another length, and AGBOX_SEED.
	disorder, calm = 2 * time.Minute, 5 * time.Minute
	// sacrifices is how many parents the chaos ends at most. There are four for each sandbox:
	// some families stay together for all of it, however long it lasts.
	sacrifices = 2 * families
	// standstill is for how many ticks of the watchdog something may have no answer.
	standstill = 60
	// steady is the class of robots that nobody kills: what is lost with their sandboxes must
	// count nowhere. rash is that of robots that die early: its breaker opens.
	steady, rash = "steady", "rash"
)

// chaos kills what the agents of an install need, at random times, while others read.
type chaos struct {
	t     *testing.T
	in    *harness.Install
	c     *client.Client
	dog   *watchdog
	boxes []string
	*rand.Rand
	// deck is what comes next.
	deck []harm
	// did counts what was done, by its name.
	did map[string]int
	// deeds are the incarnations whose programs were killed.
	deeds map[robot.Deed]bool
	// spared are the agents whose programs are never killed.
	spared map[string]bool
	// agents has the ids of all agents that were seen, for the readers.
	agents atomic.Pointer[[]string]
	disks  []*disk
	// engines are the addresses of engines that are not that of the install. other is the one of
	// them that runs, or nil.
	engines []string
	other   *engine.Private
	// work has what goes on in the background: containers that are paused, disks that are full.
	work sync.WaitGroup
	// mu guards counts, which are those of the readers.
	mu     sync.Mutex
	counts map[string]int
}

// chaosFrom reads how long the chaos lasts, and its seed.
func chaosFrom(t *testing.T) (length time.Duration, seed uint64) {
	t.Helper()
	length, seed = disorder, 14
	var err error
	if text := os.Getenv("AGBOX_CHAOS"); text != "" {
		if length, err = time.ParseDuration(text); err != nil {
			t.Fatalf("AGBOX_CHAOS is not a duration such as 10m: %v", err)
		}
	}
	if text := os.Getenv("AGBOX_SEED"); text != "" {
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("AGBOX_SEED is not a number: %v", err)
		}
	}
	return length, seed
}

// newChaos makes an install with its sandboxes.
func newChaos(t *testing.T, seed uint64, folder robot.Folder) *chaos {
	t.Helper()
	x := &chaos{
		t: t, dog: newWatchdog(standstill), Rand: rand.New(rand.NewPCG(seed, 14)), did: make(map[string]int), counts: make(map[string]int),
		deeds: make(map[robot.Deed]bool), spared: make(map[string]bool),
	}
	x.agents.Store(new([]string))
	x.in = x.install(t)
	for i := range families {
		x.boxes = append(x.boxes, x.in.Create(t, fmt.Sprint("family-", i), harness.ImageBusybox, append(folder.Mount(), "--revival", "revive")...))
	}
	x.c = x.in.Client(t)
	x.findEngines()
	return x
}

// populate spawns the agents and returns how many: a family in each sandbox, every second one as a
// stack of its own, one steady robot beside it, and in some of them a rash one.
func (x *chaos) populate(ctx context.Context, seed uint64, length time.Duration) (n int) {
	x.t.Helper()
	const steps = 10
	spawn := func(box string, spec *agboxv1.AgentSpec, reach string) {
		a, err := x.c.SpawnAgent(ctx, &agboxv1.SpawnAgentRequest{Spec: spec, SandboxId: box, Reach: reach})
		if err != nil {
			x.t.Fatal(err)
		}
		if n++; spec.GetClass() == steady {
			x.spared[a.GetAgentId()] = true
		}
	}
	for i, box := range x.boxes {
		plan := robot.Plan{Steps: steps, Seed: seed*families + uint64(i), Fanout: 3, Depth: 2, Pace: length / steps, Stream: box, Holds: true, Resources: 20}
		root := parental(plan)
		reach := "all" // these claim the same resources
		if i%2 == 0 {
			reach = ""
			root.Stack = &agboxv1.AgentStack{Name: stackOf(i), Agents: 100}
		}
		spawn(box, root, reach)

		alone := patient()
		alone.Class, alone.Command = steady, robot.Plan{Steps: steps, Seed: seed + uint64(i), Pace: length / steps, Checkpoint: 4 << 10}.Command()
		spawn(box, alone, "")
		if i < robot.DefaultLimits.Failures+1 {
			short := patient()
			short.Class, short.Command = rash, robot.Plan{Steps: steps, Seed: seed, Pace: length / steps, Die: "1@5:exit3,2@5:exit4,3@5:exit5"}.Command()
			spawn(box, short, "")
		}
	}
	return n
}

// stackOf is the name of the stack of a family with an even number.
func stackOf(family int) string { return fmt.Sprint("family-", family) }

// rage does harm until the time is over.
func (x *chaos) rage(ctx context.Context, length time.Duration) {
	x.t.Helper()
	for until := time.Now().Add(length); time.Now().Before(until); {
		timer := time.NewTimer(time.Duration(500+x.IntN(1500)) * time.Millisecond)
		select {
		case <-timer.C:
		case <-ctx.Done():
			return
		}
		x.once(ctx)
		all, err := x.c.ListAgents(ctx, &agboxv1.ListAgentsRequest{All: true})
		if err != nil && ctx.Err() == nil {
			x.t.Fatal(err)
		}
		var ids []string
		for _, a := range all {
			ids = append(ids, a.GetAgentId())
		}
		x.agents.Store(&ids)
		x.adopt(ctx, all)
	}
}

// adopt holds the orphans, so that they take part. Without room on the disk it is for later.
func (x *chaos) adopt(ctx context.Context, all []*agboxv1.Agent) {
	x.t.Helper()
	for _, a := range all {
		if a.GetWord() != "SUSPENDED" || a.GetParent() != robot.Root {
			continue
		}
		for _, err := range x.c.HoldAgent(ctx, client.AgentHold{Agent: a.GetAgentId(), Name: "test", Linger: time.Hour}) {
			if err != nil && ctx.Err() == nil && !noRoom(err) {
				x.t.Fatal(err)
			}
			break
		}
	}
}

// noRoom reports whether a write was refused because the disk was full.
func noRoom(err error) bool {
	var e *client.Error
	return errors.As(err, &e) && e.Reason == agboxv1.ErrorReason_STORE_FAILED.String()
}

// guard runs the watchdog until the function that it returns is called. If the daemon stands still,
// it cancels the context; the function then fails the test and shows what the daemon does.
func (x *chaos) guard(ctx context.Context, cancel context.CancelCauseFunc) (end func()) {
	guarded, stop := context.WithCancel(ctx)
	found := make(chan string, 1)
	go func() { // waited for with found
		what := x.dog.run(guarded)
		if what != "" {
			cancel(errors.New("no answer to " + what))
		}
		found <- what
	}()
	return func() {
		x.t.Helper()
		stop()
		if what := <-found; what != "" {
			x.release()
			x.t.Fatalf("for %d ticks, each a second and a process, there was no answer to %s; did %v; the daemon is at\n%s", standstill, what, x.did, goroutines(x.t, x.in))
		}
	}
}

func TestATreeOfAHundredLosesNothingInChaos(t *testing.T) {
	t.Parallel()
	length, seed := chaosFrom(t)
	folder, err := robot.Place(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	x := newChaos(t, seed, folder)
	timed, stop := context.WithTimeout(t.Context(), length+calm)
	defer stop()
	ctx, cancel := context.WithCancelCause(timed)
	defer cancel(nil)
	number := x.populate(ctx, seed, length)

	unguard := x.guard(ctx, cancel)
	defer unguard()
	reading, enough := context.WithCancel(ctx)
	x.read(reading, seed)
	x.rage(ctx, length)
	enough()
	x.release()
	if ctx.Err() != nil {
		return // the watchdog says why
	}
	// Who was suspended for long has most of its work to do.
	if err := folder.Hurry(); err != nil {
		t.Fatal(err)
	}
	f := everybody(ctx, t, x.c, folder, number)
	f.Check(t)
	claims := f.CheckClaims(t)
	earned := f.CheckEarned(t, x.deeds, map[string]robot.Limits{"worker": {Failures: 1000, Window: time.Minute}})
	x.wantOtherUntouched()
	t.Logf("seed %d: %v; %v; %v; did %v; read %v, at most %v for %s", seed, f, claims, earned, x.did, x.counts, x.dog.longest.took.Round(time.Millisecond), x.dog.longest.what)
	if claims.Grants == 0 || claims.Conflicts == 0 || claims.Suspensions == 0 {
		t.Errorf("the robots did too little: %v", claims)
	}
	for _, a := range f.Agents {
		if a.GetClass() == steady && (a.GetState() != agboxv1.AgentState_AGENT_STATE_COMPLETED || a.GetCrashes() > 0) {
			t.Errorf("agent %s, whose program nobody killed, is %s after %d crashes: %s", a.GetAgentId(), a.GetWord(), a.GetCrashes(), a.GetMessage())
		}
	}
}
