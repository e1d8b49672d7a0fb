package faults

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"

	"github.com/agbox/agbox/e2e/internal/engine"
	"github.com/agbox/agbox/e2e/internal/harness"
	"github.com/agbox/agbox/internal/ids"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// steady is a job that takes about two seconds.
func steady(box string) job {
	return job{id: ids.New(), box: box, lines: 2000, code: 7, every: 10, pause: 10 * time.Millisecond}
}

func TestExecsDoNotNoticeAnEngineThatIsKilledUnderLiveRestore(t *testing.T) {
	t.Parallel()
	const rounds = 3
	Row(t, 12, "dockerd killed, live-restore on: execs go on, what happened meanwhile is found", rounds)
	p, in := private(t, engine.LiveRestore())
	w := newWitness(t, in)
	box := w.box(t)
	before := inspectIn(t, p.API(), primaryOf(t, in, box).ID).Pid
	for range rounds {
		victim := w.box(t)
		pid := inspectIn(t, p.API(), primaryOf(t, in, victim).ID).Pid
		through := steady(box)
		if err := w.start(t.Context(), through); err != nil {
			t.Fatal(err)
		}
		p.Kill(t)
		if why := awaitDegraded(t, w.c, box); !strings.Contains(why, "Docker") {
			t.Errorf("the sandbox is degraded because of %q", why)
		}
		// Running commands needs no engine.
		during := job{id: ids.New(), box: box, lines: 500, code: 3}
		if err := w.start(t.Context(), during); err != nil {
			t.Errorf("a command is refused while the engine is away: %v", err)
		}
		wantRun(t, in, box)
		killFromOutside(t, pid)
		p.Start(t)
		awaitWell(t, w.c, box)
		awaitState(t, w.c, victim, agboxv1.SandboxState_SANDBOX_STATE_FAILED)
		w.holds(victim, agboxv1.SandboxState_SANDBOX_STATE_FAILED)
	}
	w.check(t)
	if now := inspectIn(t, p.API(), primaryOf(t, in, box).ID).Pid; now != before {
		t.Errorf("the primary's process was %d and is %d", before, now)
	}
}

func TestAnEngineRestartWithoutLiveRestoreEndsSandboxesAsTheirPolicySays(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		down func(*engine.Private, testing.TB)
	}{
		{"restarted in order", (*engine.Private).Stop},
		{"killed", (*engine.Private).Kill},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			Row(t, 13, "dockerd "+c.name+", live-restore off: recovery table, logs whole, reason says so", 1)
			p, in := private(t)
			w := newWitness(t, in)
			fails, revives, stopped := w.box(t), w.box(t, "--revival", "revive"), w.box(t)
			in.Must(t, "stop", stopped)
			w.holds(stopped, agboxv1.SandboxState_SANDBOX_STATE_STOPPED)
			done := job{id: ids.New(), box: fails, lines: 300, code: 5}
			if err := w.start(t.Context(), done); err != nil {
				t.Fatal(err)
			}
			wantEnd(t, w, done)
			cut, cutToo := endless(ids.New(), fails), endless(ids.New(), revives)
			startUnwatched(t, w.c, cut)
			startUnwatched(t, w.c, cutToo)

			c.down(p, t)
			awaitDegraded(t, w.c, revives)
			p.Start(t)

			sb := awaitState(t, w.c, fails, agboxv1.SandboxState_SANDBOX_STATE_FAILED)
			if sb.GetErrorCode() != agboxv1.ErrorReason_ENGINE_RESTARTED.String() || !strings.Contains(sb.GetErrorMessage(), "restart") {
				t.Errorf("the sandbox failed with %q: %s", sb.GetErrorCode(), sb.GetErrorMessage())
			}
			// It is revived after the end of its command.
			wantCutShort(t, w.c, cutToo)
			awaitRevived(t, w.c, revives)
			wantCutShort(t, w.c, cut)
			in.Must(t, "start", fails)
			for _, box := range []string{fails, revives} {
				wantRun(t, in, box)
				if err := w.start(t.Context(), job{id: ids.New(), box: box, lines: 300, code: 6}); err != nil {
					t.Errorf("a command after the restart: %v", err)
				}
			}
			w.check(t)
		})
	}
}

func TestADaemonThatStartsWithoutAnEngineServesWhatItKnows(t *testing.T) {
	t.Parallel()
	Row(t, 13, "daemon started while dockerd is stopped: serves, says degraded, recovers by itself", 1)
	p, in := private(t, engine.LiveRestore())
	w := newWitness(t, in)
	box := w.box(t)
	before, through := job{id: ids.New(), box: box, lines: 300, code: 4}, steady(box)
	for _, j := range []job{before, through} {
		if err := w.start(t.Context(), j); err != nil {
			t.Fatal(err)
		}
	}
	wantEnd(t, w, before)
	p.Stop(t)
	in.KillDaemon(t)
	in.Must(t, "daemon", "start")

	if why := awaitDegraded(t, w.c, box); !strings.Contains(why, "Docker") {
		t.Errorf("the sandbox is degraded because of %q", why)
	}
	// A sandbox can be degraded before the daemon has given up its own first call.
	harness.Eventually(t, "daemon status says that the engine is not reachable", func() bool {
		return strings.Contains(in.Must(t, "daemon", "status"), "not reachable")
	})
	stdout, _ := before.output()
	if got := in.Agbox(t, "logs", before.id).Want(t, 0).Stdout; got != string(stdout) {
		harness.WantSame(t, "a log without an engine", got, string(stdout))
	}
	wantRun(t, in, box)
	refused := in.Agbox(t, "create", "--image", harness.ImageBusybox).Want(t, 6)
	if !strings.Contains(refused.Stderr, "Docker") {
		t.Errorf("create says %q", refused.Stderr)
	}
	if all := strings.Fields(in.Must(t, "ls", "--deleted", "-q")); len(all) != 1 {
		t.Errorf("ls --deleted shows %v, want the one sandbox", all)
	}

	p.Start(t)
	awaitWell(t, w.c, box)
	w.box(t)
	w.check(t)
}

func TestASupervisorThatIsKilledFailsTheSandboxAndKeepsTheLogs(t *testing.T) {
	t.Parallel()
	const rounds = 3
	Row(t, 25, "supervisor killed from outside, as the OOM killer does", rounds)
	in := harness.New(t)
	w := newWitness(t, in)
	box := w.box(t)
	for range rounds {
		done, cut := job{id: ids.New(), box: box, lines: 300, code: 5}, endless(ids.New(), box)
		if err := w.start(t.Context(), done); err != nil {
			t.Fatal(err)
		}
		wantEnd(t, w, done)
		startUnwatched(t, w.c, cut)
		killFromOutside(t, inspectIn(t, harness.DockerAPI, primaryOf(t, in, box).ID).Pid)
		sb := awaitState(t, w.c, box, agboxv1.SandboxState_SANDBOX_STATE_FAILED)
		if sb.GetErrorCode() != agboxv1.ErrorReason_PRIMARY_EXITED.String() || !strings.Contains(sb.GetErrorMessage(), "137") {
			t.Errorf("the sandbox failed with %q: %s", sb.GetErrorCode(), sb.GetErrorMessage())
		}
		if e := wantCutShort(t, w.c, cut); e.GetErrorCode() != agboxv1.ErrorReason_EXEC_LOST.String() {
			t.Errorf("the command is shown as %v, want it lost", e)
		}
		in.Must(t, "start", box)
	}
	w.check(t)
}

// wantEnd waits for a job to end and checks its exit code.
func wantEnd(t *testing.T, w *witness, j job) {
	t.Helper()
	w.in.Agbox(t, "logs", "-f", j.id).Want(t, 0)
	e, err := w.c.GetExec(harness.Bounded(t), j.id)
	if err != nil {
		t.Fatal(err)
	}
	if int(e.GetExitCode()) != j.code {
		t.Errorf("exec %s ended as %v, want code %d", j.id, e, j.code)
	}
}

// strangeIn makes a container of somebody else in a private engine.
func strangeIn(t *testing.T, p *engine.Private, name string, labels map[string]string) (id string, remove func()) {
	t.Helper()
	ctx := harness.Bounded(t)
	made, err := p.API().ContainerCreate(ctx,
		&container.Config{Image: harness.ImageBusybox, Cmd: []string{"sleep", "100000"}, Labels: labels, StopSignal: "KILL"},
		&container.HostConfig{NetworkMode: "none"}, nil, nil, name)
	if err != nil {
		t.Fatal(err)
	}
	remove = removeAfter(t, p.API(), made.ID)
	if err := p.API().ContainerStart(ctx, made.ID, container.StartOptions{}); err != nil {
		t.Fatal(err)
	}
	return made.ID, remove
}

// otherBinaries copies the binaries with a supervisor of other content, which makes it
// another supervisor.
func otherBinaries(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp(harness.Binaries, "other")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"agbox", "agboxd", "agbox-init"} {
		content, err := os.ReadFile(filepath.Join(harness.Binaries, name))
		if err != nil {
			t.Fatal(err)
		}
		if name == "agbox-init" {
			content = append(content, "another"...)
		}
		if err := harness.WriteProgram(filepath.Join(dir, name), content); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}
