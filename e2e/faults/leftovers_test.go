package faults

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agbox/agbox/client"
	"github.com/agbox/agbox/e2e/internal/harness"
	"github.com/agbox/agbox/internal/ids"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// TestLittleStaysOfARemovedSandboxWhateverIsKilled counts the files of removed sandboxes: of a
// command only its output stays, of one without output and of an agent nothing.
func TestLittleStaysOfARemovedSandboxWhateverIsKilled(t *testing.T) {
	t.Parallel()
	const number = 4
	Row(t, 71, "SIGKILL while files of removed sandboxes are removed", number)
	in := harness.New(t, withFlags(t, "--keep-deleted", "2m", "--keep-agents", "1s"))
	w := newWitness(t, in)
	data := filepath.Join(in.Home, "data")
	var boxes, said []string
	for range number {
		box := in.Must(t, "create", "--image", harness.ImageBusybox)
		in.Must(t, "exec", box, "--", "true")
		id := ids.New()
		if _, err := w.c.CreateExec(t.Context(), &agboxv1.CreateExecRequest{SandboxId: box, ExecId: id, Command: []string{"echo", "hello"}}); err != nil {
			t.Fatal(err)
		}
		boxes, said = append(boxes, box), append(said, id)
		in.Must(t, "agent", "spawn", "--in", box, "--", "sh", "-c", `echo "{}" | agbox-agent checkpoint --step 1; agbox-agent done complete`)
	}
	all, err := w.c.ListAgents(harness.Bounded(t), &agboxv1.ListAgentsRequest{All: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range all {
		// One that ended a second ago may be gone.
		if _, err := w.c.WaitAgent(harness.Bounded(t), a.GetAgentId()); err != nil && !errors.Is(err, client.ErrNotFound) {
			t.Fatal(err)
		}
	}
	for _, box := range boxes {
		in.Must(t, "rm", "--wait", "--force", "--keep-logs", box)
		w.holds(box, agboxv1.SandboxState_SANDBOX_STATE_DELETED)
		in.KillDaemon(t)
		in.Must(t, "ls")
	}
	left := func() (files []string) {
		for _, dir := range []string{"exec-logs", "guest", "agents"} {
			err := filepath.WalkDir(filepath.Join(data, dir), func(path string, e os.DirEntry, err error) error {
				if err == nil && !e.IsDir() {
					files = append(files, filepath.Base(path))
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		return files
	}
	harness.EventuallyOr(t, func() bool { return len(left()) <= 3*number }, func() { t.Errorf("%d files stay: %v", len(left()), left()) })
	for _, id := range said {
		if out := in.Must(t, "logs", id); strings.TrimSpace(out) != "hello" {
			t.Errorf("the output of a command of a removed sandbox is %q", out)
		}
	}
	w.check(t)
}
