package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/agbox/agbox/internal/paths"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/workspace/covers"
	"github.com/agbox/agbox/workspace/edits"
)

// ApplyOptions say how ApplyWork brings work to the folder.
type ApplyOptions struct {
	// Paths limit the work to these files and folders, absolute, or relative to Here if that is a
	// folder in the one that was copied in, else to the workspace.
	Paths []string
	Here  string
	// All includes new files that are ignored.
	All bool
	// Check decides, and changes nothing.
	Check bool
	// NoMerge changes nothing unless the folder still has all files of the work as they were.
	NoMerge bool
	// Abort puts the files of earlier conflicts back as they were before, if they still have
	// the markers, and brings nothing else. Again brings those conflicts anew. Continue says
	// that conflicts without markers are resolved: what the folder has stays. One of them at
	// most, and not with Branch.
	Abort, Again, Continue bool
	// Branch commits the work on this branch of the folder's repository instead, with
	// Message. Neither the work tree nor the index is touched.
	Branch, Message string
	// Squash makes one commit of the work for Branch. Without it, the commits that the sandbox
	// made come as they are, unless Paths limit the work, and what is not committed as one more.
	Squash bool
	// Filters allows the filters of git that only the settings of the folder's repository
	// define. Files for Branch that need them are an error otherwise.
	Filters bool
	// Agree is asked, except for a check, before anything is changed, if this machine would
	// execute some of the files. Nil agrees.
	Agree Agree
}

// WorkOutcome is what became of a change.
type WorkOutcome = edits.Outcome

// AppliedWork is the result of ApplyWork.
type AppliedWork struct {
	// Folder is where the work was brought, and Target the workspace in the sandbox.
	Folder, Target string
	// Committed has what came to Branch; without one, only the Outcomes. The sandbox has written all of
	// Commits, also the authors. AtHome are the files that ApplyWork or Sync brought to the folder before.
	// Rewritten is also set if the sandbox has commits and none was copied in.
	edits.Committed
	// Resumed is set if an earlier call was killed, and this one completed its work. That has
	// the first of the outcomes.
	Resumed bool
	// Resolved are the files whose conflict was resolved since it was brought, or counts as
	// such by Continue.
	Resolved []string
	// Changed is set if the folder was changed.
	Changed bool
	// NoBranch is set if Branch does not exist and was not made, because all work is on none.
	NoBranch bool
	// OldStage is set if the folder has a .agbox-apply as an agbox of before left it if it was
	// killed. Nothing in it is used.
	OldStage bool
	// Large are changes that were not brought because they are too large. The folder counts as
	// having one of more than edits.MaxContent when a later call finds an equal file there.
	Large []WorkChange
	// Executable are, for a check, the files that Agree would be asked about. Otherwise they are
	// those that were left out.
	Executable []Executable
}

// Conflicts counts the outcomes that a person must look at.
func (a AppliedWork) Conflicts() int { return edits.Applied{Outcomes: a.Outcomes}.Conflicts() }

// bringsAll reports whether all work is to be brought, or to count as brought.
func (o ApplyOptions) bringsAll() bool {
	return !o.Check && !o.Abort && len(o.Paths) == 0
}

// bringing is a call of ApplyWork.
type bringing struct {
	c         *Client
	id, label string
	// data is the folder with agbox's own files about folders.
	data string
	o    ApplyOptions
	// asked has what Agree has said.
	asked covers.Consent
}

// transfer brings the work. again means that it ended what an earlier call had begun.
func (b *bringing) transfer(ctx context.Context, w *Work, history *edits.History) (done AppliedWork, again bool, err error) {
	done.Folder, done.Target = w.Source, w.Target
	paths := edits.PathsIn(w.Source, b.o.Here, b.o.Paths)
	changes := edits.Select(w.Changes, paths)
	if !b.o.Abort && !b.o.Continue {
		done.Large = edits.Select(w.Large, paths)
	}
	switch {
	case b.o.Abort || b.o.Continue: // bring nothing
	case b.o.Check:
		done.Executable = covers.Executables(w.Source, changes)
	default:
		if changes, done.Executable, err = b.asked.Decide(ctx, w.Source, changes); err != nil {
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
		Hidden:  func(path string) (bool, error) { return b.c.hasChanged(ctx, b.id, path) },
		Paths:   paths, Without: covers.Without(done.Executable, b.o.Check), Abort: b.o.Abort, Again: b.o.Again, Continue: b.o.Continue,
	})
	done.Outcomes, done.Changed, done.OldStage = out.Outcomes, out.Changed, out.OldStage
	done.Resolved, done.Resumed = out.Resolved, out.Finished
	return out.Finished || out.Again, err
}

// hasChanged reports whether a sandbox has changed a file, also one that is ignored or too large.
func (c *Client) hasChanged(ctx context.Context, id, path string) (bool, error) {
	all, err := c.compare(ctx, id, WorkOptions{All: true, NamesOnly: true, folder: true, merged: true}, false)
	if err != nil {
		return false, err
	}
	defer all.Close()
	return slices.ContainsFunc(slices.Concat(all.Changes, all.Large), func(w WorkChange) bool { return w.Path == path }), nil
}

// toBranch commits changes, and with a history the commits of the sandbox, on a branch.
func (b *bringing) toBranch(ctx context.Context, w *Work, history *edits.History, changes []WorkChange, paths []string, done *AppliedWork) error {
	if history != nil {
		for _, c := range w.Large {
			history.Apart[c.Path] = true
		}
		maps.Copy(history.Apart, covers.Without(done.Executable, b.o.Check))
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
	done.Committed = out
	done.Rewritten = out.Rewritten || w.alone
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

// agreeToCommits asks about what commits bring and this machine would execute, also if a later
// commit takes it out again. come are the changes that nobody must ask about any more.
func (w *Work) agreeToCommits(ctx context.Context, o ApplyOptions, come []WorkChange, done *AppliedWork) func(all, submodules []WorkChange) error {
	return func(all, submodules []WorkChange) error {
		found := slices.DeleteFunc(append(covers.Executables(w.Source, all), covers.Submodules(submodules)...), func(e Executable) bool {
			return !o.Check && slices.ContainsFunc(come, func(c WorkChange) bool { return c.Path == e.Path })
		})
		found = covers.Outermost(found)
		if o.Check {
			done.Executable = covers.Outermost(append(done.Executable, found...))
			return nil
		}
		if len(found) == 0 || o.Agree == nil {
			return nil
		}
		yes, err := o.Agree(ctx, w.Source, found)
		if yes || err != nil {
			return err
		}
		return &Error{Code: codes.FailedPrecondition, Reason: agboxv1.ErrorReason_INVALID_REQUEST.String(), Message: fmt.Sprintf(
			"The commits of the sandbox have %q, and nobody agreed to it (%s, %s): --yes-executable brings them, and --squash makes one commit without it.", found[0].Path, found[0].Who, found[0].When)}
	}
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

// advanceBase makes files that are its own work the base of a sandbox.
func (c *Client) advanceBase(ctx context.Context, sandboxID string, files []edits.AdvancedFile) error {
	return c.advanceTo(ctx, &agboxv1.AdvanceBaseOpen{SandboxId: sandboxID, FromSandbox: true}, files)
}

// advanceTo changes the base of a sandbox. One that is removed meanwhile has no base, and needs none.
func (c *Client) advanceTo(ctx context.Context, open *agboxv1.AdvanceBaseOpen, files []edits.AdvancedFile) error {
	err := c.repeated(ctx, c.newPatience(), func() (again bool, err error) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		stream, err := c.files.AdvanceBase(ctx)
		if err != nil {
			return true, err
		}
		if err := sendBase(stream, open, files); err != nil && !errors.Is(err, io.EOF) {
			return true, err
		}
		_, err = stream.CloseAndRecv()
		return true, err
	})
	if err == nil || !c.isRemoved(ctx, open.GetSandboxId()) {
		return err
	}
	install, err := paths.FromEnv()
	if err == nil { // what was noted about it after its removal
		err = os.RemoveAll(install.Records(open.GetSandboxId()))
	}
	return err
}

// isRemoved reports whether a sandbox is removed or being removed.
func (c *Client) isRemoved(ctx context.Context, id string) bool {
	out, err := c.GetSandbox(ctx, id)
	switch out.GetSandbox().GetState() {
	case agboxv1.SandboxState_SANDBOX_STATE_DELETING, agboxv1.SandboxState_SANDBOX_STATE_DELETED:
		return true
	}
	return errors.Is(err, ErrNotFound)
}

// sendBase sends files. io.EOF means that the daemon has ended the call.
func sendBase(stream grpc.ClientStreamingClient[agboxv1.AdvanceBaseRequest, agboxv1.AdvanceBaseResponse], open *agboxv1.AdvanceBaseOpen, files []edits.AdvancedFile) error {
	err := stream.Send(&agboxv1.AdvanceBaseRequest{Item: &agboxv1.AdvanceBaseRequest_Open{Open: open}})
	if err != nil {
		return err
	}
	for _, f := range files {
		file := &agboxv1.AdvancedFile{Path: []byte(f.Path), Had: f.Had}
		var content []byte
		switch {
		case f.File == nil:
		case f.File.TooLarge:
			file.File = &agboxv1.WorkspaceFile{Executable: f.File.Executable, Size: uint64(f.File.Size), Sha256: f.File.Sum[:], Modified: f.File.Modified, TooLarge: true}
		default:
			if content, err = f.Content(); err != nil || !f.File.Is(content) {
				continue // it was changed since: the sandbox's change counts as new again
			}
			file.File = &agboxv1.WorkspaceFile{Link: f.File.Link, Executable: f.File.Executable, Size: uint64(len(content))}
		}
		if err := stream.Send(&agboxv1.AdvanceBaseRequest{Item: &agboxv1.AdvanceBaseRequest_File{File: file}}); err != nil {
			return err
		}
		for len(content) > 0 {
			n := min(len(content), 256<<10)
			if err := stream.Send(&agboxv1.AdvanceBaseRequest{Item: &agboxv1.AdvanceBaseRequest_Data{Data: content[:n]}}); err != nil {
				return err
			}
			content = content[n:]
		}
	}
	return nil
}
