package client

import (
	"cmp"
	"context"
	"errors"
	"io"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"google.golang.org/grpc"

	"github.com/agbox/agbox/internal/edits"
	"github.com/agbox/agbox/internal/paths"
)

// ApplyOptions say how ApplyWork brings work to the folder.
type ApplyOptions struct {
	// Paths limit the work to these files and folders, relative to the workspace.
	Paths []string
	// All includes new files that are ignored.
	All bool
	// Check decides, and changes nothing.
	Check bool
	// NoMerge changes nothing unless the folder still has all files of the work as they were.
	NoMerge bool
	// Branch commits the work on this branch of the folder's repository instead, with
	// Message. Neither the work tree nor the index is touched.
	Branch, Message string
}

// WorkOutcome is what became of a change.
type WorkOutcome = edits.Outcome

// AppliedWork is the result of ApplyWork.
type AppliedWork struct {
	// Folder is where the work was brought.
	Folder   string
	Outcomes []WorkOutcome
	// Resumed is set if an earlier call was killed, and this one completed its work. That has
	// the first of the outcomes.
	Resumed bool
	// Changed is set if the folder was changed. Commit is the new commit of Branch; empty if
	// there are conflicts, or if the branch has all changes already.
	Changed bool
	Commit  string
	// OldStage is set if the folder has a .agbox-apply as an agbox of before left it if it was
	// killed. Nothing in it is used.
	OldStage bool
}

// Conflicts counts the outcomes that a person must look at.
func (a AppliedWork) Conflicts() int { return edits.Applied{Outcomes: a.Outcomes}.Conflicts() }

// labelOf is how a sandbox is called in the markers of a conflict and in commits.
func labelOf(sb *agboxv1.SandboxHandle) string {
	return "sandbox " + cmp.Or(sb.GetName(), sb.GetSandboxId())
}

// ApplyWork merges what a sandbox, which may be stopped, has changed in its workspace into the folder of this
// machine that was copied in. What is in the folder then no longer counts as changed. If the
// process is killed, the folder has nothing of it, or the next call completes it.
func (c *Client) ApplyWork(ctx context.Context, sandbox string, o ApplyOptions) (AppliedWork, error) {
	out, err := c.GetSandbox(ctx, sandbox)
	if err != nil {
		return AppliedWork{}, err
	}
	id, label := out.GetSandbox().GetSandboxId(), labelOf(out.GetSandbox())
	install, err := paths.FromEnv()
	if err != nil {
		return AppliedWork{}, err
	}
	advance := func(of string, files []edits.AdvancedFile) error {
		err := c.advanceBase(ctx, of, files)
		if of != id && errors.Is(err, ErrNotFound) {
			return nil // an earlier call was killed, and its sandbox is gone
		}
		return err
	}
	var earlier []WorkOutcome
	for {
		w, err := c.Work(ctx, id, WorkOptions{All: o.All})
		if err != nil {
			return AppliedWork{}, err
		}
		done, finished, err := w.apply(ctx, install, id, label, o, advance)
		w.Close()
		if err == nil && finished {
			earlier = append(earlier, done.Outcomes...)
			continue
		}
		if len(earlier) > 0 {
			done.Resumed, done.Changed, done.Outcomes = true, true, append(earlier, done.Outcomes...)
		}
		return done, localError("Bringing the work to "+done.Folder, err)
	}
}

// apply brings the work. finished means that it was that of a killed call.
func (w *Work) apply(ctx context.Context, install paths.Install, id, label string, o ApplyOptions, advance func(string, []edits.AdvancedFile) error) (done AppliedWork, finished bool, err error) {
	done.Folder = w.Source
	changes := edits.Select(w.Changes, o.Paths)
	if o.Branch == "" {
		out, err := edits.Apply(ctx, changes, edits.ApplyOptions{
			Folder: w.Source, Data: install.Folders(), Sandbox: id, Label: label, Check: o.Check, NoMerge: o.NoMerge, Advance: advance,
		})
		done.Outcomes, done.Changed, done.OldStage = out.Outcomes, out.Changed, out.OldStage
		return done, out.Finished, err
	}
	out, err := edits.Commit(ctx, changes, edits.BranchOptions{Folder: w.Source, Branch: o.Branch, Message: o.Message, Label: label, Check: o.Check})
	done.Outcomes, done.Commit = out.Outcomes, out.Commit
	if err == nil && !o.Check && done.Conflicts() == 0 && len(changes) > 0 {
		err = advance(id, edits.AdvanceAll(changes))
	}
	return done, false, err
}

// advanceBase makes files the base of a sandbox.
func (c *Client) advanceBase(ctx context.Context, sandboxID string, files []edits.AdvancedFile) error {
	return c.repeated(ctx, func(api agboxv1.FileServiceClient) (again bool, err error) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		stream, err := api.AdvanceBase(ctx)
		if err != nil {
			return true, err
		}
		if err := sendBase(stream, sandboxID, files); err != nil && !errors.Is(err, io.EOF) {
			return true, err
		}
		_, err = stream.CloseAndRecv()
		return true, err
	})
}

// sendBase sends files. io.EOF means that the daemon has ended the call.
func sendBase(stream grpc.ClientStreamingClient[agboxv1.AdvanceBaseRequest, agboxv1.AdvanceBaseResponse], sandboxID string, files []edits.AdvancedFile) error {
	err := stream.Send(&agboxv1.AdvanceBaseRequest{Item: &agboxv1.AdvanceBaseRequest_Open{Open: &agboxv1.AdvanceBaseOpen{SandboxId: sandboxID}}})
	if err != nil {
		return err
	}
	for _, f := range files {
		file := &agboxv1.AdvancedFile{Path: []byte(f.Path)}
		var content []byte
		if f.File != nil {
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
