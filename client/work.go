package client

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"syscall"
	"unicode"

	"google.golang.org/grpc/codes"

	"github.com/agbox/agbox/internal/filesystem"
	"github.com/agbox/agbox/internal/paths"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
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
	// folders are those of git in the sandbox, if tip was asked for and .git is a file that names them.
	folders gitFolders
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
	// again are the changes that went to a branch by a lost commit.
	again map[string]bool
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

// gitFolders are the folder that git keeps for a work tree, and that of its references and objects,
// which several work trees may share.
type gitFolders struct{ own, common string }

// git returns the folders of git of the workspace, as tip has found them.
func (w *Work) git() gitFolders {
	if w.folders.own == "" {
		return gitFolders{w.Target + "/.git", w.Target + "/.git"}
	}
	return w.folders
}

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

// from notes from where a workspace was copied.
func (w *Work) from(b *agboxv1.WorkspaceBase) {
	w.Source, w.Target, w.head, w.brought = b.GetSource(), b.GetTarget(), b.GetHead(), b.GetBrought()
	w.broughtBy, w.branchCommits, w.current, w.again = b.GetBroughtBy(), b.GetBranchCommits(), b.GetCurrentCommits(), make(map[string]bool)
	w.lostFiles, w.branched, w.untracked, w.fresh = make(map[string]bool), make(map[string]bool), make(map[string]*edits.File), make(map[string]bool)
	if slices.Contains(slices.Concat(w.lost, w.elsewhere), w.broughtBy) {
		w.brought, w.broughtBy = "", ""
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
