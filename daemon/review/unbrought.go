package review

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
	"time"

	"github.com/containerd/errdefs"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"

	"github.com/agbox/agbox/daemon/bases"
	"github.com/agbox/agbox/internal/edits"
	"github.com/agbox/agbox/internal/fault"
)

// maxRef is the maximum size of a file with one reference of git that is read, and maxReferences
// that of all references of a workspace, in bytes. What has more counts as work.
const (
	maxRef        = 4 << 10
	maxReferences = 16 << 20
)

// errUnbrought ends a comparison at the first work that it finds.
var errUnbrought = errors.New("there is work that was not brought home")

// Unbrought says which work a sandbox has in its workspace that went neither to the folder nor to
// a branch; empty is none, also if no workspace was copied in. open is nil if the sandbox runs,
// and otherwise an Archive. Of the changed files it looks for the first only. It does not look
// into the folder: no file counts that went to a branch which has moved, as the client said
// (bases.Base.Unmoved), and what references name that changed after the copy is work unless
// references named it when it was copied, or all up to it was brought home. References
// that it cannot read are work too if they changed. So are
// conflicts in the folder that no client has found resolved.
func (r *Review) Unbrought(ctx context.Context, sandboxID string, open func(ctx context.Context, path string) (io.ReadCloser, error)) (work string, err error) {
	base, err := bases.Open(r.paths.GuestBase(sandboxID))
	if err == nil {
		defer base.Close()
		base.Show(agboxv1.WorkBase_WORK_BASE_UNSPECIFIED, base.Unmoved()...)
		work, err = r.unbrought(ctx, sandboxID, base, open)
	}
	if err == nil && work == "" {
		work, err = r.conflicts(sandboxID)
	}
	if errors.Is(err, bases.ErrNone) || fault.ReasonOf(err) == agboxv1.ErrorReason_PRIMARY_MISSING {
		return "", nil // there is nothing to compare, or nothing left
	}
	return work, err
}

// conflicts says how many conflicts are pending; empty is none.
func (r *Review) conflicts(sandboxID string) (string, error) {
	names, err := edits.Pending(r.paths.Records(sandboxID))
	if len(names) == 0 {
		return "", err
	}
	return fmt.Sprintf("unresolved conflicts (%d)", len(names)), err
}

func (r *Review) unbrought(ctx context.Context, sandboxID string, base *bases.Base, open Archive) (work string, err error) {
	repositories := []string{""}
	send := func(m *agboxv1.CompareWorkspaceResponse) error {
		if n := m.GetRepository(); n != nil {
			repositories = append(repositories, string(n.GetPath()))
		}
		if m.GetDifference() == nil {
			return nil
		}
		work = fmt.Sprintf("changed files (%q)", m.GetDifference().GetPath())
		return errUnbrought
	}
	o := Options{NamesOnly: true}
	if open == nil {
		err = r.Compare(ctx, sandboxID, base, o, send)
	} else {
		err = r.CompareStopped(ctx, sandboxID, base, o, open, send)
	}
	if errors.Is(err, errUnbrought) {
		return work, nil
	}
	if err != nil {
		return "", err
	}
	refs := &references{
		review: r, sandboxID: sandboxID, open: open, left: maxReferences, seen: make(map[string]bool), home: make(map[string]bool),
		copied: time.Unix(0, base.GetCopiedAt()).Truncate(time.Second), // the engine's archives have whole seconds
	}
	for _, commit := range append(base.GetHome(), base.GetHead()) {
		refs.home[commit] = true
	}
	if len(base.GetExcludePatterns()) == 0 { // else files of the commit may not have come
		refs.home[base.GetBrought()] = true
	}
	for _, dir := range repositories {
		if err = refs.of(ctx, path.Join(base.GetTarget(), dir)); err != nil {
			break
		}
	}
	if err == nil && len(repositories) > maxRepositories { // there may be more
		err = refs.unread()
	}
	if errors.Is(err, errUnbrought) {
		return refs.work, nil
	}
	return "", err
}

// readAll returns a file or folder of a sandbox as an archive; nil if there is none.
func (r *Review) readAll(ctx context.Context, sandboxID, path string, open Archive) (in io.Reader, done func(), err error) {
	if open != nil {
		out, err := open(ctx, path)
		if errdefs.IsNotFound(err) {
			return nil, nil, nil
		}
		if err != nil {
			return nil, nil, err
		}
		return out, func() { _ = out.Close() }, nil // only read
	}
	t, done, err := r.files.Transfer(ctx, sandboxID, &guestv1.TransferRequest{Kind: &guestv1.TransferRequest_Out{
		Out: &guestv1.OutTransfer{Path: []byte(path), Name: []byte(path[strings.LastIndexByte(path, '/')+1:])},
	}})
	switch fault.ReasonOf(err) {
	case agboxv1.ErrorReason_FILE_NOT_FOUND, agboxv1.ErrorReason_NOT_A_DIRECTORY:
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	return &stream{t: t}, done, nil
}

// Advanced tells one base of a sandbox, with the conflicts that are pending, from the next, which it
// gets when work was brought home.
func (r *Review) Advanced(sandboxID string) string {
	names, _ := edits.Pending(r.paths.Records(sandboxID)) // Unbrought returns the error
	return bases.Version(r.paths.GuestBase(sandboxID)) + " " + strings.Join(names, " ")
}
