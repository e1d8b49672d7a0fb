package faults

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/docker/docker/api/types/container"
	dockerclient "github.com/docker/docker/client"

	"github.com/agbox/agbox/client"
	"github.com/agbox/agbox/e2e/internal/engine"
	"github.com/agbox/agbox/e2e/internal/harness"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/runtime"
	"github.com/agbox/agbox/runtime/docker"
)

// private starts an engine that the test may break, and an install that uses it.
func private(t *testing.T, options ...engine.Option) (*engine.Private, *harness.Install) {
	t.Helper()
	p := engine.New(t, []string{harness.ImageBusybox}, options...)
	look, err := docker.New(docker.Options{Host: p.Host()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = look.Close() })
	in := harness.New(t, harness.On(p.Host(), look), withFlags(t, "--resync", "1s"))
	t.Cleanup(func() { p.Mend(t) }) // the install is removed after this
	return p, in
}

// proxied starts a proxy in front of the machine's engine, and an install that uses it.
func proxied(t *testing.T, flags ...string) (*engine.Proxy, *harness.Install) {
	t.Helper()
	proxy := engine.NewProxy(t, strings.TrimPrefix(harness.DockerAPI.DaemonHost(), "unix://"))
	in := harness.New(t, harness.On(proxy.Host(), harness.Engine), withFlags(t, flags...))
	t.Cleanup(func() { // the install is removed after this
		proxy.Choose(nil)
		proxy.SetVersion("")
		proxy.DropHeld()
	})
	return proxy, in
}

// withFlags makes the daemon of an install run with more flags, whoever starts it.
func withFlags(t *testing.T, flags ...string) func(*harness.Install) {
	t.Helper()
	dir := flagged(t, flags...)
	return func(in *harness.Install) { in.Bin = dir }
}

// flagged makes a folder of binaries whose daemon adds flags.
func flagged(t *testing.T, flags ...string) string {
	t.Helper()
	dir, err := os.MkdirTemp(harness.Binaries, "flags")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Link(filepath.Join(harness.Binaries, "agbox"), filepath.Join(dir, "agbox")); err != nil {
		t.Fatal(err)
	}
	own := filepath.Join(harness.Binaries, "agboxd")
	script := fmt.Sprintf("#!/bin/sh\nif [ \"$1\" = run ]; then shift; exec %s run %s \"$@\"; fi\nexec %s \"$@\"\n",
		own, strings.Join(flags, " "), own)
	if err := harness.WriteProgram(filepath.Join(dir, "agboxd"), []byte(script)); err != nil {
		t.Fatal(err)
	}
	return dir
}

// listed returns the sandbox from a list, which makes no call to the engine.
func listed(t *testing.T, c *client.Client, box string) *agboxv1.SandboxHandle {
	t.Helper()
	all, err := c.ListSandboxes(harness.Bounded(t), client.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, sb := range all {
		if sb.GetSandboxId() == box {
			return sb
		}
	}
	return nil
}

// awaitDegraded waits until the sandbox is shown as degraded and returns why.
func awaitDegraded(t *testing.T, c *client.Client, box string) string {
	t.Helper()
	var reason string
	harness.Eventually(t, "the sandbox is degraded", func() bool {
		sb := listed(t, c, box)
		reason = sb.GetDegradedReason()
		return sb.GetDegraded()
	})
	return reason
}

// awaitWell waits until the sandbox is no longer degraded.
func awaitWell(t *testing.T, c *client.Client, box string) {
	t.Helper()
	harness.Eventually(t, "the sandbox is well again", func() bool {
		sb := listed(t, c, box)
		return sb.GetState() == agboxv1.SandboxState_SANDBOX_STATE_READY && !sb.GetDegraded() && !sb.GetRecovering()
	})
}

// awaitRevived waits until a sandbox whose commands have ended with its container runs again. It is still
// READY between both.
func awaitRevived(t *testing.T, c *client.Client, box string) {
	t.Helper()
	for ev, err := range c.Events(harness.Bounded(t), box, 0) {
		if err != nil {
			t.Fatal(err)
		}
		if ev.GetEventType() == agboxv1.EventType_SANDBOX_REVIVED {
			break
		}
	}
	awaitWell(t, c, box)
}

// awaitState waits for a state and returns the sandbox in it.
func awaitState(t *testing.T, c *client.Client, box string, state agboxv1.SandboxState) *agboxv1.SandboxHandle {
	t.Helper()
	var sb *agboxv1.SandboxHandle
	harness.Eventually(t, "the sandbox is in "+state.String(), func() bool {
		sb = listed(t, c, box)
		return sb.GetState() == state
	})
	return sb
}

// wantRun runs a short command in a sandbox through the daemon.
func wantRun(t *testing.T, in *harness.Install, box string) {
	t.Helper()
	in.Agbox(t, "exec", box, "--", "sh", "-c", "echo well; exit 3").Want(t, 3).WantOutput(t, "well\n", "")
}

// primaryOf finds the primary of a sandbox in the engine of its install.
func primaryOf(t *testing.T, in *harness.Install, box string) runtime.Container {
	t.Helper()
	for _, c := range in.Inventory(t).Containers {
		if c.SandboxID == box && c.Role == runtime.RolePrimary {
			return c
		}
	}
	t.Fatalf("the engine has no primary of sandbox %s", box)
	return runtime.Container{}
}

// inspectIn returns the state of a container's process in an engine.
func inspectIn(t *testing.T, api *dockerclient.Client, id string) *container.State {
	t.Helper()
	seen, err := api.ContainerInspect(harness.Bounded(t), id)
	if err != nil {
		t.Fatal(err)
	}
	return seen.State
}

// killFromOutside kills a container's first process, as the host's kernel would.
func killFromOutside(t *testing.T, pid int) {
	t.Helper()
	if pid <= 1 {
		t.Fatalf("there is no process to kill: %d", pid)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
}

// endless is a job that will be cut short: it writes for a minute.
func endless(id, box string) job {
	return job{id: id, box: box, lines: 60_000, code: 9, every: 10, pause: 10_000_000}
}

// wantCutShort checks a job that lost its container: it has ended without success, and
// its log has complete lines from the first one on.
func wantCutShort(t *testing.T, c *client.Client, j job) *agboxv1.ExecStatus {
	t.Helper()
	var got strings.Builder
	for item, err := range c.FollowLogs(harness.Bounded(t), j.id, client.LogOptions{Follow: true}) {
		if err != nil {
			t.Fatalf("the log of exec %s: %v", j.id, err)
		}
		if item.Stream == agboxv1.LogStream_LOG_STREAM_STDOUT {
			got.Write(item.Data)
		}
	}
	want, _ := j.output()
	if got.Len() == 0 || !strings.HasPrefix(string(want), got.String()) {
		harness.WantSame(t, "the log of "+j.id, got.String(), string(want[:min(len(want), got.Len())]))
		t.Errorf("the log of exec %s has %d bytes that are not its beginning", j.id, got.Len())
	}
	e, err := c.GetExec(harness.Bounded(t), j.id)
	if err != nil {
		t.Fatal(err)
	}
	if e.GetState() == agboxv1.ExecState_EXEC_STATE_RUNNING || e.GetExitCode() == 0 || e.GetFinishedAt() == nil {
		t.Errorf("exec %s is shown as %v, want it ended without success", j.id, e)
	}
	return e
}

// startUnwatched starts a job that need not reach its end.
func startUnwatched(t *testing.T, c *client.Client, j job) {
	t.Helper()
	if _, err := c.CreateExec(harness.Bounded(t), j.request()); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, "the job writes", func() bool {
		for item, err := range c.FollowLogs(harness.Bounded(t), j.id, client.LogOptions{}) {
			if err == nil && len(item.Data) > 0 {
				return true
			}
		}
		return false
	})
}

// removeAfter removes a container of an engine when the test ends, unless the test has
// removed it.
func removeAfter(t *testing.T, api *dockerclient.Client, id string) (now func()) {
	removed := false
	now = func() {
		if removed {
			return
		}
		removed = true
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), harness.Patience)
		defer cancel()
		if err := api.ContainerRemove(ctx, id, container.RemoveOptions{Force: true}); err != nil {
			t.Errorf("a container of the test stays: %v", err)
		}
	}
	t.Cleanup(now)
	return now
}
