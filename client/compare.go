package client

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"google.golang.org/grpc/codes"

	"github.com/agbox/agbox/internal/filesystem"
	"github.com/agbox/agbox/internal/paths"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/workspace/edits"
)

// Work returns what a sandbox, which may be stopped, has changed in its workspace since it was
// copied in, without what was brought to the folder or to a branch. Close must be called. The error has the reason WORKSPACE_HAS_NO_BASE
// if no workspace was copied in.
func (c *Client) Work(ctx context.Context, sandbox string, o WorkOptions) (*Work, error) {
	w, err := c.compare(ctx, sandbox, o, false)
	if err != nil {
		return nil, err
	}
	if err := w.leaveCopies(ctx); err != nil {
		w.Close()
		return nil, err
	}
	for i := range w.Changes {
		if one := &w.Changes[i]; one.Retracked {
			one.Before = nil // as on the branch
		}
	}
	w.Changes = edits.Renames(w.Changes)
	if len(o.Paths) == 0 {
		return w, nil
	}
	if err := c.pathsExist(ctx, sandbox, w, o.Paths, o.Here); err != nil {
		w.Close()
		return nil, err
	}
	paths := edits.PathsIn(w.Source, o.Here, o.Paths)
	w.Changes, w.Large = edits.Select(w.Changes, paths), edits.Select(w.Large, paths)
	return w, nil
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

// compare is Work, with a removed and an added file for each renamed one, and with the base
// if asked for.
func (c *Client) compare(ctx context.Context, sandbox string, o WorkOptions, base bool) (*Work, error) {
	dir, err := filesystem.NewTempDir("work")
	if err != nil {
		return nil, localError(storing, err)
	}
	against := agboxv1.WorkBase_WORK_BASE_UNSPECIFIED
	switch {
	case o.FromStart:
		against = agboxv1.WorkBase_WORK_BASE_FIRST_COPY
	case o.folder:
		against = agboxv1.WorkBase_WORK_BASE_FOLDER
	}
	from, asked := new(Work), false
	in := &agboxv1.CompareWorkspaceRequest{SandboxId: sandbox, All: o.All, NamesOnly: o.NamesOnly, WithBase: base, Against: against, ContentsOnce: true, Stat: o.Lines, Removal: o.Removal, BaseInParts: true, Home: o.branch, Index: o.branch}
	var w *Work
	receive := func() (again bool, err error) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		stream, err := c.files.CompareWorkspace(ctx, in)
		if err != nil {
			return true, err
		}
		w = &Work{dir: dir, named: from.named, lost: from.lost, elsewhere: from.elsewhere, merged: from.merged}
		var looking sync.WaitGroup
		var failed error
		err = w.receive(stream.Recv, o.NamesOnly || o.Lines, func() {
			if asked || o.FromStart || o.folder && !o.merged {
				return
			}
			looking.Go(func() { // while the daemon compares
				if failed = w.findCommits(ctx, o); failed != nil {
					cancel()
				}
			})
		})
		if err != nil {
			cancel()
		}
		if looking.Wait(); errors.Is(failed, errOther) {
			return false, nil
		}
		if err == nil {
			err = failed
		}
		return true, err
	}
	if err = c.repeated(ctx, c.newPatience(), receive); err == nil && len(w.lost)+len(w.elsewhere)+len(w.merged.Has) > 0 {
		from, asked = w, true
		if in.MergedCommits = w.merged.Has; len(w.lost)+len(w.elsewhere) <= maxLost {
			in.LostCommits, in.ElsewhereCommits = w.lost, w.elsewhere
		} else { // nothing that went to a branch counts as brought
			in.Against = agboxv1.WorkBase_WORK_BASE_FOLDER
		}
		err = c.repeated(ctx, c.newPatience(), receive)
	}
	if err != nil {
		dir.Remove()
		return nil, err
	}
	edits.Sort(w.Changes)
	edits.Sort(w.atHome)
	w.split()
	if o.FromStart {
		return w, nil
	}
	// What a killed client has written to the sandbox is no work of the sandbox.
	pushes, err := loadPushes(sandbox)
	if err != nil {
		w.Close()
		return nil, err
	}
	w.Changes, w.landed, w.left = pushes.Sort(w.Changes)
	return w, nil
}

// loadPushes returns what clients of this user have written to a sandbox while they kept a
// folder in step, and may not have ended.
func loadPushes(sandboxID string) (*edits.Pushes, error) {
	install, err := paths.FromEnv()
	if err != nil {
		return nil, err
	}
	pushes, err := edits.LoadPushes(install.Pushes(sandboxID))
	return pushes, localError("Reading what was written to the sandbox", err)
}

// storing is what fails if the disk is full.
const storing = "Storing the sandbox's changes in a temporary folder"

// receive stores what a comparison finds. It calls begun after its first message.
func (w *Work) receive(recv func() (*agboxv1.CompareWorkspaceResponse, error), namesOnly bool, begun func()) (err error) {
	s := &workStore{dir: w.dir}
	defer func() {
		if failed := s.end(); err == nil {
			err = localError(storing, failed)
		}
	}()
	for {
		m, err := recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		switch item := m.GetItem().(type) {
		case *agboxv1.CompareWorkspaceResponse_Base:
			w.from(item.Base)
			begun()
		case *agboxv1.CompareWorkspaceResponse_BaseFile:
			w.baseFile(item.BaseFile)
		case *agboxv1.CompareWorkspaceResponse_BaseFiles:
			for _, f := range item.BaseFiles.GetFiles() {
				w.baseFile(f)
			}
		case *agboxv1.CompareWorkspaceResponse_Difference:
			d := item.Difference
			change := edits.NewChange(w.dir.Path, string(d.GetPath()), workFile(d.GetBefore()), workFile(d.GetAfter()))
			change.Lines = edits.Lines{Added: int(d.GetAdded()), Removed: int(d.GetRemoved()), Binary: d.GetBinary()}
			change.Tracked, change.Retracked = d.GetTracked(), d.GetRetracked()
			w.Changes = append(w.Changes, change)
			if d.GetLost() {
				w.again[change.Path] = true
			}
			if !namesOnly {
				err = localError(storing, s.begin(change))
			}
		case *agboxv1.CompareWorkspaceResponse_Index:
			for _, f := range item.Index.GetUnnamed() {
				w.untracked[string(f.GetPath())] = workFile(f.GetFile())
			}
			for _, f := range item.Index.GetFresh() {
				w.fresh[string(f.GetPath())] = f.GetFile() != nil
			}
			w.indexed = item.Index.GetComplete()
		case *agboxv1.CompareWorkspaceResponse_Home:
			d := item.Home
			w.atHome = append(w.atHome, edits.NewChange(w.dir.Path, string(d.GetPath()), workFile(d.GetBefore()), workFile(d.GetAfter())))
		case *agboxv1.CompareWorkspaceResponse_Repository:
			w.nested = append(w.nested, item.Repository)
		case *agboxv1.CompareWorkspaceResponse_Unshown:
			w.Unshown = append(w.Unshown, UnshownWork{item.Unshown.GetWhat(), item.Unshown.GetAdvice()})
		case *agboxv1.CompareWorkspaceResponse_Before:
			err = s.add(s.before, item.Before)
		case *agboxv1.CompareWorkspaceResponse_After:
			err = s.add(s.after, item.After)
		}
		if err != nil {
			return err
		}
	}
}

// workStore writes the contents of one change after the other, each content once.
type workStore struct {
	dir           *filesystem.TempDir
	before, after *workContent
}

// workContent is a content that may arrive.
type workContent struct {
	name string
	size int64
	// file is there with the first piece. It is called part until it is complete: a daemon
	// without contents_once sends the content of both sides, also if it is the same.
	part string
	file *os.File
	buf  *bufio.Writer
	got  int64
}

// begin prepares for the contents of a change.
func (s *workStore) begin(c edits.Change) error {
	if err := s.end(); err != nil {
		return err
	}
	for _, side := range []struct {
		f    *edits.File
		to   **workContent
		part string
	}{{c.Before, &s.before, ".before.part"}, {c.After, &s.after, ".after.part"}} {
		if side.f == nil || side.f.TooLarge {
			continue
		}
		name := edits.ContentFile(s.dir.Path, side.f)
		*side.to = &workContent{name: name, part: name + side.part, size: side.f.Size}
		if side.f.Size == 0 {
			if err := os.WriteFile((*side.to).name, nil, 0o600); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *workStore) add(to *workContent, data []byte) (err error) {
	if to == nil {
		return &Error{Code: codes.Internal, Message: "agboxd sent a content that belongs to no file."}
	}
	if to.file == nil {
		if err = s.dir.Room(to.size); err == nil {
			to.file, err = os.OpenFile(to.part, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
		}
		if err != nil {
			return localError(storing, err)
		}
		to.buf = bufio.NewWriter(to.file)
	}
	to.got += int64(len(data))
	_, err = to.buf.Write(data)
	return localError(storing, err)
}

// end completes the files of a change.
func (s *workStore) end() error {
	var failed error
	for _, one := range []*workContent{s.before, s.after} {
		if one == nil || one.file == nil {
			continue
		}
		err := errors.Join(one.buf.Flush(), one.file.Close())
		if err == nil && one.got == one.size {
			err = os.Rename(one.file.Name(), one.name)
		}
		failed = errors.Join(failed, err)
	}
	s.before, s.after = nil, nil
	return failed
}
