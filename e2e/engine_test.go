package e2e

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"

	"github.com/agbox/agbox/client"
	"github.com/agbox/agbox/e2e/internal/harness"
	"github.com/agbox/agbox/internal/paths"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/runtime"
)

// primary is the engine's information about a primary container.
type primary struct {
	runtime.Container
	// Pid of the supervisor on the host.
	Pid int
	// supervisor is the path of its binary.
	supervisor string
	inspected  container.InspectResponse
}

// primary returns the one primary of a sandbox from the engine.
func (in *install) primary(t *testing.T, box string) primary {
	t.Helper()
	var p primary
	for _, c := range in.Inventory(t).Containers {
		if c.SandboxID == box && c.Role == runtime.RolePrimary {
			p.Container = c
		}
	}
	if p.ID == "" {
		t.Fatalf("the engine has no primary of sandbox %s", box)
	}
	var err error
	if p.Container, err = harness.Engine.InspectContainer(harness.Bounded(t), p.ID); err != nil {
		t.Fatal(err)
	}
	if p.inspected, err = harness.DockerAPI.ContainerInspect(harness.Bounded(t), p.ID); err != nil {
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
	ctx := harness.Bounded(t)
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
	box := in.Create(t, "demo", harness.ImageBusybox)
	attached := in.Start(t, "exec", "demo", "--", "sh", "-c", "echo running; exec sleep 1000")
	attached.AwaitOutput(t, "running\n")
	job := in.execs(t)[0].GetExecId()
	if err := harness.DockerAPI.ContainerKill(harness.Bounded(t), in.primary(t, box).ID, "KILL"); err != nil {
		t.Fatal(err)
	}

	failed := awaitState(t, in.Client(t), box, agboxv1.SandboxState_SANDBOX_STATE_FAILED)
	if failed.GetErrorCode() != agboxv1.ErrorReason_PRIMARY_EXITED.String() || failed.GetErrorMessage() == "" {
		t.Errorf("the sandbox failed with %q (%s), want PRIMARY_EXITED", failed.GetErrorCode(), failed.GetErrorMessage())
	}
	wantLost(t, in, attached, job)
	refused(t, in.Agbox(t, "exec", "demo", "--", "true"), 125, "start")

	in.Must(t, "start", "demo")
	in.Agbox(t, "exec", "demo", "--", "echo", "again").Want(t, 0).WantOutput(t, "again\n", "")
	in.Agbox(t, "logs", job).Want(t, 0).WantOutput(t, "running\n", "")
}

// TestADockerRestartIsNoStopOfTheSandbox: its command says who ended it, and the sandbox goes on.
func TestADockerRestartIsNoStopOfTheSandbox(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	box := in.Create(t, "demo", harness.ImageBusybox)
	attached := in.Start(t, "exec", "demo", "--", "sh", "-c", "echo running; exec sleep 1000")
	attached.AwaitOutput(t, "running\n")
	if err := harness.DockerAPI.ContainerRestart(harness.Bounded(t), in.primary(t, box).ID, container.StopOptions{}); err != nil {
		t.Fatal(err)
	}
	ended := attached.Wait(t).Want(t, 143)
	if !strings.Contains(ended.Stderr, "The container of the sandbox was stopped or restarted") {
		t.Errorf("the command says %q", ended.Stderr)
	}
	harness.Eventually(t, "commands run again", func() bool { return in.Agbox(t, "exec", "demo", "--", "true").Code == 0 })
}

// wantLost checks an exec whose container was lost: it has ended, its output is kept, and
// its exit code is reported as unknown.
func wantLost(t *testing.T, in *install, attached *harness.Process, job string) {
	t.Helper()
	ended := attached.Wait(t).Want(t, 125)
	if ended.Stdout != "running\n" || !strings.HasPrefix(ended.Stderr, "agbox: ") {
		t.Errorf("exec ended with stdout %q and stderr %q", ended.Stdout, ended.Stderr)
	}
	status := in.inspectExec(t, job)
	if status.GetState() != agboxv1.ExecState_EXEC_STATE_FAILED || status.GetErrorCode() != agboxv1.ErrorReason_EXEC_LOST.String() ||
		status.GetExitCode() == 0 || status.GetFinishedAt() == nil {
		t.Errorf("inspect shows %v, want it lost", status)
	}
	in.Agbox(t, "logs", "-f", job).Want(t, 0).WantOutput(t, "running\n", "")
	if running := in.execs(t); len(running) != 0 {
		t.Errorf("ps shows %v, want nothing", running)
	}
}

func TestAPrimaryThatIsRemovedBehindOurBackIsShown(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	box := in.Create(t, "demo", harness.ImageBusybox)
	attached := in.Start(t, "exec", "demo", "--", "sh", "-c", "echo running; exec sleep 1000")
	attached.AwaitOutput(t, "running\n")
	job := in.execs(t)[0].GetExecId()
	if err := harness.DockerAPI.ContainerRemove(harness.Bounded(t), in.primary(t, box).ID, container.RemoveOptions{Force: true}); err != nil {
		t.Fatal(err)
	}

	failed := awaitState(t, in.Client(t), box, agboxv1.SandboxState_SANDBOX_STATE_FAILED)
	// Between its end and its removal, the container can be seen as dead for a moment.
	if code := failed.GetErrorCode(); code != agboxv1.ErrorReason_PRIMARY_MISSING.String() && code != agboxv1.ErrorReason_PRIMARY_EXITED.String() {
		t.Errorf("the sandbox failed with %q (%s), want PRIMARY_MISSING", code, failed.GetErrorMessage())
	}
	wantLost(t, in, attached, job)
	refused(t, in.Agbox(t, "start", "demo"), 1, "removed outside agbox")
	harness.WantSame(t, "rm", in.Must(t, "rm", "demo"), box)
}

func TestAPrimaryThatIsRemovedWhileTheDaemonIsAwayIsMissing(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	box := in.Create(t, "demo", harness.ImageBusybox)
	id := in.primary(t, box).ID
	in.Must(t, "daemon", "stop")
	if err := harness.DockerAPI.ContainerRemove(harness.Bounded(t), id, container.RemoveOptions{Force: true}); err != nil {
		t.Fatal(err)
	}
	in.Must(t, "daemon", "start")
	failed := awaitState(t, in.Client(t), box, agboxv1.SandboxState_SANDBOX_STATE_FAILED)
	if failed.GetErrorCode() != agboxv1.ErrorReason_PRIMARY_MISSING.String() {
		t.Errorf("the sandbox failed with %q (%s), want PRIMARY_MISSING", failed.GetErrorCode(), failed.GetErrorMessage())
	}
}

func TestAnIdleSandboxStopsByItselfButNotUnderACommand(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	box := in.Create(t, "demo", harness.ImageBusybox, "--idle-ttl", "1s")
	c := in.Client(t)
	awaitState(t, c, box, agboxv1.SandboxState_SANDBOX_STATE_STOPPED)

	// Longer than idle_ttl. On a busy machine the sandbox may stop again before the
	// command arrives.
	long := &agboxv1.CreateExecRequest{SandboxId: box, Command: []string{"sh", "-c", "sleep 2.5; echo still here"}}
	exec, err := startAndRun(t, c, long)
	for errors.Is(err, client.ErrWrongState) {
		exec, err = startAndRun(t, c, long)
	}
	if err != nil {
		t.Fatal(err)
	}
	in.Agbox(t, "logs", "-f", exec).Want(t, 0).WantOutput(t, "still here\n", "")
	var ended, stopped time.Time
	for event, err := range c.Events(harness.Bounded(t), box, 0) {
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

// startAndRun starts a sandbox and a command in it.
func startAndRun(t *testing.T, c *client.Client, command *agboxv1.CreateExecRequest) (exec string, err error) {
	t.Helper()
	ctx := harness.Bounded(t)
	err = c.ResumeSandbox(ctx, command.GetSandboxId())
	if err == nil {
		_, err = c.WaitReady(ctx, command.GetSandboxId())
	}
	if err != nil {
		return "", err
	}
	out, err := c.CreateExec(ctx, command)
	return out.GetExecId(), err
}

func TestTwoInstallsDoNotSeeEachOther(t *testing.T) {
	t.Parallel()
	one, other := newInstall(t), newInstall(t)
	mine := one.Create(t, "demo", harness.ImageBusybox)
	theirs := other.Create(t, "demo", harness.ImageBusybox)
	if a, b := one.Status(t), other.Status(t); a.InstallID == b.InstallID || a.PID == b.PID || a.DataDir == b.DataDir {
		t.Errorf("the installs are %+v and %+v", a, b)
	}
	harness.WantSame(t, "ls -q of one", one.Must(t, "ls", "-q"), mine)
	harness.WantSame(t, "ls -q of the other", other.Must(t, "ls", "-q"), theirs)
	refused(t, one.Agbox(t, "rm", theirs), 3, theirs)
	one.Must(t, "rm", "demo")
	one.Must(t, "daemon", "stop")
	other.Agbox(t, "exec", "demo", "--", "echo", "untouched").Want(t, 0).WantOutput(t, "untouched\n", "")
}

func TestAStopSaysOfWhatIsJustBeingStartedThatItEndedIt(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	box := in.Create(t, "demo", harness.ImageBusybox)
	c := in.Client(t)
	const execs = 40
	accepted := make(chan string, execs)
	var starts sync.WaitGroup
	for range execs {
		starts.Go(func() {
			// Those that arrive after the stop are refused.
			if out, err := c.CreateExec(harness.Bounded(t), &agboxv1.CreateExecRequest{SandboxId: box, Command: []string{"sleep", "1000"}}); err == nil {
				accepted <- out.GetExecId()
			}
		})
	}
	jobs := []string{<-accepted}
	if err := c.StopSandbox(harness.Bounded(t), box); err != nil {
		t.Fatal(err)
	}
	if _, err := c.WaitStopped(harness.Bounded(t), box); err != nil {
		t.Fatal(err)
	}
	starts.Wait()
	close(accepted)
	for job := range accepted {
		jobs = append(jobs, job)
	}
	for _, job := range jobs {
		e := in.inspectExec(t, job)
		if e.GetState() != agboxv1.ExecState_EXEC_STATE_CANCELLED || e.GetErrorCode() != "SANDBOX_STOPPED_UNDER_EXEC" || e.GetExitCode() == 0 {
			t.Errorf("the exec is %v, want it ended by the stop", e)
		}
	}
}
