package client

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/agbox/agbox/internal/paths"
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

// SandboxCommit is a commit that a sandbox made. It has written all of it, also the author.
type SandboxCommit = edits.SandboxCommit

// CommitLink is a symbolic link in a commit.
type CommitLink = edits.Link

// AppliedWork is the result of ApplyWork.
type AppliedWork struct {
	// Folder is where the work was brought, and Target the workspace in the sandbox.
	Folder, Target string
	Outcomes       []WorkOutcome
	// Resumed is set if an earlier call was killed, and this one completed its work. That has
	// the first of the outcomes.
	Resumed bool
	// Resolved are the files whose conflict was resolved since it was brought, or counts as
	// such by Continue.
	Resolved []string
	// Changed is set if the folder was changed. Commit is the new commit of Branch; empty if
	// there are conflicts, or if the branch has all changes already.
	Changed bool
	Commit  string
	// Outside are the changed files that are on no branch, because git ignores or does not
	// track them, and Refused are on none because git refuses their names, for links or at all.
	Outside, Refused []string
	// Unfit are the changed files that are on no branch, because they do not have the encoding that
	// attributes of git say.
	Unfit []string
	// Encodings are those of Unfit that git does not know.
	Encodings []string
	// Submodules are the changed files that are on no branch, because they are inside submodules.
	Submodules []string
	// AtHome are the files that ApplyWork or Sync brought to the folder before, and that are not on
	// Branch.
	AtHome []string
	// NoBranch is set if Branch does not exist and was not made, because all work is on none.
	NoBranch bool
	// Commits are those that the sandbox made, the oldest first, and Links the symbolic links in
	// them.
	Commits []SandboxCommit
	Links   []CommitLink
	// LFS are the files of which Commits have versions whose content git-lfs has inside only: it
	// goes with the sandbox.
	LFS []string
	// Rewritten is set if the sandbox has commits, but not on top of one that was copied in, and
	// that the folder's repository has: there is one commit of all.
	Rewritten bool
	// OldStage is set if the folder has a .agbox-apply as an agbox of before left it if it was
	// killed. Nothing in it is used.
	OldStage bool
	// Large are changes that were not brought because they are too large. The folder counts as
	// having one of more than edits.MaxContent when a later call finds an equal file there.
	Large []WorkChange
	// has is the commit that has the changes on Branch, and hasTip is set if the sandbox's commits are
	// below it as they are, also if an earlier call that was killed has brought them.
	has    string
	hasTip bool
	// Executable are, for a check, the files that Agree would be asked about. Otherwise they are
	// those that were left out.
	Executable []Executable
}

// Conflicts counts the outcomes that a person must look at.
func (a AppliedWork) Conflicts() int { return edits.Applied{Outcomes: a.Outcomes}.Conflicts() }

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
	b := &bringing{c: c, id: id, label: labelOf(out.GetSandbox()), data: install.Folders(), o: o, asked: consent{agree: o.Agree}}
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
		done, again, err := b.bring(ctx, w, history)
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

// pathsExist refuses a path that leads out of the folder, and one that neither the folder nor the
// sandbox has, and that no change is about.
func (c *Client) pathsExist(ctx context.Context, id string, w *Work, names []string, here string) error {
	var all *Work
	for i, name := range edits.PathsIn(w.Source, here, names) {
		missing := &Error{Code: codes.NotFound, Message: fmt.Sprintf("There is no %s, neither in %s nor in the workspace of the sandbox.", names[i], w.Source)}
		if !filepath.IsLocal(name) {
			return missing
		}
		one := []string{name}
		_, err := within(ctx, func() (fs.FileInfo, error) { return os.Lstat(filepath.Join(w.Source, name)) })
		if err == nil || len(edits.Select(w.Changes, one))+len(edits.Select(w.Large, one)) > 0 {
			continue
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if all == nil { // with what is ignored, and what is as it was copied
			if all, err = c.compare(ctx, id, WorkOptions{All: true, NamesOnly: true}, true); err != nil {
				return err
			}
			defer all.Close()
			for path, file := range all.shared.Files {
				all.Changes = append(all.Changes, WorkChange{Path: path, Before: file})
			}
		}
		if len(edits.Select(all.Changes, one))+len(edits.Select(all.Large, one)) == 0 {
			return missing
		}
	}
	return nil
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
	w.tip, w.alone = tip, alone && tip != w.brought
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
	if w.allCame(o, done) {
		open.Commit, open.BranchCommit = w.tip, cmp.Or(done.has, w.mergedBy())
	}
	if o.Branch != "" && !o.Check {
		moved := slices.Clone(w.named)
		if done.has != "" && done.Conflicts() == 0 {
			moved = append(moved, done.has)
		}
		open.MovedCommits = moved[max(0, len(moved)-maxLost):]
	}
	if open.Commit == "" && len(open.MovedCommits) == 0 {
		return nil
	}
	return c.advanceTo(ctx, open, nil)
}

// allCame reports whether nothing of the commits of the sandbox is left in it.
func (w *Work) allCame(o ApplyOptions, done AppliedWork) bool {
	if o.NoMerge && slices.ContainsFunc(done.Outcomes, func(one WorkOutcome) bool { return one.Kind == edits.Merged }) {
		return false // nothing was brought
	}
	if len(done.Refused)+len(done.Unfit)+len(done.Submodules) > 0 && !done.hasTip {
		return false // one commit of all does not have them
	}
	return o.bringsAll() && (w.tip != w.brought || o.Branch == "" && w.byOthers()) && w.tip != "" && done.Conflicts()+len(done.Executable)+len(done.Large) == 0
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

// bringsAll reports whether all work is to be brought.
func (o ApplyOptions) bringsAll() bool {
	return !o.Check && !o.Abort && !o.Continue && len(o.Paths) == 0
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

// advanceBase makes files that are its own work the base of a sandbox.
func (c *Client) advanceBase(ctx context.Context, sandboxID string, files []edits.AdvancedFile) error {
	return c.advanceTo(ctx, &agboxv1.AdvanceBaseOpen{SandboxId: sandboxID, FromSandbox: true}, files)
}

// advanceTo changes the base of a sandbox. One that is removed meanwhile has no base, and needs none.
func (c *Client) advanceTo(ctx context.Context, open *agboxv1.AdvanceBaseOpen, files []edits.AdvancedFile) error {
	err := c.repeated(ctx, func(api agboxv1.FileServiceClient) (again bool, err error) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		stream, err := api.AdvanceBase(ctx)
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
