package faults

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/network"

	"github.com/agbox/agbox/e2e/internal/harness"
	"github.com/agbox/agbox/internal/ids"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// finished runs a short job to its end. Its log must be kept.
func (w *witness) finished(t *testing.T, box string) {
	t.Helper()
	if err := w.runAndFollow(harness.Bounded(t), job{id: ids.New(), box: box, lines: 100, code: 5}); err != nil {
		t.Fatal(err)
	}
}

// awaitDegraded waits until the sandbox is degraded and its reason contains all words.
func (w *witness) awaitDegraded(t *testing.T, box string, words ...string) string {
	t.Helper()
	var h *agboxv1.SandboxHandle
	harness.Eventually(t, fmt.Sprintf("sandbox %s is degraded and says %q", box, words), func() bool {
		out, err := w.c.GetSandbox(harness.Bounded(t), box)
		if h = out.GetSandbox(); err != nil || !h.GetDegraded() {
			return false
		}
		for _, word := range words {
			if !strings.Contains(h.GetDegradedReason(), word) {
				return false
			}
		}
		return true
	})
	return h.GetDegradedReason()
}

func TestAContainerRemovedBehindOurBackFailsItsSandboxAndKeepsTheLogs(t *testing.T) {
	t.Parallel()
	row := Row(t, 21, "container removed behind our back", 2)
	w := newWitness(t, harness.New(t))
	for _, name := range []string{"idle", "busy"} {
		box := w.box(t)
		w.finished(t, box)
		running := ""
		if name == "busy" {
			running = w.in.Must(t, "exec", "-d", box, "--", "sleep", "1000")
		}
		since := time.Now()
		err := harness.DockerAPI.ContainerRemove(harness.Bounded(t), w.primary(t, box), container.RemoveOptions{Force: true})
		if err != nil {
			t.Fatal(err)
		}
		h := w.awaitState(t, box, agboxv1.SandboxState_SANDBOX_STATE_FAILED)
		row.Note("%s: FAILED with %s after %v", name, h.GetErrorCode(), time.Since(since).Round(time.Millisecond))
		if h.GetErrorMessage() == "" || !strings.HasPrefix(h.GetErrorCode(), "PRIMARY_") {
			t.Errorf("the sandbox failed with %q (%s)", h.GetErrorCode(), h.GetErrorMessage())
		}
		if running != "" {
			if e, err := w.c.GetExec(harness.Bounded(t), running); err != nil || e.GetErrorCode() != "EXEC_LOST" {
				t.Errorf("the command that ran is %v (%v)", e, err)
			}
		}
	}
	w.check(t)
}

func TestAContainerStoppedPausedOrRenamedBehindOurBackIsShownAsItIs(t *testing.T) {
	t.Parallel()
	stopped := Row(t, 22, "container stopped behind our back", 1)
	Row(t, 22, "container paused and unpaused behind our back", 1)
	Row(t, 22, "container renamed behind our back", 1)
	w := newWitness(t, harness.New(t))
	ctx := harness.Bounded(t)
	box := w.box(t)
	w.finished(t, box)
	id := w.primary(t, box)

	if err := harness.DockerAPI.ContainerRename(ctx, id, "renamed-"+ids.New()); err != nil {
		t.Fatal(err)
	}
	w.finished(t, box)

	if err := harness.DockerAPI.ContainerPause(ctx, id); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, "the container is shown as paused", func() bool {
		out, err := w.c.GetSandbox(ctx, box)
		return err == nil && len(out.GetContainers()) == 1 && out.GetContainers()[0].GetState() == "paused"
	})
	if err := harness.DockerAPI.ContainerUnpause(ctx, id); err != nil {
		t.Fatal(err)
	}
	w.finished(t, box)

	if err := harness.DockerAPI.ContainerStop(ctx, id, container.StopOptions{}); err != nil {
		t.Fatal(err)
	}
	h := w.awaitState(t, box, agboxv1.SandboxState_SANDBOX_STATE_FAILED)
	stopped.Note("%s: %s", h.GetErrorCode(), h.GetErrorMessage())
	w.in.Must(t, "start", box)
	w.holds(box, agboxv1.SandboxState_SANDBOX_STATE_READY)
	w.finished(t, box)
	w.check(t)

	// It can be removed, whatever its name.
	w.in.Must(t, "rm", "--wait", "-f", "--keep-logs", box)
	w.holds(box, agboxv1.SandboxState_SANDBOX_STATE_DELETED)
	w.check(t)
}

func TestANetworkThatIsTakenAwayIsNamedWithWhatMendsIt(t *testing.T) {
	t.Parallel()
	row := Row(t, 23, "network detached behind our back", 1)
	gone := Row(t, 23, "network removed behind our back", 1)
	w := newWitness(t, harness.New(t))
	box := w.box(t)
	inv, err := w.in.Engine.SandboxInventory(harness.Bounded(t), w.in.Status(t).InstallID, box)
	if err != nil || len(inv.Networks) != 1 {
		t.Fatalf("the sandbox has %v (%v)", inv, err)
	}
	net := inv.Networks[0]
	if err := harness.DockerAPI.NetworkDisconnect(harness.Bounded(t), net.ID, w.primary(t, box), true); err != nil {
		t.Fatal(err)
	}
	row.Note("%s", w.awaitDegraded(t, box, "network", "docker network connect"))
	w.finished(t, box) // commands need no network
	if err := harness.DockerAPI.NetworkConnect(harness.Bounded(t), net.ID, w.primary(t, box), nil); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, "the sandbox is well again", func() bool {
		out, err := w.c.GetSandbox(harness.Bounded(t), box)
		return err == nil && !out.GetSandbox().GetDegraded()
	})
	w.check(t)

	if err := harness.DockerAPI.NetworkDisconnect(harness.Bounded(t), net.ID, w.primary(t, box), true); err != nil {
		t.Fatal(err)
	}
	if err := harness.DockerAPI.NetworkRemove(harness.Bounded(t), net.ID); err != nil {
		t.Fatal(err)
	}
	gone.Note("%s", w.awaitDegraded(t, box, "network", "agbox"))
	w.finished(t, box)
	w.in.Must(t, "rm", "--wait", "-f", "--keep-logs", box)
	w.holds(box, agboxv1.SandboxState_SANDBOX_STATE_DELETED)
	w.check(t)
}

func TestAForeignContainerOnOurNameStaysAndIsNamed(t *testing.T) {
	t.Parallel()
	Row(t, 35, "a foreign container has our name, as it is or with labels like ours", 2)
	w := newWitness(t, harness.New(t))
	for name, labels := range map[string]map[string]string{
		"plain": nil,
		"spoofed": {
			"agbox.install-id": w.in.Status(t).InstallID, "agbox.sandbox-id": "spoofed",
			"agbox.nonce": "0123456789abcdef", "agbox.role": "primary", "agbox.service": "",
		},
	} {
		foreign := strange(t, "agbox-primary-"+name+ids.New(), labels)
		seen, err := harness.DockerAPI.ContainerInspect(harness.Bounded(t), foreign)
		if err != nil {
			t.Fatal(err)
		}
		box := strings.TrimPrefix(seen.Name, "/agbox-primary-")
		_, err = w.c.CreateSandbox(harness.Bounded(t), &agboxv1.CreateSandboxRequest{SandboxId: box, CreateSpec: &agboxv1.CreateSpec{Image: harness.ImageBusybox}})
		if err != nil {
			t.Fatal(err)
		}
		h := w.awaitState(t, box, agboxv1.SandboxState_SANDBOX_STATE_FAILED)
		if h.GetErrorCode() != "NAME_TAKEN_IN_ENGINE" || !strings.Contains(h.GetErrorMessage(), "docker rm") {
			t.Errorf("the sandbox failed with %s: %s", h.GetErrorCode(), h.GetErrorMessage())
		}
		w.in.Must(t, "rm", "--wait", "-f", "--keep-logs", box)
		w.holds(box, agboxv1.SandboxState_SANDBOX_STATE_DELETED)
		if now := pidOf(t, foreign); now != seen.State.Pid || now == 0 {
			t.Errorf("the foreign container had pid %d and has %d", seen.State.Pid, now)
		}
	}
}

func TestCopiedLabelsMakeAContainerNobodysSandbox(t *testing.T) {
	t.Parallel()
	Row(t, 37, "a container with our install and sandbox labels and another nonce", 1)
	w := newWitness(t, harness.New(t))
	box := w.box(t)
	spoof := strange(t, "spoof-"+ids.New(), map[string]string{
		"agbox.install-id": w.in.Status(t).InstallID, "agbox.sandbox-id": box,
		"agbox.nonce": "0123456789abcdef", "agbox.role": "primary", "agbox.service": "",
	})
	pid := pidOf(t, spoof)
	w.finished(t, box)
	w.kill(t)
	w.in.Must(t, "daemon", "start")
	w.finished(t, box)
	out, err := w.c.GetSandbox(harness.Bounded(t), box)
	if err != nil || len(out.GetContainers()) != 1 || out.GetContainers()[0].GetContainerId() == spoof {
		t.Errorf("the sandbox shows %v (%v), want its own container alone", out.GetContainers(), err)
	}
	w.in.Must(t, "stop", box)
	w.in.Must(t, "rm", "--wait", "-f", "--keep-logs", box)
	if now := pidOf(t, spoof); now != pid || now == 0 {
		t.Errorf("the container with copied labels had pid %d and has %d", pid, now)
	}
}

func TestOrphansOfOursAreReportedAndRemovedAfterTheGracePeriod(t *testing.T) {
	t.Parallel()
	Row(t, 36, "containers and a network of ours that belong to no sandbox", 3)
	w := newWitness(t, harness.New(t))
	box := w.box(t)
	w.finished(t, box)
	w.in.Must(t, "daemon", "stop")
	labels := func(sandbox string) map[string]string {
		return map[string]string{
			"agbox.install-id": w.installID(t), "agbox.sandbox-id": sandbox, "agbox.nonce": "0123456789abcdef",
			"agbox.role": "primary", "agbox.service": "",
		}
	}
	names := []string{"orphan-" + ids.New(), "orphan-" + ids.New()}
	for _, name := range names {
		strange(t, name, labels(ids.New()))
	}
	made, err := harness.DockerAPI.NetworkCreate(harness.Bounded(t), "orphan-"+ids.New(), network.CreateOptions{Labels: labels(ids.New()), Internal: true})
	if err != nil {
		t.Fatal(err)
	}
	const grace = 3 * time.Second
	began := time.Now()
	daemon := w.in.StartBinary(t, "agboxd", "run", "--orphan-grace", grace.String(), "--resync", "200ms")
	harness.Eventually(t, "all orphans are gone", func() bool {
		_, err := harness.DockerAPI.NetworkInspect(harness.Bounded(t), made.ID, network.InspectOptions{})
		return !exists(t, names[0]) && !exists(t, names[1]) && errdefs.IsNotFound(err)
	})
	if took := time.Since(began); took < grace {
		t.Errorf("the orphans were removed after %v, before the %v that they had", took, grace)
	}
	for _, name := range names {
		if !strings.Contains(daemon.Stderr.String(), name) {
			t.Errorf("the daemon does not report %s:\n%s", name, daemon.Stderr)
		}
	}
	w.finished(t, box)
	w.check(t)
}

// installID returns the id of the install, even without a daemon.
func (w *witness) installID(t *testing.T) string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(w.in.Home, "data", "install-id"))
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(raw))
}
