package client

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"google.golang.org/grpc/codes"

	"github.com/agbox/agbox/workspace/edits"
)

// maxLost is how many lost commits a request may name.
const maxLost = 4096

// errOther ends a comparison that takes what commits have brought to branches for brought or not, and
// the repository says otherwise.
var errOther = errors.New("the commits of branches are not as the comparison takes them")

// findCommits finds what the folder's repository has of the commits by which work went to branches.
func (w *Work) findCommits(ctx context.Context, o WorkOptions) error {
	if len(w.branchCommits) == 0 {
		return nil
	}
	if o.on == "" && len(w.current) > 0 {
		if err := w.findMerged(ctx); err != nil {
			return err
		}
	}
	if !o.folder {
		if err := w.findLost(ctx, o.on, !o.commits); err != nil {
			return err
		}
	}
	if slices.ContainsFunc(w.merged.Has, func(c string) bool { return slices.Contains(w.current, c) }) {
		return errOther
	}
	w.merged.Has = nil // it says nothing about a file
	return nil
}

// findMerged finds those that the user has merged, so that the folder has what they brought. If git
// fails, there are none, or too many to be named. Only the end of ctx is an error.
func (w *Work) findMerged(ctx context.Context) error {
	m, err := within(ctx, func() (edits.MergedCommits, error) { return edits.FindMerged(ctx, w.Source, w.branchCommits) })
	if err != nil || len(m.Has) > maxLost {
		m.Has = nil
	}
	w.merged = m
	return ctx.Err()
}

// ErrGitNotDone is the error if git is in the middle of what may bring the work of a branch to the folder,
// or take it away: what the folder has then says nothing about the work.
var ErrGitNotDone = errors.New("git is in the middle of something in the folder")

// notHeld refuses while it is open whether the folder has work that went to branches.
func (w *Work) notHeld() error {
	if len(w.merged.Held) == 0 {
		return nil
	}
	return &Error{Code: codes.FailedPrecondition, Message: fmt.Sprintf("In %s, git is in the middle of a merge, rebase or pick, which may bring or take away work of this sandbox that is on a branch: first complete or abort it (`git status` says how).", w.Source), cause: ErrGitNotDone}
}

// findLost finds the commits by which work went to a branch, and which no reference of the folder's
// repository has any more, also because that is gone. If git fails, all of them count as lost: work
// is shown again then, and a removal loses none. For a branch, it also finds those that only
// others have; a new one has what HEAD has, if that is set. Only the end of ctx is an error.
func (w *Work) findLost(ctx context.Context, on string, head bool) error {
	type found struct{ has, there map[string]bool }
	f, err := within(ctx, func() (f found, err error) {
		if on != "" {
			f.has, f.there, err = edits.BranchHas(ctx, w.Source, on, head, w.branchCommits)
			return f, err
		}
		f.has, err = edits.HasCommits(ctx, w.Source, w.branchCommits)
		f.there = f.has
		return f, err
	})
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		f = found{}
	}
	for _, one := range w.branchCommits {
		if !f.has[one] {
			if !slices.Contains(w.merged.Has, one) { // merged as one commit, and the branch is deleted
				w.lost = append(w.lost, one)
			}
			continue
		}
		if w.named = append(w.named, one); !f.there[one] {
			w.elsewhere = append(w.elsewhere, one)
		}
	}
	if len(w.lost)+len(w.elsewhere) > 0 {
		return errOther
	}
	return nil
}
