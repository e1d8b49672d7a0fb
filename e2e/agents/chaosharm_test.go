package agents

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/volume"

	"github.com/agbox/agbox/e2e/internal/engine"
	"github.com/agbox/agbox/e2e/internal/harness"
	"github.com/agbox/agbox/e2e/internal/robot"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/runtime"
)

// harm is one of the things that the chaos does, and how many of them are in a deck.
type harm struct {
	name  string
	cards int
	// do reports whether there was something to harm.
	do func(*chaos, context.Context) bool
}

var harms = []harm{
	{"robot killed", 10, (*chaos).killRobot},
	{"agboxd killed", 4, (*chaos).killDaemon},
	{"agbox-init killed", 2, (*chaos).killInit},
	{"docker kill", 1, engineDoes(func(ctx context.Context, name string) error {
		return harness.DockerAPI.ContainerKill(ctx, name, "KILL")
	})},
	{"docker restart", 2, engineDoes(func(ctx context.Context, name string) error {
		return harness.DockerAPI.ContainerRestart(ctx, name, container.StopOptions{Timeout: new(2)})
	})},
	{"docker stop and start", 1, engineDoes(func(ctx context.Context, name string) error {
		if err := harness.DockerAPI.ContainerStop(ctx, name, container.StopOptions{Timeout: new(2)}); err != nil {
			return err
		}
		return harness.DockerAPI.ContainerStart(ctx, name, container.StartOptions{})
	})},
	{"docker pause", 1, (*chaos).pauseContainer},
	{"full disk", 2, (*chaos).fillDisk},
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

// engineDoes does something to the container of a sandbox. It may have ended, or be about to.
func engineDoes(what func(context.Context, string) error) func(*chaos, context.Context) bool {
	return func(x *chaos, ctx context.Context) bool {
		return x.notGone(ctx, what(ctx, runtime.PrimaryName(x.box())))
	}
}

func (x *chaos) notGone(ctx context.Context, err error) bool {
	x.t.Helper()
	if err != nil && ctx.Err() == nil && !errdefs.IsNotFound(err) && !errdefs.IsConflict(err) {
		// The engine says so of a container that ends or starts at this moment.
		x.did["engine: "+strings.SplitN(err.Error(), ":", 3)[0]]++
		x.t.Logf("the engine: %v", err)
	}
	return err == nil
}

// pauseContainer pauses a container for some seconds.
func (x *chaos) pauseContainer(ctx context.Context) bool {
	name, length := runtime.PrimaryName(x.box()), time.Duration(1+x.IntN(12))*time.Second
	if !x.notGone(ctx, harness.DockerAPI.ContainerPause(ctx, name)) {
		return false
	}
	x.later(ctx, length, func(ctx context.Context) {
		// It may have been killed meanwhile.
		if err := harness.DockerAPI.ContainerUnpause(ctx, name); err != nil && !errdefs.IsNotFound(err) && !errdefs.IsConflict(err) {
			x.t.Logf("unpause: %v", err)
		}
	})
	return true
}

// later does something after a time, or when the context ends; release waits for it.
func (x *chaos) later(ctx context.Context, after time.Duration, what func(context.Context)) {
	x.work.Go(func() {
		timer := time.NewTimer(after)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
		bound, cancel := context.WithTimeout(context.WithoutCancel(ctx), harness.Patience)
		defer cancel()
		what(bound)
	})
}

// release waits until nothing is paused or full any more.
func (x *chaos) release() { x.work.Wait() }

// box is one of the sandboxes.
func (x *chaos) box() string { return x.boxes[x.IntN(len(x.boxes))] }

// killDaemon kills the daemon. Whoever comes first starts the next one: a reader or this, from a
// shell that may name another engine.
func (x *chaos) killDaemon(ctx context.Context) bool {
	got, err := x.c.Ping(ctx)
	if err != nil {
		return false // a reader starts one
	}
	harness.KillIfAlive(int(got.GetPid()))
	shell := x.shell(x.Rand)
	if len(shell.Env) > 0 {
		x.did["start with another engine in the environment"]++
	}
	x.cli(ctx, shell, "daemon", "start")
	return true
}

// shell is the install as one of several shells has it: half of them name another engine.
func (x *chaos) shell(random interface{ IntN(int) int }) *harness.Install {
	shell := *x.in
	if n := random.IntN(2 * len(x.engines)); n < len(x.engines) {
		shell.Env = append(slices.Clone(shell.Env), "DOCKER_HOST="+x.engines[n])
	}
	return &shell
}

// findEngines notes addresses of engines that are not the one of the install: of none, and, if root
// runs the tests, of another one.
func (x *chaos) findEngines() {
	x.t.Helper()
	x.engines = []string{"unix://" + filepath.Join(x.in.Home, "nowhere.sock")}
	if os.Geteuid() == 0 {
		x.other = engine.New(x.t, nil)
		x.engines = append(x.engines, x.other.Host())
	}
}

// wantOtherUntouched checks that the other engine has got nothing.
func (x *chaos) wantOtherUntouched() {
	x.t.Helper()
	if x.other == nil {
		return
	}
	ctx := harness.Bounded(x.t)
	all, err := x.other.API().ContainerList(ctx, container.ListOptions{All: true})
	if err != nil || len(all) != 0 {
		x.t.Errorf("the other engine has %v (%v), want nothing", all, err)
	}
	volumes, err := x.other.API().VolumeList(ctx, volume.ListOptions{})
	if err != nil || len(volumes.Volumes) != 0 {
		x.t.Errorf("the other engine has the volumes %v (%v), want none", volumes.Volumes, err)
	}
}

func (x *chaos) killInit(ctx context.Context) bool {
	pid := harness.PIDInside(ctx, x.t, x.box())
	if pid > 0 {
		harness.KillIfAlive(pid)
	}
	return pid > 0
}

// killRobot kills the process of a robot, and notes whose.
func (x *chaos) killRobot(ctx context.Context) bool {
	type victim struct {
		pid  int
		deed robot.Deed
	}
	var victims []victim
	for _, pid := range harness.ProcessesBeside(harness.PIDInside(ctx, x.t, x.box()), func(command, _ string) bool { return strings.HasPrefix(command, "/robot/") }) {
		if deed, known := incarnationOf(pid); known && !x.spared[deed.Agent] {
			victims = append(victims, victim{pid, deed})
		}
	}
	if len(victims) == 0 {
		return false
	}
	v := victims[x.IntN(len(victims))]
	x.deeds[v.deed] = true
	harness.KillIfAlive(v.pid)
	return true
}

// incarnationOf returns whose program a process is.
func incarnationOf(pid int) (d robot.Deed, known bool) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	if err != nil {
		return d, false
	}
	for entry := range strings.SplitSeq(string(raw), "\x00") {
		switch name, value, _ := strings.Cut(entry, "="); name {
		case "AGBOX_AGENT_ID":
			d.Agent = value
		case "AGBOX_INCARNATION":
			n, _ := strconv.ParseUint(value, 10, 32)
			d.Incarnation = uint32(n)
		}
	}
	return d, d.Agent != "" && d.Incarnation > 0
}

// killAgent ends an agent, so that others must adopt its children.
func (x *chaos) killAgent(ctx context.Context) bool {
	if x.did["agent killed"] >= sacrifices {
		return false
	}
	all, err := x.c.ListAgents(ctx, &agboxv1.ListAgentsRequest{})
	if err != nil {
		return false // the list after this tells
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
	if err != nil && ctx.Err() == nil && !errdefs.IsFailedPrecondition(err) && !noRoom(err) {
		x.t.Fatal(err)
	}
	return err == nil
}

// disk is a small file system with a part of the install.
type disk struct {
	name, dir string
	// mu guards full.
	mu   sync.Mutex
	full bool
}

// diskMiB is the size of a disk: more than the longest chaos needs.
const diskMiB = 2048

// install makes the install. If root runs the tests, its database and its logs are on disks of their
// own, which the chaos fills.
func (x *chaos) install(t *testing.T) *harness.Install {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Log("without root no disk is filled, and there is no second engine")
		return harness.New(t)
	}
	home, err := os.MkdirTemp("/tmp", "abc")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(home) })
	harness.SmallDisk(t, home, diskMiB)
	logs := filepath.Join(home, "data", "exec-logs")
	if err := os.MkdirAll(logs, 0o700); err != nil {
		t.Fatal(err)
	}
	harness.SmallDisk(t, logs, diskMiB)
	x.disks = []*disk{{name: "data", dir: home}, {name: "logs", dir: logs}}
	return harness.New(t, harness.At(home))
}

// fillDisk fills the disk of the data, that of the logs, or both, for some seconds.
func (x *chaos) fillDisk(ctx context.Context) bool {
	if len(x.disks) == 0 {
		return false
	}
	chosen := [][]*disk{x.disks[:1], x.disks[1:], x.disks}[x.IntN(3)]
	length := time.Duration(1+x.IntN(9)) * time.Second
	if x.IntN(4) == 0 { // longer than anything waits
		length = time.Duration(20+x.IntN(40)) * time.Second
	}
	any := false
	for _, d := range chosen {
		if d.fill(x.t) {
			any = true
			x.did["disk of the "+d.name+" filled"]++
			x.later(ctx, length, func(context.Context) { d.free(x.t) })
		}
	}
	switch { // what must come back without space
	case !any:
	case x.IntN(3) == 0 && x.killDaemon(ctx):
		x.did["agboxd killed on a full disk"]++
	case x.IntN(2) == 0 && x.notGone(ctx, harness.DockerAPI.ContainerKill(ctx, runtime.PrimaryName(x.box()), "KILL")):
		x.did["docker kill on a full disk"]++
	}
	return any
}

func (d *disk) fill(t *testing.T) bool {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.full {
		return false
	}
	if _, err := harness.Fill(d.dir); err != nil {
		t.Errorf("the disk of the %s: %v", d.name, err)
		return false
	}
	d.full = true
	return true
}

func (d *disk) free(t *testing.T) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := os.Remove(filepath.Join(d.dir, "filler")); err != nil {
		t.Errorf("the disk of the %s: %v", d.name, err)
	}
	d.full = false
}
