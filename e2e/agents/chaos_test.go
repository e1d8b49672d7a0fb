package agents

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/agbox/agbox/client"
	"github.com/agbox/agbox/e2e/internal/harness"
	"github.com/agbox/agbox/e2e/internal/robot"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/runtime"
)

const (
	// families is how many sandboxes have a tree of robots each.
	families = 8
	// disorder is how long the chaos lasts, and calm how long everything may then take to
	// end. "make chaos-agents" sets AGBOX_CHAOS to another length, and AGBOX_SEED.
	disorder, calm = 2 * time.Minute, 3 * time.Minute
	// sacrifices is how many parents the chaos ends at most. There are four for each sandbox:
	// some families stay together for all of it, however long it lasts.
	sacrifices = 2 * families
)

// chaos kills what the agents of an install need, at random times.
type chaos struct {
	t     *testing.T
	in    *harness.Install
	c     *client.Client
	boxes []string
	*rand.Rand
	// deck is what comes next.
	deck []harm
	// did counts what was done, by its name.
	did map[string]int
}

// harm is one of the things that the chaos does, and how many of them are in a deck.
type harm struct {
	name  string
	cards int
	// do reports whether there was something to harm.
	do func(*chaos, context.Context) bool
}

var harms = []harm{
	{"robot killed", 10, (*chaos).killRobot},
	{"agboxd killed", 3, (*chaos).killDaemon},
	{"agbox-init killed", 2, (*chaos).killInit},
	{"container killed", 2, (*chaos).killContainer},
	{"agent killed", 3, (*chaos).killAgent},
}

// once does the next harm of a shuffled deck that has all of them.
func (x *chaos) once(ctx context.Context) {
	if len(x.deck) == 0 {
		for _, h := range harms {
			for range h.cards {
				x.deck = append(x.deck, h)
			}
		}
		x.Shuffle(len(x.deck), func(i, j int) { x.deck[i], x.deck[j] = x.deck[j], x.deck[i] })
	}
	h := x.deck[0]
	x.deck = x.deck[1:]
	if h.do(x, ctx) {
		x.did[h.name]++
	}
}

func (x *chaos) killDaemon(context.Context) bool {
	x.in.KillDaemon(x.t)
	x.in.Must(x.t, "daemon", "start")
	return true
}

func (x *chaos) killInit(ctx context.Context) bool {
	pid := harness.PIDInside(ctx, x.t, x.box())
	if pid > 0 {
		harness.KillIfAlive(pid)
	}
	return pid > 0
}

func (x *chaos) killContainer(ctx context.Context) bool {
	err := harness.DockerAPI.ContainerKill(ctx, runtime.PrimaryName(x.box()), "KILL")
	if err != nil && !errdefs.IsNotFound(err) && !errdefs.IsConflict(err) {
		x.t.Fatal(err)
	}
	return err == nil
}

func (x *chaos) box() string { return x.boxes[x.IntN(len(x.boxes))] }

// killRobot kills the process of a robot.
func (x *chaos) killRobot(ctx context.Context) bool {
	robots := harness.ProcessesBeside(harness.PIDInside(ctx, x.t, x.box()), func(command, _ string) bool { return strings.HasPrefix(command, "/robot/") })
	if len(robots) > 0 {
		harness.KillIfAlive(robots[x.IntN(len(robots))])
	}
	return len(robots) > 0
}

// killAgent ends an agent, so that others must adopt its children.
func (x *chaos) killAgent(ctx context.Context) bool {
	if x.did["agent killed"] >= sacrifices {
		return false
	}
	all, err := x.c.ListAgents(ctx, &agboxv1.ListAgentsRequest{})
	if err != nil {
		x.t.Fatal(err)
	}
	parents := make(map[string]bool)
	for _, a := range all {
		if alive(a) {
			parents[a.GetParent()] = true
		}
	}
	var living []string
	for _, a := range all {
		if alive(a) && parents[a.GetAgentId()] {
			living = append(living, a.GetAgentId())
		}
	}
	if len(living) == 0 {
		return false
	}
	// It may have ended in between.
	_, err = x.c.KillAgent(ctx, living[x.IntN(len(living))], agboxv1.KillMode_KILL_MODE_NOW)
	if err != nil && !errdefs.IsFailedPrecondition(err) {
		x.t.Fatal(err)
	}
	return err == nil
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

func TestATreeOfAHundredLosesNothingInChaos(t *testing.T) {
	t.Parallel()
	length, seed := chaosFrom(t)
	in := harness.New(t)
	folder, err := robot.Place(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), length+calm)
	defer cancel()
	x := &chaos{t: t, in: in, c: in.Client(t), Rand: rand.New(rand.NewPCG(seed, 14)), did: make(map[string]int)}
	for i := range families {
		name := fmt.Sprint("family-", i)
		x.boxes = append(x.boxes, in.Create(t, name, harness.ImageBusybox, append(folder.Mount(), "--revival", "revive")...))
	}
	const steps = 10
	for i, box := range x.boxes {
		plan := robot.Plan{Steps: steps, Seed: seed*families + uint64(i), Fanout: 3, Depth: 2, Pace: length / steps, Stream: box, Holds: true, Resources: 20}
		if _, err := x.c.SpawnAgent(ctx, &agboxv1.SpawnAgentRequest{Spec: parental(plan), SandboxId: box}); err != nil {
			t.Fatal(err)
		}
	}
	for until := time.Now().Add(length); time.Now().Before(until); {
		timer := time.NewTimer(time.Duration(500+x.IntN(1500)) * time.Millisecond)
		select {
		case <-timer.C:
		case <-ctx.Done():
			t.Fatal(ctx.Err())
		}
		x.once(ctx)
		all, err := x.c.ListAgents(ctx, &agboxv1.ListAgentsRequest{})
		if err != nil {
			t.Fatal(err)
		}
		holdOrphans(ctx, t, x.c, all) // so they take part
	}
	// Who was suspended for long has most of its work to do.
	if err := folder.Hurry(); err != nil {
		t.Fatal(err)
	}
	f := everybody(ctx, t, x.c, folder, families)
	f.Check(t)
	claims := f.CheckClaims(t)
	t.Logf("seed %d: %v; %v; %v", seed, f, claims, x.did)
	if claims.Grants == 0 || claims.Conflicts == 0 || claims.Suspensions == 0 {
		t.Errorf("the robots did too little: %v", claims)
	}
}
