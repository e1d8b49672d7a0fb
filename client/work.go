package client

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"unicode"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"google.golang.org/grpc/codes"

	"github.com/agbox/agbox/internal/filesystem"
	"github.com/agbox/agbox/internal/paths"
	"github.com/agbox/agbox/workspace/edits"
	"github.com/agbox/agbox/workspace/gitignore"
)

// WorkFile is a version of a regular file or a symbolic link of a workspace.
type WorkFile = edits.File

// WorkChange is a file of a workspace that a sandbox has added, changed, removed or renamed.
type WorkChange = edits.Change

// Work is what a sandbox has changed in the workspace that was copied in.
type Work struct {
	// Source is the folder of this machine that was copied, Target its path in the sandbox.
	Source, Target string
	// Changes are sorted by path. Names, links and contents come from the sandbox: they are
	// not to be trusted.
	Changes []WorkChange
	// Large are changes that are not among Changes, because they are too large to be brought, or
	// because some file systems take a part of their path for .git (RefusedName).
	// Of Changes, WorkChange.TooLarge are too large to be shown.
	Large []WorkChange
	// Unshown is work that is there or may be there, and that no change shows, if it was asked for.
	Unshown []UnshownWork
	dir     *filesystem.TempDir
	// shared has the base, if it was asked for.
	shared edits.Shared
	// head is the commit that was copied in; empty if there is none. tip is that of the sandbox
	// since, if it was asked for before, and brought the one up to which all came home.
	head, tip, brought string
	// alone is set if the commits of the sandbox do not come to a branch because head is empty.
	alone bool
	// broughtBy is the commit of the folder's repository by which they came, and branchCommits are
	// those by which work went to branches. Of these, named are those that a reference has, and lost
	// those that none has any more.
	broughtBy                  string
	branchCommits, named, lost []string
	// current are those of branchCommits of which the folder has got no later version.
	// elsewhere are those of named that the branch has not for which the work is.
	current, elsewhere []string
	// merged are those of branchCommits that the folder has by its HEAD.
	merged edits.MergedCommits
	// again are the changes that went to a branch by a lost commit, and lostTip is what brought
	// was if broughtBy is lost.
	again   map[string]bool
	lostTip string
	// untracked are the files of the base that git does not track in the sandbox, if that was asked for,
	// and fresh the new ones: true if one of the name was copied in.
	// indexed is set if the daemon has said which these are.
	untracked map[string]*edits.File
	fresh     map[string]bool
	indexed   bool
	// atHome are changes that came home before, if that was asked for.
	atHome []WorkChange
	// lostFiles are the files of the base that a branch has lost, because git did not track them there,
	// and branched those whose version went to it.
	lostFiles, branched map[string]bool
	// nested are the repositories below the top of the workspace.
	nested []*agboxv1.WorkspaceRepository
	// landed are changes that Sync has made and the base does not have yet, and left is what
	// it has moved away: a client or a daemon was killed.
	landed []WorkChange
	left   []edits.Left
}

// UnshownWork is part of a sentence about work that no change shows, and a sentence that says how to
// see or keep it.
type UnshownWork struct{ What, Advice string }

// Copied returns the commit that was copied in, on top of which commits come home. It is empty if
// there was none.
func (w *Work) Copied() string { return w.head }

// Close removes the contents of the changes.
func (w *Work) Close() {
	if w.dir != nil {
		w.dir.Remove()
	}
}

// WorkOptions say what counts as work.
type WorkOptions struct {
	// Paths limit the work as those of ApplyOptions do.
	Paths []string
	Here  string
	// All includes new files that are ignored.
	All bool
	// NamesOnly gets no contents: the files of the changes do not exist.
	NamesOnly bool
	// Lines gets the number of changed lines instead of the contents.
	Lines bool
	// FromStart compares with what was copied in, also what was brought back since.
	FromStart bool
	// Removal gets what the removal of the sandbox would lose and no change shows: Unshown, and for
	// NewCommits the repositories in ignored folders.
	Removal bool
	// folder compares with what was brought to the folder, and not to a branch. With merged, it has also
	// what went to a branch that the user has merged.
	folder, merged bool
	// on compares with what this branch has of what went to branches. If it does not exist, it will begin
	// at HEAD, or with commits at those of the sandbox, which have nothing of that.
	on      string
	commits bool
	// branch gets what only a branch needs: what came home before, and what the index of git does not
	// name.
	branch bool
}

// Work returns what a sandbox, which may be stopped, has changed in its workspace since it was
// copied in, without what was brought to the folder or to a branch. Close must be called. The error has the reason WORKSPACE_HAS_NO_BASE
// if no workspace was copied in.
func (c *Client) Work(ctx context.Context, sandbox string, o WorkOptions) (*Work, error) {
	w, err := c.compare(ctx, sandbox, o, false)
	if err != nil {
		return nil, err
	}
	all := len(w.Changes)
	if err := w.leaveCopies(ctx); err != nil {
		w.Close()
		return nil, err
	}
	if all > 0 && len(w.Changes)+len(w.Large) == 0 {
		w.brought = cmp.Or(w.brought, w.lostTip) // amended, rebased or merged as one commit: the folder has it all
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

// leaveCopies takes changes from w that were on a branch, and of which the folder has its own copy.
func (w *Work) leaveCopies(ctx context.Context) error {
	w.Changes = slices.DeleteFunc(w.Changes, func(c WorkChange) bool {
		if !w.again[c.Path] || ctx.Err() != nil {
			return false
		}
		there, err := within(ctx, func() (*edits.File, error) { return edits.Describe(w.Source, c.Path) })
		return err == nil && edits.Same(there, c.After)
	})
	return ctx.Err()
}

// folderThere is the error if the folder that was copied in is not there.
func (w *Work) folderThere(ctx context.Context) error {
	_, err := within(ctx, func() (fs.FileInfo, error) { return os.Stat(w.Source) })
	if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR) {
		return ctx.Err()
	}
	return &Error{Code: codes.FailedPrecondition, Message: fmt.Sprintf(
		"The folder %s, which was copied in, is not there. If it was moved, move it back, or make a link to it: `ln -s NEWPLACE %s`. `agbox cp` copies files of the sandbox to any folder.", w.Source, shellWord(w.Source))}
}

// shellWord quotes a path for a shell if it must be.
func shellWord(path string) string {
	if !strings.ContainsFunc(path, func(r rune) bool {
		return !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("-_./=:,+@%", r)
	}) {
		return path
	}
	return "'" + strings.ReplaceAll(path, "'", `'\''`) + "'"
}

// Unresolved returns the files of the folder with markers of conflicts, which ApplyWork with Abort
// removes as long as the sandbox exists.
func (w *Work) Unresolved(ctx context.Context, sandboxID string) ([]string, error) {
	install, err := paths.FromEnv()
	if err != nil {
		return nil, err
	}
	return within(ctx, func() ([]string, error) { return edits.Unresolved(w.Source, install.Folders(), sandboxID) })
}

// RefusedName reports whether work is left out because some file systems take a part of its path
// for .git, which git refuses.
func RefusedName(path string) bool { return gitignore.Inside(path) }

// within returns what ask returns, or the error of ctx if that ends before: a mount whose server is
// gone never answers. Then ask goes on until the file system answers, or until the program ends.
func within[T any](ctx context.Context, ask func() (T, error)) (T, error) {
	type answer struct {
		value T
		err   error
	}
	answers := make(chan answer, 1)
	go func() {
		value, err := ask()
		answers <- answer{value, err}
	}()
	select {
	case a := <-answers:
		return a.value, a.err
	case <-ctx.Done():
		return *new(T), ctx.Err()
	}
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
	receive := func(api agboxv1.FileServiceClient) (again bool, err error) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		stream, err := api.CompareWorkspace(ctx, in)
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
	if err = c.repeated(ctx, receive); err == nil && len(w.lost)+len(w.elsewhere)+len(w.merged.Has) > 0 {
		from, asked = w, true
		if in.MergedCommits = w.merged.Has; len(w.lost)+len(w.elsewhere) <= maxLost {
			in.LostCommits, in.ElsewhereCommits = w.lost, w.elsewhere
		} else { // nothing that went to a branch counts as brought
			in.Against = agboxv1.WorkBase_WORK_BASE_FOLDER
		}
		err = c.repeated(ctx, receive)
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

// split takes what is too large to be brought, or has a name that git refuses, from the changes.
// What may be a half of a renamed file stays with the other one.
func (w *Work) split() {
	large := make(map[int64]bool)
	for _, c := range w.Changes {
		if c.After != nil && c.After.TooLarge {
			large[c.After.Size] = true
		}
	}
	kept := w.Changes[:0]
	for _, c := range w.Changes {
		if gitignore.Inside(c.Path) || c.After != nil && c.After.TooLarge || c.After == nil && c.Before.TooLarge && large[c.Before.Size] {
			w.Large = append(w.Large, c)
		} else {
			kept = append(kept, c)
		}
	}
	w.Changes = kept
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

// baseFile adds a file of the base.
func (w *Work) baseFile(f *agboxv1.AdvancedFile) {
	path := string(f.GetPath())
	if f.GetFile() != nil {
		w.shared.Files[path] = workFile(f.GetFile())
	}
	if f.GetUntracked() {
		w.lostFiles[path] = true
	}
	if f.GetBranched() {
		w.branched[path] = true
	}
}

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

// from notes from where a workspace was copied.
func (w *Work) from(b *agboxv1.WorkspaceBase) {
	w.Source, w.Target, w.head, w.brought = b.GetSource(), b.GetTarget(), b.GetHead(), b.GetBrought()
	w.broughtBy, w.branchCommits, w.current, w.again = b.GetBroughtBy(), b.GetBranchCommits(), b.GetCurrentCommits(), make(map[string]bool)
	w.lostFiles, w.branched, w.untracked, w.fresh = make(map[string]bool), make(map[string]bool), make(map[string]*edits.File), make(map[string]bool)
	if slices.Contains(slices.Concat(w.lost, w.elsewhere), w.broughtBy) {
		w.lostTip, w.brought, w.broughtBy = w.brought, "", ""
	}
	w.shared = edits.Shared{Files: make(map[string]*edits.File), Excludes: b.GetExcludePatterns(), Foreign: b.GetForeign()}
}

func workFile(f *agboxv1.WorkspaceFile) *edits.File {
	if f == nil {
		return nil
	}
	out := &edits.File{Link: f.GetLink(), Executable: f.GetExecutable(), Size: int64(f.GetSize()), TooLarge: f.GetTooLarge(), Modified: f.GetModified()}
	copy(out.Sum[:], f.GetSha256())
	return out
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
