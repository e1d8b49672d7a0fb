package agents

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agbox/agbox/e2e/internal/harness"
)

// TestTheSandboxOfAnEndedAgentStaysUntilItsWorkIsHome: in time it would go. It stays over a kill
// of the daemon and a stop of the sandbox, and goes once its work has come home. One without work
// goes.
func TestTheSandboxOfAnEndedAgentStaysUntilItsWorkIsHome(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	dir := household(t, harness.ImageBusybox, "workspace: {source: .}\n")
	file := filepath.Join(dir, "agbox.yaml")
	idle := await(t, in, spawn(t, in, "true; agbox-agent done complete", "idle", "-f", file), "COMPLETED")
	busy := await(t, in, spawn(t, in, "echo done >> task; agbox-agent done complete", "busy", "-f", file), "COMPLETED")
	box := busy.GetSandboxId()
	kept := func(why string) {
		t.Helper()
		harness.Eventually(t, "it is said "+why, func() bool {
			a, err := in.Client(t).GetAgent(harness.Bounded(t), busy.GetAgentId())
			return err == nil && strings.HasPrefix(a.GetDegraded(), `Its sandbox is kept, with work that was not brought home: changed files ("task"). `)
		})
		in.Agbox(t, "inspect", box).Want(t, 0)
	}
	kept("at its end")
	if err := in.Client(t).WaitDeleted(harness.Bounded(t), idle.GetSandboxId()); err != nil {
		t.Error(err)
	}
	in.KillDaemon(t)
	in.Must(t, "daemon", "start")
	kept("after a kill of the daemon")
	in.Must(t, "stop", box)
	in.KillDaemon(t)
	in.Must(t, "daemon", "start")
	kept("after a stop")
	refused := in.Agbox(t, "agent", "rm", "busy").Want(t, 4)
	if !strings.Contains(refused.Stderr, "would lose 1 changed file (task)") {
		t.Errorf("the removal of the agent is refused with %q", refused.Stderr)
	}
	kept("after a removal that was refused")
	in.Must(t, "apply", box)
	if err := in.Client(t).WaitDeleted(harness.Bounded(t), box); err != nil {
		t.Error(err)
	}
	if text, err := os.ReadFile(filepath.Join(dir, "task")); err != nil || string(text) != "of the host\ndone\n" {
		t.Errorf("the folder has %q, %v", text, err)
	}
}

// TestTheSandboxOfAnEndedAgentGoesOnceItsWorkIsOnABranch.
func TestTheSandboxOfAnEndedAgentGoesOnceItsWorkIsOnABranch(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	dir := household(t, harness.ImageBusybox, "workspace: {source: .}\n")
	for _, words := range []string{"init -q -b main", "config user.name x", "config user.email x@x.test", "add .", "commit -q -m first"} {
		if out, err := exec.CommandContext(harness.Bounded(t), "git", append([]string{"-C", dir}, strings.Fields(words)...)...).CombinedOutput(); err != nil {
			t.Fatalf("git %s: %v: %s", words, err, out)
		}
	}
	busy := await(t, in, spawn(t, in, "echo done >> task; agbox-agent done complete", "busy", "-f", filepath.Join(dir, "agbox.yaml")), "COMPLETED")
	in.Must(t, "apply", busy.GetSandboxId(), "--branch", "work")
	if err := in.Client(t).WaitDeleted(harness.Bounded(t), busy.GetSandboxId()); err != nil {
		t.Error(err)
	}
}

// TestTheSandboxOfAnEndedAgentStaysUntilAConflictIsResolved: only what is kept about it takes the
// markers out of the folder again.
func TestTheSandboxOfAnEndedAgentStaysUntilAConflictIsResolved(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	dir := household(t, harness.ImageBusybox, "workspace: {source: .}\n")
	busy := await(t, in, spawn(t, in, "cp task /tmp/task; echo inside > task; agbox-agent done complete", "busy", "-f", filepath.Join(dir, "agbox.yaml")), "COMPLETED")
	box := busy.GetSandboxId()
	if err := os.WriteFile(filepath.Join(dir, "task"), []byte("outside\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	in.Agbox(t, "apply", box).Want(t, 1)
	in.Must(t, "exec", box, "--", "cp", "/tmp/task", "/workspace/task")
	in.KillDaemon(t)
	in.Must(t, "daemon", "start")
	harness.Eventually(t, "it is said", func() bool {
		a, err := in.Client(t).GetAgent(harness.Bounded(t), busy.GetAgentId())
		return err == nil && strings.HasPrefix(a.GetDegraded(), "Its sandbox is kept, with work that was not brought home: unresolved conflicts (1). ") &&
			strings.Contains(a.GetDegraded(), "--abort puts the files back") && strings.HasSuffix(a.GetDegraded(), "`agbox rm "+box+"` removes the sandbox.")
	})
	in.Must(t, "apply", box, "--abort")
	if err := in.Client(t).WaitDeleted(harness.Bounded(t), box); err != nil {
		t.Error(err)
	}
	if text, err := os.ReadFile(filepath.Join(dir, "task")); err != nil || string(text) != "outside\n" {
		t.Errorf("the folder has %q, %v", text, err)
	}
}
