package faults

import (
	"strings"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"

	"github.com/agbox/agbox/e2e/internal/engine"
	"github.com/agbox/agbox/e2e/internal/harness"
	"github.com/agbox/agbox/internal/ids"
)

// lasting is a job that outlives what these tests do, about eight seconds.
func lasting(box string) job {
	return job{id: ids.New(), box: box, lines: 8000, code: 7, every: 10, pause: 10 * time.Millisecond}
}

// wantRefusedEngine checks what people are told while another engine answers, and that it was
// given nothing.
func wantRefusedEngine(t *testing.T, in *harness.Install, p *engine.Private, why string) {
	t.Helper()
	if !strings.Contains(why, "--adopt-engine") {
		t.Errorf("the sandbox is degraded because of %q, want what to do", why)
	}
	const noEngine = 6
	in.Agbox(t, "create", "more", "--image", harness.ImageBusybox).Want(t, noEngine)
	if said := in.Agbox(t, "doctor").Want(t, 1); !strings.Contains(said.Stdout, "--adopt-engine") {
		t.Errorf("doctor says\n%s", said.Stdout)
	}
	all, err := p.API().ContainerList(harness.Bounded(t), container.ListOptions{All: true})
	if err != nil || len(all) != 0 {
		t.Errorf("the other engine has %v (%v), want nothing", all, err)
	}
}

func TestAnotherEngineIsNeitherUsedNorBelieved(t *testing.T) {
	t.Parallel()
	Row(t, 63, "another engine in the environment after a crash, and as a setting", 3)
	p := engine.New(t, nil)
	in := harness.New(t)
	own := in.Bin
	w := newWitness(t, in)
	box := w.box(t)
	through := lasting(box)
	if err := w.start(t.Context(), through); err != nil {
		t.Fatal(err)
	}
	in.Env = append(in.Env, "DOCKER_HOST="+p.Host()) // of the shell that happens to come next
	in.KillDaemon(t)
	in.Must(t, "ls")
	awaitWell(t, w.c, box)
	if shown := in.Must(t, "doctor"); strings.Contains(shown, p.Host()) {
		t.Errorf("the engine was taken from the environment:\n%s", shown)
	}

	in.Bin = flagged(t, "--engine", p.Host(), "--resync", "1s")
	in.KillDaemon(t)
	in.Must(t, "ls")
	wantRefusedEngine(t, in, p, awaitDegraded(t, w.c, box))
	wantRun(t, in, box) // running commands needs no engine

	in.Bin = own
	in.KillDaemon(t)
	in.Must(t, "ls")
	awaitWell(t, w.c, box)
	wantRun(t, in, box)
	w.check(t)
}

func TestAnEngineWithoutItsDataIsNotBelieved(t *testing.T) {
	t.Parallel()
	Row(t, 64, "the engine loses its data root, and gets it back; also after a restart of the daemon", 1)
	p, in := private(t, engine.LiveRestore())
	w := newWitness(t, in)
	box := w.box(t)
	through := lasting(box)
	if err := w.start(t.Context(), through); err != nil {
		t.Fatal(err)
	}
	p.LoseData(t)
	why := awaitDegraded(t, w.c, box)
	harness.Eventually(t, "it is noticed what became of the engine", func() bool {
		why = listed(t, w.c, box).GetDegradedReason()
		return strings.Contains(why, "--adopt-engine")
	})
	wantRefusedEngine(t, in, p, why)
	in.KillDaemon(t)
	in.Must(t, "ls")
	wantRefusedEngine(t, in, p, awaitDegraded(t, w.c, box))
	p.FindData(t)
	awaitWell(t, w.c, box)
	wantRun(t, in, box)
	w.check(t)
}

// TestAnAdoptedEngineTakesTheInstall: processes of a sandbox that the engine does not have run
// on until the sandbox ends.
func TestAnAdoptedEngineTakesTheInstall(t *testing.T) {
	t.Parallel()
	p := engine.New(t, nil)
	in := harness.New(t)
	w := newWitness(t, in)
	box, other := w.box(t), in.Create(t, "other", harness.ImageBusybox)
	in.Bin = flagged(t, "--engine", p.Host(), "--resync", "1s")
	in.Must(t, "daemon", "stop")
	in.Must(t, "daemon", "start")
	wantRefusedEngine(t, in, p, awaitDegraded(t, w.c, box))
	in.Agbox(t, "doctor", "--adopt-engine")
	awaitStray(t, w.c, box)
	wantRun(t, in, box)
	in.Must(t, "stop", other)
	in.Must(t, "daemon", "stop")
	in.Bin = flagged(t, "--engine", harness.DockerAPI.DaemonHost(), "--resync", "1s")
	in.Must(t, "daemon", "start")
	in.Agbox(t, "doctor", "--adopt-engine")
	awaitWell(t, w.c, box)
	in.Must(t, "start", other)
	wantRun(t, in, box)
	wantRun(t, in, other)
	in.Must(t, "rm", "--wait", "--force", other)
	w.check(t)
}
