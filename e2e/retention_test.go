package e2e

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/agbox/agbox/client"
	"github.com/agbox/agbox/e2e/internal/harness"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/runtime"
)

// runDaemon runs agboxd in the foreground with further flags until the clean-up of the
// install. It returns once the daemon answers.
func (in *install) runDaemon(t *testing.T, flags ...string) {
	t.Helper()
	p := in.StartBinary(t, "agboxd", append([]string{"run"}, flags...)...)
	harness.Eventually(t, "the daemon answers", func() bool {
		select {
		case <-p.Ended():
			t.Fatalf("agboxd ended: %s", harness.Clip(p.Stderr.String()))
		default:
		}
		return in.Agbox(t, "daemon", "status").Code == 0
	})
}

// keptEvents counts the kept events of a sandbox by type.
func keptEvents(t *testing.T, c *client.Client, box string) map[agboxv1.EventType]int {
	t.Helper()
	types := make(map[agboxv1.EventType]int)
	for ev, err := range c.PastEvents(harness.Bounded(t), box, 0) {
		if err != nil {
			t.Fatal(err)
		}
		types[ev.GetEventType()]++
	}
	return types
}

func TestFinishedCommandsAreForgottenAndRunningOnesAreNot(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	in.runDaemon(t, "--keep-execs", "1s")
	box := in.Create(t, "demo", harness.ImageBusybox)
	runs := in.Must(t, "exec", "-d", "demo", "--", "sleep", "600")
	c := in.Client(t)
	var execs []string
	for range 3 {
		execs = append(execs, in.Must(t, "exec", "-d", "demo", "--", "echo", "hello"))
	}
	logs := filepath.Join(in.Home, "data", "exec-logs", box)
	harness.Eventually(t, "the records are gone", func() bool {
		var ids []string
		for exec, err := range c.ListExecs(harness.Bounded(t), box) {
			if err != nil {
				t.Fatal(err)
			}
			ids = append(ids, exec.GetExecId())
		}
		return slices.Equal(ids, []string{runs})
	})
	for _, id := range execs {
		_, err := c.GetExec(harness.Bounded(t), id)
		if !errors.Is(err, client.ErrNotFound) {
			t.Errorf("exec %s: %v, want not found", id, err)
		}
		if left, _ := filepath.Glob(filepath.Join(logs, id+".*")); len(left) > 0 {
			t.Errorf("files of exec %s are left: %v", id, left)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(logs, runs+".*")); len(left) == 0 {
		t.Error("the files of the running exec are gone")
	}
	// One pair is kept as the last use, besides the start of the running exec.
	kept := keptEvents(t, c, box)
	if kept[agboxv1.EventType_EXEC_STARTED] != 2 || kept[agboxv1.EventType_EXEC_FINISHED] != 1 || kept[agboxv1.EventType_SANDBOX_ACCEPTED] != 1 {
		t.Errorf("kept are %v", kept)
	}
	// Continuing from before the hole is an error, also after a restart of the daemon.
	in.KillDaemon(t)
	in.Must(t, "daemon", "start")
	api := agboxv1.NewSandboxServiceClient(in.connect(t))
	stream, err := api.SubscribeSandboxEvents(harness.Bounded(t), &agboxv1.SubscribeSandboxEventsRequest{SandboxId: box, FromSequence: 1})
	if err == nil {
		_, err = stream.Recv()
	}
	if status.Code(err) != codes.OutOfRange {
		t.Errorf("from sequence 1: %v, want OUT_OF_RANGE", err)
	}
	in.Agbox(t, "exec", "demo", "--", "echo", "still here").Want(t, 0).WantOutput(t, "still here\n", "")
}

func TestADeletedSandboxIsListedUntilItIsForgotten(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	in.runDaemon(t, "--keep-deleted", "3s")
	box := in.Create(t, "demo", harness.ImageBusybox)
	in.Agbox(t, "exec", "demo", "--", "echo", "hello").Want(t, 0)
	begun := time.Now()
	in.Must(t, "rm", "--wait", "-f", "demo")
	if listed := in.Must(t, "ls", "--deleted"); !strings.Contains(listed, box) && time.Since(begun) < 3*time.Second {
		t.Errorf("ls --deleted says %s", listed)
	}
	harness.Eventually(t, "the sandbox is forgotten", func() bool { return !strings.Contains(in.Must(t, "ls", "--deleted"), box) })
	harness.Eventually(t, "its logs are gone", func() bool {
		_, err := os.Stat(filepath.Join(in.Home, "data", "exec-logs", box))
		return errors.Is(err, os.ErrNotExist)
	})
	in.Agbox(t, "inspect", box).Want(t, 3)
	// A replay of all events ends although the newest of them was removed.
	in.Agbox(t, "events").Want(t, 0)
	refused(t, in.Agbox(t, "create", "--id", box, "--image", harness.ImageBusybox), 4, box)
}

func TestRmRemovesTheOutputOfCommandsAtOnceUnlessItIsToStay(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	in.Create(t, "gone", harness.ImageBusybox)
	ended := in.Must(t, "exec", "-d", "gone", "--", "echo", "token-1234")
	in.Agbox(t, "wait", ended).Want(t, 0)
	runs := in.Must(t, "exec", "-d", "gone", "--", "sh", "-c", "echo token-5678; exec sleep 600")
	follower := in.Start(t, "logs", "-f", runs)
	follower.AwaitOutput(t, "token-5678")
	in.Must(t, "rm", "--wait", "-f", "gone")
	if r := follower.Wait(t); r.Code != 0 || strings.Contains(r.Stderr, "cannot be read") {
		t.Errorf("the follower of a command that the removal ended exits with %d: %s", r.Code, r.Stderr)
	}
	err := filepath.WalkDir(filepath.Join(in.Home, "data", "exec-logs"), func(path string, e os.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, ".log") {
			t.Errorf("%s is left", path)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	for _, job := range []string{ended, runs} {
		if r := in.Agbox(t, "logs", job).Want(t, 3); r.Stdout != "" || !strings.Contains(r.Stderr, "was removed with the sandbox") {
			t.Errorf("the log of a removed command is %q, %s", r.Stdout, r.Stderr)
		}
	}

	// Other clients, and --keep-logs, leave it to the retention.
	for name, remove := range map[string]func(){
		"kept":   func() { in.Must(t, "rm", "--wait", "-f", "--keep-logs", "kept") },
		"theirs": func() { in.removeByCall(t, "theirs") },
	} {
		in.Create(t, name, harness.ImageBusybox)
		job := in.Must(t, "exec", "-d", name, "--", "echo", "hello")
		in.Agbox(t, "wait", job).Want(t, 0)
		remove()
		if said := in.Must(t, "logs", job); said != "hello" {
			t.Errorf("%s: the log is %q", name, said)
		}
	}
}

func (in *install) removeByCall(t *testing.T, name string) {
	t.Helper()
	c, id := in.Client(t), in.SandboxID(t, name)
	if err := errors.Join(c.DeleteSandbox(harness.Bounded(t), id), c.WaitDeleted(harness.Bounded(t), id)); err != nil {
		t.Fatal(err)
	}
}

func TestOrphansOfOursAreRemovedAndOthersAreNot(t *testing.T) {
	t.Parallel()
	in, other := newInstall(t), newInstall(t)
	box := in.Create(t, "demo", harness.ImageBusybox)
	theirs := other.Create(t, "demo", harness.ImageBusybox)
	mine := in.primary(t, box)

	image, err := harness.Engine.EnsureImage(harness.Bounded(t), runtime.ImageRequest{Ref: harness.ImageBusybox}, nil)
	if err != nil {
		t.Fatal(err)
	}
	spoof := mine.Identity
	spoof.Nonce = "spoofed"
	for name, id := range map[string]runtime.Identity{
		"spoof": spoof, "unknown": {InstallID: mine.InstallID, SandboxID: "unknown", Nonce: "n", Role: runtime.RolePrimary},
	} {
		network, err := harness.Engine.EnsureNetwork(harness.Bounded(t), runtime.NetworkSpec{Identity: id, Name: box + "-" + name})
		if err != nil {
			t.Fatal(err)
		}
		made, err := harness.Engine.EnsureContainer(harness.Bounded(t), runtime.ContainerSpec{
			Identity: id, Name: box + "-" + name, ImageID: image.ID, Entrypoint: []string{"sleep", "600"}, NetworkID: network.ID,
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := harness.Engine.StartContainer(harness.Bounded(t), made); err != nil {
			t.Fatal(err)
		}
	}
	// Not earlier: an orphan that is still being made may lose its network.
	in.Must(t, "daemon", "stop")
	in.runDaemon(t, "--orphan-grace", "1s", "--resync", "200ms")
	harness.Eventually(t, "the orphans are gone", func() bool {
		inv := in.Inventory(t)
		return len(inv.Containers) == 1 && len(inv.Networks) == 1
	})
	if is := in.primary(t, box); is.ID != mine.ID || is.Pid != mine.Pid {
		t.Errorf("the sandbox's own container became %s (%d)", is.ID, is.Pid)
	}
	other.primary(t, theirs)
}

func TestRetentionFlagsThatMakeNoSenseAreRefused(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	for _, flags := range [][]string{
		{"--keep-deleted", "0"}, {"--keep-execs", "-1h"}, {"--orphan-grace", "1ms"}, {"--max-execs", "0"}, {"--max-events", "-1"},
	} {
		refusedBy(t, in.StartBinary(t, "agboxd", append([]string{"run"}, flags...)...).Wait(t), "agboxd: ", 2, flags[0])
	}
}
