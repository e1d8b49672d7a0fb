package client

import (
	"context"
	"maps"
	"slices"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/workspace/edits"
)

// bringing is a call of ApplyWork.
type bringing struct {
	c         *Client
	id, label string
	// data is the folder with agbox's own files about folders.
	data string
	o    ApplyOptions
	// asked has what Agree has said.
	asked consent
}

// bring brings the work. again means that it ended what an earlier call had begun.
func (b *bringing) bring(ctx context.Context, w *Work, history *edits.History) (done AppliedWork, again bool, err error) {
	done.Folder, done.Target = w.Source, w.Target
	paths := edits.PathsIn(w.Source, b.o.Here, b.o.Paths)
	changes := edits.Select(w.Changes, paths)
	if !b.o.Abort && !b.o.Continue {
		done.Large = edits.Select(w.Large, paths)
	}
	switch {
	case b.o.Abort || b.o.Continue: // bring nothing
	case b.o.Check:
		done.Executable = executables(w.Source, changes)
	default:
		if changes, done.Executable, err = b.asked.decide(ctx, w.Source, changes); err != nil {
			return done, false, err
		}
	}
	if b.o.Branch == "" {
		again, err = b.toFolder(ctx, w, paths, &done)
		return done, again, err
	}
	outside := func(name string) bool { return len(edits.Select([]WorkChange{{Path: name}}, paths)) == 0 }
	maps.DeleteFunc(w.untracked, func(name string, _ *WorkFile) bool { return outside(name) })
	maps.DeleteFunc(w.fresh, func(name string, _ bool) bool { return outside(name) })
	return done, false, b.toBranch(ctx, w, history, changes, paths, &done)
}

// toFolder merges the work into the folder, as far as it is in paths.
func (b *bringing) toFolder(ctx context.Context, w *Work, paths []string, done *AppliedWork) (again bool, err error) {
	out, err := edits.Apply(ctx, w.Changes, edits.ApplyOptions{
		Folder: w.Source, Data: b.data, Sandbox: b.id, Label: b.label, Check: b.o.Check, NoMerge: b.o.NoMerge,
		// That of an earlier call that was killed may be another sandbox.
		Advance: func(of string, files []edits.AdvancedFile) error { return b.c.advanceBase(ctx, of, files) },
		Paths:   paths, Without: without(done.Executable, b.o.Check), Abort: b.o.Abort, Again: b.o.Again, Continue: b.o.Continue,
	})
	done.Outcomes, done.Changed, done.OldStage = out.Outcomes, out.Changed, out.OldStage
	done.Resolved, done.Resumed = out.Resolved, out.Finished
	return out.Finished || out.Again, err
}

// toBranch commits changes, and with a history the commits of the sandbox, on a branch.
func (b *bringing) toBranch(ctx context.Context, w *Work, history *edits.History, changes []WorkChange, paths []string, done *AppliedWork) error {
	if history != nil {
		for _, c := range w.Large {
			history.Apart[c.Path] = true
		}
		maps.Copy(history.Apart, without(done.Executable, b.o.Check))
		history.Agree = w.agreeToCommits(ctx, b.o, changes, done)
	}
	out, err := edits.Commit(ctx, changes, edits.BranchOptions{
		Folder: w.Source, Branch: b.o.Branch, Message: b.o.Message, Label: b.label, Check: b.o.Check, Filters: b.o.Filters, History: history, Read: b.c.history(ctx, b.id, w).Read,
		Untracked: w.untracked, Fresh: w.fresh, Lost: w.lostFiles, Copied: w.head, Untrack: w.tip != "", AtHome: edits.Select(w.atHome, paths),
		// Whoever is killed before the branch has moved has brought nothing, and all of it afterwards.
		Note: func(out edits.Committed) error {
			files := slices.DeleteFunc(edits.AdvanceAll(changes), func(f edits.AdvancedFile) bool {
				return slices.Contains(out.Left(), f.Path)
			})
			for i := range files {
				files[i].Had = out.Had[files[i].Path]
			}
			return b.advanceBranch(ctx, &agboxv1.AdvanceBaseOpen{
				SandboxId: b.id, Branch: true, BranchCommit: out.Has, BranchTip: out.Tip, LostCommits: w.lost[:min(len(w.lost), maxLost)], ElsewhereCommits: w.elsewhere[:min(len(w.elsewhere), maxLost)],
			}, files, out.Untracked)
		},
	})
	out.Outside = slices.DeleteFunc(out.Outside, func(name string) bool { return w.there(changes, name) })
	done.Outcomes, done.Commit, done.Outside, done.Refused, done.Unfit, done.Submodules = out.Outcomes, out.Commit, out.Outside, out.Refused, out.Unfit, out.Submodules
	done.Commits, done.Links, done.LFS, done.Rewritten = out.Commits, out.Links, out.LFS, out.Rewritten || w.alone
	done.Encodings, done.AtHome, done.has, done.hasTip = out.Encodings, out.AtHome, out.Has, out.HasTip
	done.NoBranch = !b.o.Check && err == nil && len(out.Left()) > 0 && out.Tip == "" && out.Commit == "" && len(out.Outcomes) == 0
	return err
}

// there reports whether the folder has a file as the sandbox has it.
func (w *Work) there(changes []WorkChange, name string) bool {
	i := slices.IndexFunc(changes, func(c WorkChange) bool { return c.Path == name })
	if i < 0 {
		return false
	}
	file, err := edits.Describe(w.Source, name)
	return err == nil && edits.Same(file, changes[i].After)
}

// maxUntracked is how many files of a call of AdvanceBase may be untracked.
const maxUntracked = 500

// advanceBranch notes which files went to a branch, and which it loses because git does not track them
// in the sandbox.
func (b *bringing) advanceBranch(ctx context.Context, open *agboxv1.AdvanceBaseOpen, files []edits.AdvancedFile, untracked []string) error {
	if len(files) > 0 {
		if err := b.c.advanceTo(ctx, open, files); err != nil {
			return err
		}
	}
	for some := range slices.Chunk(untracked, maxUntracked) {
		open.Untracked = nil
		for _, name := range some {
			open.Untracked = append(open.Untracked, []byte(name))
		}
		if err := b.c.advanceTo(ctx, open, nil); err != nil {
			return err
		}
	}
	return nil
}
