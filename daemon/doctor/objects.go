package doctor

import (
	"context"
	"fmt"
	"os"

	"github.com/containerd/errdefs"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/internal/ids"
	"github.com/agbox/agbox/logs"
	"github.com/agbox/agbox/runtime"
)

// errTampered is the class of errors about files that a container has replaced.
var errTampered = errdefs.ErrFailedPrecondition

// orphans judges the engine's objects that belong to no living sandbox.
func (x *examination) orphans(ctx context.Context) {
	for _, c := range x.inv.Containers {
		f := x.orphan(ctx, c.Identity, &agboxv1.DoctorFinding{Kind: container, Name: c.Name, Id: c.ID})
		if f.GetAction() == remove {
			x.do(f, func() error { return x.loop.RemoveOrphanedContainer(ctx, c) })
		}
	}
	for _, n := range x.inv.Networks {
		f := x.orphan(ctx, n.Identity, &agboxv1.DoctorFinding{Kind: network, Name: n.Name, Id: n.ID})
		if f.GetAction() == remove {
			x.do(f, func() error { return x.loop.RemoveOrphanedNetwork(ctx, n) })
		}
	}
	for _, v := range x.inv.Volumes {
		f := x.orphan(ctx, v.Identity, &agboxv1.DoctorFinding{Kind: volume, Name: v.Name, Id: v.Name})
		if f.GetAction() == remove {
			x.do(f, func() error { return x.loop.RemoveOrphanedVolume(ctx, v) })
		}
	}
}

// orphan completes the finding about an object. It returns nil if the object belongs to a
// living sandbox, which has its own finding.
func (x *examination) orphan(ctx context.Context, id runtime.Identity, f *agboxv1.DoctorFinding) *agboxv1.DoctorFinding {
	f.SandboxId = id.SandboxID
	if x.ledger.Unreadable()[id.SandboxID] != nil {
		f.Action, f.Why = leave, "The record of its sandbox cannot be read; it is left alone until that is mended."
		return x.add(f)
	}
	why, orphaned := x.loop.Orphaned(ctx, id)
	if !orphaned {
		return nil
	}
	f.Action, f.Why = remove, why+" The daemon removes it after its grace period, and --fix now."
	return x.add(f)
}

// logFolders judges the log folders without a record. The daemon never removes one
// itself, because somebody may still want to read it.
func (x *examination) logFolders(ctx context.Context, names []string) {
	for _, id := range names {
		if x.known(id) {
			continue
		}
		f := x.add(&agboxv1.DoctorFinding{
			Action: remove, Kind: logFolder, Name: x.paths.SandboxLogs(id), SandboxId: id,
			Why: "No record speaks of these logs any more. Only --fix removes them; move them away first if you need them.",
		})
		x.do(f, func() error {
			if _, living := x.ledger.Sandbox(id); living {
				return fmt.Errorf("it belongs to sandbox %s by now", id)
			}
			return logs.RemoveAll(ctx, x.paths.Logs(), id)
		})
	}
}

// guestFolders judges the folders of supervisors whose sandboxes are gone. They have no
// user data.
func (x *examination) guestFolders(names []string) {
	for _, id := range names {
		if _, living := x.ledger.Sandbox(id); living || x.ledger.Unreadable()[id] != nil {
			continue
		}
		f := x.add(&agboxv1.DoctorFinding{
			Action: remove, Kind: guestFolder, Name: x.paths.Guest(id), SandboxId: id,
			Why: "The sandbox whose supervisor had this folder does not exist any more; --fix removes it.",
		})
		x.do(f, func() error {
			if _, living := x.ledger.Sandbox(id); living {
				return fmt.Errorf("it belongs to sandbox %s by now", id)
			}
			return os.RemoveAll(x.paths.Guest(id))
		})
	}
}

// listFolders returns the names in a folder that are sandbox ids. It ignores other names.
func listFolders(root string) []string {
	entries, err := os.ReadDir(root)
	if err != nil {
		return nil // not made yet, or not readable
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() && ids.Valid(e.Name()) {
			names = append(names, e.Name())
		}
	}
	return names
}

func databaseSentence(living, deleted, unreadable int) string {
	holds := counted(living, "living sandbox", "living sandboxes")
	history := "the history of " + counted(deleted, "deleted one", "deleted ones")
	if unreadable > 0 {
		return fmt.Sprintf("It is open; it holds %s, %s, and %d that cannot be read.", holds, history, unreadable)
	}
	return fmt.Sprintf("It is open and sound; it holds %s and %s.", holds, history)
}
