package e2e

import (
	"strings"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"

	"github.com/agbox/agbox/client"
	"github.com/agbox/agbox/internal/paths"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/runtime"
)

// primary is what the engine says of a primary container.
type primary struct {
	runtime.Container
	// Pid of the supervisor on the host.
	Pid int
	// supervisor is where its binary comes from.
	supervisor string
	inspected  container.InspectResponse
}

// primary asks the engine for the primary of a sandbox, of which there has to be one.
func (in *install) primary(t *testing.T, box string) primary {
	t.Helper()
	var p primary
	for _, c := range in.inventory(t).Containers {
		if c.SandboxID == box && c.Role == runtime.RolePrimary {
			p.Container = c
		}
	}
	if p.ID == "" {
		t.Fatalf("the engine has no primary of sandbox %s", box)
	}
	var err error
	if p.Container, err = engine.InspectContainer(bounded(t), p.ID); err != nil {
		t.Fatal(err)
	}
	if p.inspected, err = dockerAPI.ContainerInspect(bounded(t), p.ID); err != nil {
		t.Fatal(err)
	}
	p.Pid = p.inspected.State.Pid
	for _, m := range p.inspected.Mounts {
		if m.Destination == paths.InContainerInit {
			p.supervisor = m.Source
		}
	}
	return p
}

// awaitState returns the handle of the sandbox once it is in the state.
func awaitState(t *testing.T, c *client.Client, box string, state agboxv1.SandboxState) *agboxv1.SandboxHandle {
	t.Helper()
	ctx := bounded(t)
	for event, err := range c.Events(ctx, box, 0) {
		if err != nil {
			t.Fatalf("waiting for %v of sandbox %s: %v", state, box, err)
		}
		if event.GetSandboxState() != state {
			continue
		}
		out, err := c.GetSandbox(ctx, box)
		if err != nil {
			t.Fatal(err)
		}
		if out.GetSandbox().GetState() == state {
			return out.GetSandbox()
		}
	}
	t.Fatalf("the events of sandbox %s ended without %v", box, state)
	return nil
}

func TestAPrimaryThatIsKilledBehindOurBackIsShownAndCanBeStarted(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	box := in.create(t, "demo", imageBusybox)
	attached := in.start(t, "exec", "demo", "--", "sh", "-c", "echo running; exec sleep 1000")
	attached.awaitOutput(t, "running\n")
	job := in.execs(t)[0].GetExecId()
	if err := dockerAPI.ContainerKill(bounded(t), in.primary(t, box).ID, "KILL"); err != nil {
		t.Fatal(err)
	}

	failed := awaitState(t, in.client(t), box, agboxv1.SandboxState_SANDBOX_STATE_FAILED)
	if failed.GetErrorCode() != agboxv1.ErrorReason_PRIMARY_EXITED.String() || failed.GetErrorMessage() == "" {
		t.Errorf("the sandbox failed with %q (%s), want PRIMARY_EXITED", failed.GetErrorCode(), failed.GetErrorMessage())
	}
	wantLost(t, in, attached, job)
	refused(t, in.agbox(t, "exec", "demo", "--", "true"), 125, "start")

	in.must(t, "start", "demo")
	in.agbox(t, "exec", "demo", "--", "echo", "again").want(t, 0).wantOutput(t, "again\n", "")
	in.agbox(t, "logs", job).want(t, 0).wantOutput(t, "running\n", "")
}

// wantLost checks an exec whose container went away under it: it has ended, its
// output is kept, and nobody claims to know its exit code.
func wantLost(t *testing.T, in *install, attached *process, job string) {
	t.Helper()
	ended := attached.wait(t).want(t, 125)
	if ended.stdout != "running\n" || !strings.HasPrefix(ended.stderr, "agbox: ") {
		t.Errorf("exec ended with stdout %q and stderr %q", ended.stdout, ended.stderr)
	}
	status := in.inspectExec(t, job)
	if status.GetState() != agboxv1.ExecState_EXEC_STATE_FAILED || status.GetErrorCode() != agboxv1.ErrorReason_EXEC_LOST.String() ||
		status.GetExitCode() == 0 || status.GetFinishedAt() == nil {
		t.Errorf("inspect shows %v, want it lost", status)
	}
	in.agbox(t, "logs", "-f", job).want(t, 0).wantOutput(t, "running\n", "")
	if running := in.execs(t); len(running) != 0 {
		t.Errorf("ps shows %v, want nothing", running)
	}
}

func TestAPrimaryThatIsRemovedBehindOurBackIsShown(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	box := in.create(t, "demo", imageBusybox)
	attached := in.start(t, "exec", "demo", "--", "sh", "-c", "echo running; exec sleep 1000")
	attached.awaitOutput(t, "running\n")
	job := in.execs(t)[0].GetExecId()
	if err := dockerAPI.ContainerRemove(bounded(t), in.primary(t, box).ID, container.RemoveOptions{Force: true}); err != nil {
		t.Fatal(err)
	}

	failed := awaitState(t, in.client(t), box, agboxv1.SandboxState_SANDBOX_STATE_FAILED)
	// Between death and removal there is a moment in which it was seen dead.
	if code := failed.GetErrorCode(); code != agboxv1.ErrorReason_PRIMARY_MISSING.String() && code != agboxv1.ErrorReason_PRIMARY_EXITED.String() {
		t.Errorf("the sandbox failed with %q (%s), want PRIMARY_MISSING", code, failed.GetErrorMessage())
	}
	wantLost(t, in, attached, job)
	refused(t, in.agbox(t, "start", "demo"), 1, "removed outside agbox")
	wantSame(t, "rm", in.must(t, "rm", "demo"), box)
}

func TestAPrimaryThatIsRemovedWhileTheDaemonIsAwayIsMissing(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	box := in.create(t, "demo", imageBusybox)
	id := in.primary(t, box).ID
	in.must(t, "daemon", "stop")
	if err := dockerAPI.ContainerRemove(bounded(t), id, container.RemoveOptions{Force: true}); err != nil {
		t.Fatal(err)
	}
	in.must(t, "daemon", "start")
	failed := awaitState(t, in.client(t), box, agboxv1.SandboxState_SANDBOX_STATE_FAILED)
	if failed.GetErrorCode() != agboxv1.ErrorReason_PRIMARY_MISSING.String() {
		t.Errorf("the sandbox failed with %q (%s), want PRIMARY_MISSING", failed.GetErrorCode(), failed.GetErrorMessage())
	}
}

func TestAnIdleSandboxStopsByItselfButNotUnderACommand(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	box := in.create(t, "demo", imageBusybox, "--idle-ttl", "1s")
	c := in.client(t)
	awaitState(t, c, box, agboxv1.SandboxState_SANDBOX_STATE_STOPPED)

	in.must(t, "start", "demo")
	// Longer than the sandbox may be idle.
	in.agbox(t, "exec", "demo", "--", "sh", "-c", "sleep 2.5; echo still here").want(t, 0).wantOutput(t, "still here\n", "")
	var ended, stopped time.Time
	for event, err := range c.Events(bounded(t), box, 0) {
		if err != nil {
			t.Fatalf("waiting for the end of an idle sandbox: %v", err)
		}
		switch event.GetEventType() {
		case agboxv1.EventType_EXEC_FINISHED:
			ended = event.GetOccurredAt().AsTime()
		case agboxv1.EventType_SANDBOX_STOP_REQUESTED:
			stopped = event.GetOccurredAt().AsTime()
		}
		if !ended.IsZero() && event.GetEventType() == agboxv1.EventType_SANDBOX_STOPPED {
			break
		}
	}
	if idle := stopped.Sub(ended); idle < time.Second {
		t.Errorf("the sandbox was stopped %v after its last command, want a second or more", idle)
	}
}

func TestTwoInstallsDoNotSeeEachOther(t *testing.T) {
	t.Parallel()
	one, other := newInstall(t), newInstall(t)
	mine := one.create(t, "demo", imageBusybox)
	theirs := other.create(t, "demo", imageBusybox)
	if a, b := one.status(t), other.status(t); a.InstallID == b.InstallID || a.PID == b.PID || a.DataDir == b.DataDir {
		t.Errorf("the installs are %+v and %+v", a, b)
	}
	wantSame(t, "ls -q of one", one.must(t, "ls", "-q"), mine)
	wantSame(t, "ls -q of the other", other.must(t, "ls", "-q"), theirs)
	refused(t, one.agbox(t, "rm", theirs), 3, theirs)
	one.must(t, "rm", "demo")
	one.must(t, "daemon", "stop")
	other.agbox(t, "exec", "demo", "--", "echo", "untouched").want(t, 0).wantOutput(t, "untouched\n", "")
}
