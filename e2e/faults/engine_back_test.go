package faults

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/volume"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/client"
	"github.com/agbox/agbox/e2e/internal/engine"
	"github.com/agbox/agbox/e2e/internal/harness"
	"github.com/agbox/agbox/e2e/internal/robot"
	"github.com/agbox/agbox/e2e/internal/robot/diary"
	"github.com/agbox/agbox/internal/ids"
	"github.com/agbox/agbox/internal/process"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/runtime/docker"
)

// awaitStray waits until it is shown that the engine does not have the sandbox's container,
// whose processes run on.
func awaitStray(t *testing.T, c *client.Client, box string) {
	t.Helper()
	harness.Eventually(t, "it is shown that the processes run on", func() bool {
		return strings.Contains(listed(t, c, box).GetDegradedReason(), "its processes run on")
	})
}

// wantNoEngine waits until the sandbox is degraded because another engine answers.
func wantNoEngine(t *testing.T, c *client.Client, box string) {
	t.Helper()
	harness.Eventually(t, "it is noticed that another engine answers", func() bool {
		return strings.Contains(listed(t, c, box).GetDegradedReason(), "--adopt-engine")
	})
}

// heldJob is a job that waits before its last line until the function that is returned runs.
func heldJob(t *testing.T, w *witness, box string) (j job, release func()) {
	t.Helper()
	hold := filepath.Join(w.logs(box), "hold")
	if err := os.WriteFile(hold, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	j = job{id: ids.New(), box: box, lines: 200, code: 7}
	if err := w.start(t.Context(), j); err != nil {
		t.Fatal(err)
	}
	return j, func() {
		t.Helper()
		if err := os.Remove(hold); err != nil {
			t.Fatal(err)
		}
	}
}

func TestCommandsOutliveTheDataOfTheirEngine(t *testing.T) {
	t.Parallel()
	Row(t, 65, "the engine loses its data and is adopted like that, then has it again", 1)
	p, in := private(t, engine.LiveRestore())
	w := newWitness(t, in)
	shop := newWorkshop(t, w)
	plan := robot.Plan{Steps: 4, Seed: 5, WaitAt: 3}
	all := employ(t, []workshop{shop}, 1, plan)
	_, release := heldJob(t, w, shop.box)
	other := w.box(t)
	pid := inspectIn(t, p.API(), primaryOf(t, in, other).ID).Pid

	p.LoseData(t)
	wantNoEngine(t, w.c, shop.box)
	in.Agbox(t, "doctor", "--adopt-engine")
	awaitStray(t, w.c, shop.box)
	wantRun(t, in, shop.box)
	in.KillDaemon(t)
	in.Must(t, "ls")
	awaitStray(t, w.c, shop.box)
	in.Must(t, "rm", "--wait", "--force", other)
	w.holds(other, agboxv1.SandboxState_SANDBOX_STATE_DELETED)
	if process.Lives(pid) {
		t.Errorf("process %d of a sandbox that was removed lives", pid)
	}
	release()
	finish(t, []workshop{shop}, all, plan, 1)
	wantNoBreaker(t, w)

	p.FindData(t) // it is known by the containers that it has, and its id
	awaitWell(t, w.c, shop.box)
	wantRun(t, in, shop.box)
	w.check(t)
}

// TestCommandsThatWereLostAreTakenUpWithTheirContainer: a daemon that does not know the first
// process of a container, as one in a container of its own, records its commands as lost.
func TestCommandsThatWereLostAreTakenUpWithTheirContainer(t *testing.T) {
	t.Parallel()
	Row(t, 73, "the engine loses its data and is adopted like that by a daemon that sees no processes, then has it again", 2)
	p, in := private(t, engine.LiveRestore())
	w := newWitness(t, in)
	shop := newWorkshop(t, w)
	plan := robot.Plan{Steps: 4, Seed: 5, WaitAt: 3, Checkpoint: 1}
	all := employ(t, []workshop{shop}, 1, plan)
	runs, release := heldJob(t, w, shop.box)
	late := ids.New()
	gate := filepath.Join(w.logs(shop.box), "late")
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := w.c.CreateExec(harness.Bounded(t), &agboxv1.CreateExecRequest{
		SandboxId: shop.box, ExecId: late, Command: []string{"sh", "-c", "while [ -e /var/log/agents-sandbox/late ]; do sleep 0.05; done; echo late; exit 5"},
	})
	if err != nil {
		t.Fatal(err)
	}

	p.LoseData(t)
	wantNoEngine(t, w.c, shop.box)
	in.KillDaemon(t)
	if err := os.Remove(filepath.Join(in.Home, "data", "guest", shop.box, "init.json")); err != nil {
		t.Fatal(err)
	}
	in.Must(t, "ls")
	wantNoEngine(t, w.c, shop.box)
	in.Agbox(t, "doctor", "--adopt-engine")
	awaitState(t, w.c, shop.box, agboxv1.SandboxState_SANDBOX_STATE_FAILED)
	for _, id := range []string{runs.id, late, agents.ExecID(all[0], 1)} {
		if e, err := w.c.GetExec(harness.Bounded(t), id); err != nil || e.GetErrorCode() != agboxv1.ErrorReason_EXEC_LOST.String() {
			t.Errorf("exec %s is %v (%v), want it lost", id, e, err)
		}
	}
	harness.Eventually(t, "the loss is told to the agent", func() bool {
		a, err := w.c.GetAgent(harness.Bounded(t), all[0])
		return err == nil && a.GetPauseReason() == agboxv1.PauseReason_PAUSE_REASON_ORPHANED
	})
	if err := os.Remove(gate); err != nil { // it ends while nobody knows of it
		t.Fatal(err)
	}

	p.FindData(t)
	awaitWell(t, w.c, shop.box)
	if e, err := w.c.GetExec(harness.Bounded(t), runs.id); err != nil || e.GetState() != agboxv1.ExecState_EXEC_STATE_RUNNING || e.GetErrorCode() != "" {
		t.Errorf("exec %s is %v (%v), want it running", runs.id, e, err)
	}
	in.Agbox(t, "wait", late).Want(t, 0).WantOutput(t, "5\n", "")
	in.Agbox(t, "logs", late).Want(t, 0).WantOutput(t, "late\n", "")
	wantRun(t, in, shop.box)
	release()
	finish(t, []workshop{shop}, all, plan, 2) // the second one after the end of the first
	if n := shop.folder.Story(t, all[0]).Count(diary.Overlap); n != 0 {
		t.Errorf("%d incarnations began while another one lived", n)
	}
	wantNoBreaker(t, w)
	w.check(t)
}

// marks returns how many marks of installs an engine has.
func marks(t *testing.T, p *engine.Private) int {
	t.Helper()
	all, err := p.API().VolumeList(harness.Bounded(t), volume.ListOptions{Filters: filters.NewArgs(filters.Arg("label", "agbox.engine-of"))})
	if err != nil {
		t.Fatal(err)
	}
	return len(all.Volumes)
}

// prune removes all volumes that no container uses.
func prune(t *testing.T, p *engine.Private) {
	t.Helper()
	report, err := p.API().VolumesPrune(harness.Bounded(t), filters.NewArgs())
	if err != nil || len(report.VolumesDeleted) == 0 {
		t.Fatalf("pruned was %v (%v), want the mark", report, err)
	}
}

func TestPrunedVolumesParkNoInstall(t *testing.T) {
	t.Parallel()
	Row(t, 66, "all unused volumes of the engine are removed, while a daemon runs and while none does", 3)
	p, in := private(t)
	w := newWitness(t, in)
	box := w.box(t)
	_, release := heldJob(t, w, box)
	harness.Eventually(t, "the engine has a mark", func() bool { return marks(t, p) == 1 })
	prune(t, p)
	harness.Eventually(t, "the mark is made again", func() bool { return marks(t, p) == 1 })
	stopped := w.box(t)
	in.Must(t, "stop", stopped)
	w.holds(stopped, agboxv1.SandboxState_SANDBOX_STATE_STOPPED)
	kill := in.AimAtDaemon(t)
	prune(t, p)
	kill()
	in.Must(t, "ls")
	awaitWell(t, w.c, box)
	release()
	w.check(t)

	// Of what is left, nothing has a container.
	in.Must(t, "rm", "--wait", "--force", stopped)
	if err := p.API().ContainerRemove(harness.Bounded(t), primaryOf(t, in, box).ID, container.RemoveOptions{Force: true}); err != nil {
		t.Fatal(err)
	}
	awaitState(t, w.c, box, agboxv1.SandboxState_SANDBOX_STATE_FAILED)
	kill = in.AimAtDaemon(t)
	prune(t, p)
	kill()
	wantRun(t, in, in.Create(t, "next", harness.ImageBusybox))
}

// TestInstallsThatShareAnEngine: one of them goes away and comes back, and prunes.
func TestInstallsThatShareAnEngine(t *testing.T) {
	t.Parallel()
	Row(t, 67, "two installs share an engine; one of them adopts another one, and then this one again", 2)
	p, in := private(t)
	other := harness.New(t, harness.On(p.Host(), in.Engine), withFlags(t, "--resync", "1s"))
	w := newWitness(t, in)
	box, theirs := w.box(t), other.Create(t, "theirs", harness.ImageBusybox)
	_, release := heldJob(t, w, box)
	away := engine.New(t, nil)
	home := other.Bin
	for _, bin := range []string{flagged(t, "--engine", away.Host(), "--resync", "1s"), flagged(t, "--engine", p.Host(), "--resync", "1s")} {
		other.Must(t, "daemon", "stop")
		other.Bin = bin
		other.Must(t, "daemon", "start")
		wantNoEngine(t, other.Client(t), theirs)
		other.Agbox(t, "doctor", "--adopt-engine")
	}
	other.Bin = home
	if n := marks(t, p); n != 2 {
		t.Errorf("the engine has %d marks, want one of each install", n)
	}
	prune(t, p)
	in.KillDaemon(t)
	in.Must(t, "ls")
	awaitWell(t, w.c, box)
	awaitWell(t, other.Client(t), theirs)
	wantRun(t, other, theirs)
	release()
	w.check(t)
}

func TestAnEngineAtAnotherAddressIsTheSame(t *testing.T) {
	t.Parallel()
	Row(t, 68, "the engine is started again with its data at another address", 1)
	p, in := private(t, engine.LiveRestore())
	w := newWitness(t, in)
	box := w.box(t)
	_, release := heldJob(t, w, box)
	p.Move(t)
	look, err := docker.New(docker.Options{Host: p.Host()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = look.Close() })
	in.Engine = look
	wantRun(t, in, box)
	awaitDegraded(t, w.c, box)
	own := in.Bin
	in.Bin = flagged(t, "--engine", p.Host(), "--resync", "1s")
	in.KillDaemon(t)
	in.Must(t, "ls")
	harness.Eventually(t, "the address is stored", func() bool { // a new daemon calls a sandbox well before it has seen the engine
		stored, err := os.ReadFile(filepath.Join(in.Home, "data", "engine-address"))
		return err == nil && strings.TrimSpace(string(stored)) == p.Host()
	})
	awaitWell(t, w.c, box)
	in.Bin = own // it wins over the address of the environment
	in.KillDaemon(t)
	in.Must(t, "ls")
	awaitWell(t, w.c, box)
	release()
	w.check(t)
}

// TestAnOlderDatabaseFollowsWhatItKnows: commands that ended or go on since then are found by
// the life of their supervisor, and incarnations of all by the ids of their execs.
func TestAnOlderDatabaseFollowsWhatItKnows(t *testing.T) {
	t.Parallel()
	Row(t, 69, "the database is replaced by an older copy of it", 1)
	in := harness.New(t)
	w := newWitness(t, in)
	shop := newWorkshop(t, w)
	_, release := heldJob(t, w, shop.box)
	plan := robot.Plan{Steps: 4, Seed: 6, WaitAt: 3}
	all := employ(t, []workshop{shop}, 2, plan)
	database, copied := filepath.Join(in.Home, "data", "ids.db"), filepath.Join(t.TempDir(), "ids.db")
	in.KillDaemon(t)
	copyFile(t, database, copied)
	in.Must(t, "ls")
	release() // the job ends, the first agent completes, and the second dies and goes on
	if err := shop.folder.Go(all[0]); err != nil {
		t.Fatal(err)
	}
	if err := shop.await(harness.Bounded(t), all[0], agboxv1.AgentState_AGENT_STATE_COMPLETED); err != nil {
		t.Fatal(err)
	}
	if err := w.c.SignalExec(harness.Bounded(t), agents.ExecID(all[1], 1), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, "the second agent is back", func() bool { return shop.folder.Story(t, all[1]).Count(diary.Begin) == 2 })
	in.KillDaemon(t)
	copyFile(t, copied, database)
	in.Must(t, "ls")
	finish(t, []workshop{shop}, all[:1], plan, 1)
	if err := shop.await(harness.Bounded(t), all[1], agboxv1.AgentState_AGENT_STATE_COMPLETED); err != nil {
		t.Fatal(err)
	}
	if ran := shop.folder.Story(t, all[1]).Count(diary.Begin); ran != 2 {
		t.Errorf("the program of agent %s ran %d times; want 2", all[1], ran)
	}
	w.check(t)
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	raw, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(to, raw, 0o600); err != nil {
		t.Fatal(err)
	}
}
