package review

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
	"time"

	"github.com/agbox/agbox/internal/fault"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/workspace/edits"
)

// Unbrought says which work a sandbox has in its workspace that went neither to the folder nor to
// a branch, and in sentences how it comes home; empty is none, also if no workspace was copied in.
// open is nil if the sandbox runs,
// and otherwise an Archive. Of the changed files it looks for the first only. It does not look
// into the folder: no file counts that went to a branch which has moved, as the client said
// (bases.Base.Unmoved), and what references name that changed after the copy is work unless
// references named it when it was copied, or all up to it was brought to a branch, or to the folder
// while HEAD is there. References
// that it cannot read are work too if they changed. So are
// conflicts in the folder that no client has found resolved.
func (r *Review) Unbrought(ctx context.Context, sandboxID string, open func(ctx context.Context, path string) (io.ReadCloser, error)) (work, advice string, err error) {
	base, err := OpenBase(r.paths.GuestBase(sandboxID))
	if err == nil {
		defer base.Close()
		base.Show(agboxv1.WorkBase_WORK_BASE_UNSPECIFIED, Commits{Lost: base.Unmoved()})
		work, advice, err = r.unbrought(ctx, sandboxID, base, open)
	}
	if err == nil && work == "" {
		work, advice, err = r.conflicts(sandboxID)
	}
	if errors.Is(err, ErrNoBase) || fault.ReasonOf(err) == agboxv1.ErrorReason_PRIMARY_MISSING {
		return "", "", nil // there is nothing to compare, or nothing left
	}
	return work, advice, err
}

// conflicts says how many conflicts are pending; empty is none. A record stays if the folder was
// removed: what is at its place now is another one.
func (r *Review) conflicts(sandboxID string) (work, advice string, err error) {
	names, err := edits.Pending(r.paths.Records(sandboxID))
	if len(names) == 0 {
		return "", "", err
	}
	return fmt.Sprintf("unresolved conflicts (%d)", len(names)), fmt.Sprintf(
		"`agbox apply %s` ends those that are resolved in the folder, with --continue also if the folder has nothing of the sandbox's version, and --abort puts the files back. If the folder was removed since, only `agbox rm` ends them.", sandboxID), err
}

func (r *Review) unbrought(ctx context.Context, sandboxID string, base *Base, open Archive) (work, advice string, err error) {
	repositories := []string{""}
	send := func(m *agboxv1.CompareWorkspaceResponse) error {
		switch item := m.GetItem().(type) {
		case *agboxv1.CompareWorkspaceResponse_Repository:
			repositories = append(repositories, string(item.Repository.GetPath()))
			return nil
		case *agboxv1.CompareWorkspaceResponse_Difference:
			work = fmt.Sprintf("changed files (%q)", item.Difference.GetPath())
			advice = fmt.Sprintf("`agbox diff %s` shows changed files, `agbox apply %[1]s` brings them.", sandboxID)
		case *agboxv1.CompareWorkspaceResponse_Unshown:
			work, advice = item.Unshown.GetWhat(), item.Unshown.GetAdvice()
		default:
			return nil
		}
		return errUnbrought
	}
	o := Options{NamesOnly: true, Removal: true}
	if open == nil {
		err = r.Compare(ctx, sandboxID, base, o, send)
	} else {
		err = r.CompareStopped(ctx, sandboxID, base, o, open, send)
	}
	if errors.Is(err, errUnbrought) {
		return work, advice, nil
	}
	if err != nil {
		return "", "", err
	}
	refs := &references{
		review: r, sandboxID: sandboxID, open: open, left: maxReferences, seen: make(map[string]bool), home: make(map[string]bool),
		copied: time.Unix(0, base.GetCopiedAt()).Truncate(time.Second), // the engine's archives have whole seconds
		base:   base,
	}
	for _, commit := range append(base.GetHome(), base.GetHead()) {
		refs.home[commit] = true
	}
	if err = refs.top(ctx); err == nil {
		for _, refs.dir = range repositories {
			if err = refs.of(ctx, path.Join(base.GetTarget(), refs.dir)); err != nil {
				break
			}
		}
	}
	if err == nil && len(repositories) > maxRepositories { // there may be more
		refs.dir = ""
		err = refs.unread()
	}
	if errors.Is(err, errUnbrought) {
		return refs.work, refs.advice, nil
	}
	return "", "", err
}

// Advanced tells one base of a sandbox, with the conflicts that are pending, from the next, which it
// gets when work was brought home.
func (r *Review) Advanced(sandboxID string) string {
	names, _ := edits.Pending(r.paths.Records(sandboxID)) // Unbrought returns the error
	return BaseVersion(r.paths.GuestBase(sandboxID)) + " " + strings.Join(names, " ")
}
