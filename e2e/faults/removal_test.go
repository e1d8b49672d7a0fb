package faults

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agbox/agbox/e2e/internal/engine"
	"github.com/agbox/agbox/e2e/internal/harness"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/runtime"
)

// TestRmReturnsBeforeTheEngineHasRemovedAnything: nothing runs any more, and the name is free. The
// rest goes when the engine answers, also with another daemon.
func TestRmReturnsBeforeTheEngineHasRemovedAnything(t *testing.T) {
	t.Parallel()
	Row(t, 15, "engine refuses to remove what agbox rm has ended: hidden, its name free, removed later", 2)
	proxy, in := proxied(t, "--resync", "1s")
	w := newWitness(t, in)
	spec := filepath.Join(t.TempDir(), "agbox.yaml")
	text := "image: " + harness.ImageBusybox + "\nservices:\n  - {name: side, image: " + harness.ImageBusybox + ", command: [sleep, \"100000\"]}\n"
	if err := os.WriteFile(spec, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	first := in.Must(t, "create", "demo", "-f", spec)
	in.Must(t, "exec", "-d", "demo", "--", "sleep", "100000")
	refused := func(r *http.Request) engine.Fault {
		if engine.Matches(r, "DELETE", "/containers/*") {
			return engine.Refuse
		}
		return engine.Pass
	}
	proxy.Choose(refused)
	if r := in.Agbox(t, "rm", "-f", "demo").Want(t, 0); r.Stdout != first+"\n" {
		t.Errorf("rm prints %q", r.Stdout)
	}
	for _, c := range in.Inventory(t).Containers {
		if c.State == runtime.StateRunning {
			t.Errorf("after rm, %s runs", c.Name)
		}
	}
	gone := func(all string) {
		t.Helper()
		harness.WantSame(t, "agbox ls -q", in.Must(t, "ls", "-q"), all)
		harness.WantSame(t, "agbox ls -qa", in.Must(t, "ls", "-qa"), strings.TrimSpace(all+"\n"+first))
		if r := in.Agbox(t, "exec", first, "--", "true"); r.Code == 0 {
			t.Error("an exec ran in what is removed")
		}
	}
	gone("")
	in.KillDaemon(t)
	gone("")
	second := in.Must(t, "create", "demo", "--image", harness.ImageBusybox)
	gone(second)
	harness.WantSame(t, "the name is of", in.SandboxID(t, "demo"), second)
	in.Agbox(t, "rename", first, "other").Want(t, 4)
	in.Must(t, "rm", "-f", first) // a second time

	proxy.Choose(nil)
	if err := w.c.WaitDeleted(harness.Bounded(t), first); err != nil {
		t.Fatal(err)
	}
	harness.WantSame(t, "agbox ls -qa", in.Must(t, "ls", "-qa"), second)
	harness.WantSame(t, "the name is of", in.SandboxID(t, "demo"), second)
	if inv := in.Inventory(t); len(inv.Containers) != 1 || len(inv.Networks) != 1 {
		t.Errorf("the engine has %d containers and %d networks, want one of each", len(inv.Containers), len(inv.Networks))
	}
	wantRun(t, in, "demo")

	proxy.Choose(refused)
	waits := in.Start(t, "rm", "-f", "--wait", "demo")
	if err := w.c.WaitEnded(harness.Bounded(t), second); err != nil {
		t.Fatal(err)
	}
	if h, err := w.c.GetSandbox(harness.Bounded(t), second); err != nil || h.GetSandbox().GetState() != agboxv1.SandboxState_SANDBOX_STATE_DELETING {
		t.Errorf("while the engine refuses, it is %v (%v)", h.GetSandbox(), err)
	}
	proxy.Choose(nil)
	waits.Wait(t).Want(t, 0)
	harness.WantSame(t, "agbox ls -qa", in.Must(t, "ls", "-qa"), "")
}

// TestAStopSaysWhatIsNotRemovedYet: it waits for removals, but not for an engine that hangs in one.
func TestAStopSaysWhatIsNotRemovedYet(t *testing.T) {
	t.Parallel()
	proxy, in := proxied(t)
	box := in.Create(t, "slow", harness.ImageBusybox)
	proxy.Choose(func(r *http.Request) engine.Fault {
		if r.Method == http.MethodDelete && strings.Contains(r.URL.Path, "/containers/") {
			return engine.Hang
		}
		return engine.Pass
	})
	in.Must(t, "rm", "-f", "slow")
	if r := in.Agbox(t, "image", "rm", "nosuch").Want(t, 3); !strings.Contains(r.Stderr, "Not removed yet: "+box) {
		t.Errorf("a removal of images with a removal of a sandbox under way says %q", r.Stderr)
	}
	if r := in.Agbox(t, "daemon", "stop").Want(t, 0); !strings.Contains(r.Stderr, "Not removed yet: "+box) {
		t.Errorf("a stop with a removal under way says %q", r.Stderr)
	}
	proxy.Choose(nil)
	in.Must(t, "daemon", "start")
	if err := in.Client(t).WaitDeleted(harness.Bounded(t), box); err != nil {
		t.Errorf("the next daemon does not go on with it: %v", err)
	}
}
