package agents

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/agbox/agbox/e2e/internal/harness"
)

func TestTheParentOfTheDocumentationSpawnsAChild(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	in.Create(t, "demo", harness.ImageBusybox)
	id := spawn(t, in, "echo 'echo part \"$1\"' >work.sh; chmod +x work.sh; "+snippets(t)["spawn"]+"agbox-agent done complete", "boss", "--in", "demo", "--may-spawn", "worker")
	await(t, in, id, "COMPLETED")
	await(t, in, "part-1", "COMPLETED")
}

func TestTheParentOfTheDocumentationSpawnsAChildInASandboxOfItsOwn(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "work.sh"), []byte("#!/bin/sh\n[ $1 = 2 ] && [ \"$PWD\" = /workspace ]\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	in.Create(t, "demo", harness.ImageBusybox, "--workspace", dir)
	id := spawn(t, in, snippets(t)["spawnown"]+"agbox-agent wait part-2 && agbox-agent done complete", "boss", "--in", "demo", "--may-spawn", "worker")
	await(t, in, id, "COMPLETED")
	await(t, in, "part-2", "COMPLETED")
}
