package client

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"slices"

	"google.golang.org/grpc/codes"

	"github.com/agbox/agbox/internal/paths"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/workspace/covers"
	"github.com/agbox/agbox/workspace/edits"
)

// labelOf is how a sandbox is called in the markers of a conflict and in commits.
func labelOf(sb *agboxv1.SandboxHandle) string {
	return "sandbox " + cmp.Or(sb.GetName(), sb.GetSandboxId())
}

// ApplyWork merges what a sandbox, which may be stopped, has changed in its workspace into the folder of this
// machine that was copied in. What is in the folder then no longer counts as changed. A
// conflict still does until it is resolved: a later call finds that, or Continue says so. If the
// process is killed, the folder has nothing of it, or the next call completes it.
func (c *Client) ApplyWork(ctx context.Context, sandbox string, o ApplyOptions) (AppliedWork, error) {
	out, err := c.GetSandbox(ctx, sandbox)
	if err != nil {
		return AppliedWork{}, err
	}
	id := out.GetSandbox().GetSandboxId()
	install, err := paths.FromEnv()
	if err != nil {
		return AppliedWork{}, err
	}
	b := &bringing{c: c, id: id, label: labelOf(out.GetSandbox()), data: install.Folders(), o: o, asked: covers.Consent{Agree: o.Agree}}
	var earlier AppliedWork
	for first := true; ; first = false {
		w, history, err := c.workFor(ctx, id, o)
		if err != nil {
			return AppliedWork{}, err
		}
		if first {
			if err := c.pathsExist(ctx, id, w, o.Paths, o.Here); err != nil {
				w.Close()
				return AppliedWork{}, err
			}
		}
		if len(w.landed) > 0 && !o.Check {
			// The sandbox has it from the folder, not of itself.
			err := c.advanceTo(ctx, &agboxv1.AdvanceBaseOpen{SandboxId: id}, edits.AdvanceAll(w.landed))
			w.Close()
			if err != nil {
				return AppliedWork{}, err
			}
			continue
		}
		if !o.Abort {
			err = w.notHeld()
		}
		if err == nil {
			err = c.ownCopies(ctx, id, w, o)
		}
		if err != nil {
			w.Close()
			return AppliedWork{}, err
		}
		done, again, err := b.transfer(ctx, w, history)
		if err == nil && !again {
			err = c.noteHome(ctx, id, w, o, done)
		}
		w.Close()
		done.Outcomes = append(slices.DeleteFunc(earlier.Outcomes, func(old WorkOutcome) bool {
			return slices.ContainsFunc(done.Outcomes, func(o WorkOutcome) bool { return o.Path == old.Path && o.Conflict() })
		}), done.Outcomes...)
		done.Resolved = append(earlier.Resolved, done.Resolved...)
		done.Resumed, done.Changed = done.Resumed || earlier.Resumed, done.Changed || earlier.Changed
		if err == nil && again {
			earlier = done
			continue
		}
		return done, localError("Bringing the work to "+done.Folder, err)
	}
}

// workFor returns the work, and the commits of the sandbox if there are any to bring.
func (c *Client) workFor(ctx context.Context, id string, o ApplyOptions) (w *Work, history *edits.History, err error) {
	commits := o.Branch != "" && !o.Squash && len(o.Paths) == 0
	from, tip := new(Work), ""
	if o.Branch != "" || o.bringsAll() {
		if from, err = c.origin(ctx, id); err != nil {
			return nil, nil, err
		}
		tip, err = c.tip(ctx, id, from)
		if err != nil && (commits || ctx.Err() != nil) { // files come without them
			return nil, nil, squashed(err)
		}
	}
	alone := commits && tip != "" && from.head == ""
	commits = commits && tip != "" && !alone
	what := WorkOptions{All: o.All, folder: o.Branch == "", merged: true, branch: o.Branch != "" && !commits, on: o.Branch, commits: commits}
	if w, err = c.compare(ctx, id, what, commits); err != nil {
		return nil, nil, err
	}
	if what.branch && !w.indexed && w.head != "" { // the index cannot be read, or the daemon is an older one
		w.Close()
		if w, err = c.compare(ctx, id, what, true); err != nil {
			return nil, nil, err
		}
		all, err := c.compare(ctx, id, WorkOptions{All: true, NamesOnly: true, FromStart: true}, false)
		if err != nil {
			w.Close()
			return nil, nil, err
		}
		w.atHome = w.broughtHome(all)
		all.Close()
	}
	if err = w.folderThere(ctx); err != nil {
		w.Close()
		return nil, nil, err
	}
	w.folders, w.tip, w.alone = from.folders, tip, alone && tip != w.brought
	if o.Branch != "" {
		if err = c.findUntracked(ctx, id, w); err != nil {
			w.Close()
			return nil, nil, err
		}
	}
	if commits {
		history = c.history(ctx, id, w)
		if err = c.copied(ctx, id, w, history); err != nil {
			w.Close()
			return nil, nil, err
		}
	}
	if history == nil {
		w.Changes = edits.Renames(w.Changes)
	}
	return w, history, nil
}

// squashed adds to an error about the repository of a sandbox how its files come.
func squashed(err error) error {
	if own := new(Error); errors.As(err, &own) && own.Code == codes.FailedPrecondition && own.Reason == "" {
		return &Error{Code: own.Code, Message: own.Message + " --squash makes one commit of its files."}
	}
	return err
}

// noteHome notes to which commits branches have moved, also those of calls that were killed before
// they noted it, and up to which commit of the sandbox all came.
func (c *Client) noteHome(ctx context.Context, id string, w *Work, o ApplyOptions, done AppliedWork) error {
	open := &agboxv1.AdvanceBaseOpen{SandboxId: id}
	came := w.allCame(o, done)
	if came && !done.HasTip {
		var err error
		base := c.baseOf(ctx, id, w.Source, WorkOptions{folder: o.Branch == "", merged: true, on: o.Branch})
		if came, err = (&homeCheck{c: c}).came(ctx, id, w, base, done.Outside); err != nil {
			return err
		}
	}
	if came {
		open.Commit, open.BranchCommit = w.tip, cmp.Or(done.Has, w.mergedBy())
	}
	if o.Branch != "" && !o.Check {
		moved := slices.Clone(w.named)
		if done.Has != "" && done.Conflicts() == 0 {
			moved = append(moved, done.Has)
		}
		open.MovedCommits = moved[max(0, len(moved)-maxLost):]
	}
	if open.Commit == "" && len(open.MovedCommits) == 0 {
		return nil
	}
	return c.advanceTo(ctx, open, nil)
}

// allCame reports whether nothing of the work is left in the sandbox.
func (w *Work) allCame(o ApplyOptions, done AppliedWork) bool {
	if o.NoMerge && slices.ContainsFunc(done.Outcomes, func(one WorkOutcome) bool { return one.Kind == edits.Merged }) {
		return false // nothing was brought
	}
	if len(done.Refused)+len(done.Unfit)+len(done.Submodules) > 0 && !done.HasTip {
		return false // one commit of all does not have them
	}
	if o.Continue && !w.settledBy(done) {
		return false
	}
	return o.bringsAll() && (w.tip != w.brought || o.Branch == "" && w.byOthers()) && w.tip != "" && done.Conflicts()+len(done.Executable)+len(done.Large) == 0
}

// settledBy reports whether a call that brings nothing has settled all work.
func (w *Work) settledBy(done AppliedWork) bool {
	left := slices.ContainsFunc(w.Changes, func(c WorkChange) bool { return !slices.Contains(done.Resolved, c.Path) })
	return !left && len(w.Large) == 0
}

// byOthers reports whether the folder has the commits of the sandbox, and they count as brought by a
// commit that it may not have.
func (w *Work) byOthers() bool {
	return w.broughtBy != "" && !slices.Contains(w.merged.Has, w.broughtBy)
}

// mergedBy is the commit by which the folder has a part of the work; empty if it has it itself.
func (w *Work) mergedBy() string {
	if len(w.merged.Has) == 0 {
		return ""
	}
	return w.merged.Head
}

// ownCopies takes large files from w that a person has copied to the folder: they become the
// base, without their contents. A file that cannot be read now stays.
func (c *Client) ownCopies(ctx context.Context, id string, w *Work, o ApplyOptions) error {
	if o.Check || o.Abort || o.Continue || o.Branch != "" {
		return nil
	}
	var home []edits.AdvancedFile
	for _, one := range edits.Select(w.Large, o.Paths) {
		if one.After == nil || one.After.Size <= edits.MaxContent {
			continue
		}
		there, err := edits.Describe(w.Source, one.Path)
		if err != nil || there == nil || there.Link || there.Size != one.After.Size || there.Executable != one.After.Executable {
			continue
		}
		sum := sha256.New()
		if err := c.ReadFile(ctx, id, w.Target+"/"+one.Path, 0, 0, sum, FileOptions{}); ctx.Err() != nil {
			return err
		} else if err != nil || !bytes.Equal(sum.Sum(nil), there.Sum[:]) {
			continue
		}
		there.TooLarge, there.Modified = true, one.After.Modified
		home = append(home, edits.AdvancedFile{Path: one.Path, File: there})
	}
	if len(home) == 0 {
		return nil
	}
	w.Large = slices.DeleteFunc(w.Large, func(l WorkChange) bool {
		return slices.ContainsFunc(home, func(f edits.AdvancedFile) bool { return f.Path == l.Path })
	})
	return c.advanceBase(ctx, id, home)
}
