package agents

import (
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
