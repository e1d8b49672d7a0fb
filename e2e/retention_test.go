package e2e

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/agbox/agbox/client"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/runtime"
)

// runDaemon runs agboxd in the foreground with flags of its own, until the
// install is tidied up, and returns once it answers.
func (in *install) runDaemon(t *testing.T, flags ...string) {
	t.Helper()
	p := in.startBinary(t, "agboxd", append([]string{"run"}, flags...)...)
	eventually(t, "the daemon answers", func() bool {
		select {
		case <-p.ended:
			t.Fatalf("agboxd ended: %s", clip(p.stderr.String()))
		default:
		}
		return in.agbox(t, "daemon", "status").code == 0
	})
}

// keptEvents are the types of all events of a sandbox that are kept.
func keptEvents(t *testing.T, c *client.Client, box string) map[agboxv1.EventType]int {
	t.Helper()
	types := make(map[agboxv1.EventType]int)
	for ev, err := range c.PastEvents(bounded(t), box, 0) {
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
	box := in.create(t, "demo", imageBusybox)
	runs := in.must(t, "exec", "-d", "demo", "--", "sleep", "600")
	c := in.client(t)
	var execs []string
	for range 3 {
		execs = append(execs, in.must(t, "exec", "-d", "demo", "--", "echo", "hello"))
	}
	logs := filepath.Join(in.home, "data", "exec-logs", box)
	eventually(t, "the records are gone", func() bool {
		var ids []string
		for exec, err := range c.ListExecs(bounded(t), box) {
			if err != nil {
				t.Fatal(err)
			}
			ids = append(ids, exec.GetExecId())
		}
		return slices.Equal(ids, []string{runs})
	})
	for _, id := range execs {
		_, err := c.GetExec(bounded(t), id)
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
	// One pair is kept for the last use, beside the start of the running exec.
	kept := keptEvents(t, c, box)
	if kept[agboxv1.EventType_EXEC_STARTED] != 2 || kept[agboxv1.EventType_EXEC_FINISHED] != 1 || kept[agboxv1.EventType_SANDBOX_ACCEPTED] != 1 {
		t.Errorf("kept are %v", kept)
	}
	// Going on from before the hole says so, and so does a daemon that starts anew.
	in.killDaemon(t)
	in.must(t, "daemon", "start")
	api := agboxv1.NewSandboxServiceClient(in.connect(t))
	stream, err := api.SubscribeSandboxEvents(bounded(t), &agboxv1.SubscribeSandboxEventsRequest{SandboxId: box, FromSequence: 1})
	if err == nil {
		_, err = stream.Recv()
	}
	if status.Code(err) != codes.OutOfRange {
		t.Errorf("from sequence 1: %v, want OUT_OF_RANGE", err)
	}
	in.agbox(t, "exec", "demo", "--", "echo", "still here").want(t, 0).wantOutput(t, "still here\n", "")
}

func TestADeletedSandboxIsListedUntilItIsForgotten(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	in.runDaemon(t, "--keep-deleted", "3s")
	box := in.create(t, "demo", imageBusybox)
	in.agbox(t, "exec", "demo", "--", "echo", "hello").want(t, 0)
	in.must(t, "rm", "-f", "demo")
	if listed := in.must(t, "ls", "-a"); !strings.Contains(listed, box) {
		t.Errorf("ls -a says %s", listed)
	}
	eventually(t, "the sandbox is forgotten", func() bool { return !strings.Contains(in.must(t, "ls", "-a"), box) })
	eventually(t, "its logs are gone", func() bool {
		_, err := os.Stat(filepath.Join(in.home, "data", "exec-logs", box))
		return errors.Is(err, os.ErrNotExist)
	})
	in.agbox(t, "inspect", box).want(t, 3)
	// All events end although the newest of them was removed.
	in.agbox(t, "events").want(t, 0)
	refused(t, in.agbox(t, "create", "--id", box, "--image", imageBusybox), 4, box)
}

func TestOrphansOfOursAreRemovedAndOthersAreNot(t *testing.T) {
	t.Parallel()
	in, other := newInstall(t), newInstall(t)
	in.runDaemon(t, "--orphan-grace", "1s", "--resync", "200ms")
	box := in.create(t, "demo", imageBusybox)
	theirs := other.create(t, "demo", imageBusybox)
	mine := in.primary(t, box)

	image, err := engine.EnsureImage(bounded(t), imageBusybox, nil)
	if err != nil {
		t.Fatal(err)
	}
	spoof := mine.Identity
	spoof.Nonce = "spoofed"
	for name, id := range map[string]runtime.Identity{
		"spoof": spoof, "unknown": {InstallID: mine.InstallID, SandboxID: "unknown", Nonce: "n", Role: runtime.RolePrimary},
	} {
		network, err := engine.EnsureNetwork(bounded(t), runtime.NetworkSpec{Identity: id, Name: box + "-" + name})
		if err != nil {
			t.Fatal(err)
		}
		made, err := engine.EnsureContainer(bounded(t), runtime.ContainerSpec{
			Identity: id, Name: box + "-" + name, ImageID: image.ID, Entrypoint: []string{"sleep", "600"}, NetworkID: network.ID,
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := engine.StartContainer(bounded(t), made); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "the orphans are gone", func() bool {
		inv := in.inventory(t)
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
		refusedBy(t, in.startBinary(t, "agboxd", append([]string{"run"}, flags...)...).wait(t), "agboxd: ", 2, flags[0])
	}
}
