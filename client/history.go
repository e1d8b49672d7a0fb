package client

import (
	"archive/tar"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"

	"google.golang.org/grpc/codes"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/workspace/edits"
	"github.com/agbox/agbox/workspace/gitignore"
)

const (
	// maxHead is the maximum size of a file with one reference of git, maxPackedRefs that of a
	// file with many, and maxIndex that of an index, in bytes.
	maxHead       = 4 << 10
	maxPackedRefs = 16 << 20
	maxIndex      = 64 << 20
)

// errTooLarge is the error for a file of git that a client does not read.
var errTooLarge = &Error{Code: codes.FailedPrecondition, Message: "A file of git in the sandbox, with references or its index, is too large."}

// errReferences is the error for references that a client does not read.
var errReferences = &Error{Code: codes.FailedPrecondition, Message: "The references of git in the sandbox are not the files that agbox reads."}

// origin returns from where a workspace was copied, without what has changed.
func (c *Client) origin(ctx context.Context, sandboxID string) (w *Work, err error) {
	err = c.repeated(ctx, c.newPatience(), func() (again bool, err error) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel() // a daemon without base_only compares
		stream, err := c.files.CompareWorkspace(ctx, &agboxv1.CompareWorkspaceRequest{SandboxId: sandboxID, BaseOnly: true, NamesOnly: true})
		if err != nil {
			return true, err
		}
		m, err := stream.Recv()
		if err != nil {
			return true, err
		}
		w = new(Work)
		w.from(m.GetBase())
		return true, nil
	})
	return w, err
}

// BranchCommit is the newest commit of a branch or another reference of a sandbox, or an entry of
// its stash.
type BranchCommit struct {
	// Branch is the short name. It comes from the sandbox, and is empty for what HEAD names and
	// for the stash. Commit may be the object of an annotated tag.
	Branch, Commit string
	// Stash is set for an entry of the stash, and Other for a tag or another reference that is no
	// branch: Branch is then its name below refs.
	Stash, Other bool
	// Repository is the folder of a nested repository, relative to the workspace. It comes from the
	// sandbox. It is empty for the repository of the workspace.
	Repository string
}

// findGit finds the folders of git of a workspace, also if its .git is a file that names them (git init
// --separate-git-dir), and returns the text of HEAD; "" if there is no repository.
func (c *Client) findGit(ctx context.Context, sandboxID string, w *Work) (head string, err error) {
	w.folders = gitFolders{}
	file := w.Target + "/.git"
	head, err = c.readGit(ctx, sandboxID, file+"/HEAD", maxHead)
	if head != "" || err != nil {
		return head, err
	}
	own, common, err := c.workTree(ctx, sandboxID, file)
	if own == "" || err != nil {
		return "", err
	}
	w.folders = gitFolders{own, common}
	return c.readGit(ctx, sandboxID, own+"/HEAD", maxHead)
}

// workTree returns the folders of git that a file .git names; none if it names none, or is not there.
func (c *Client) workTree(ctx context.Context, sandboxID, file string) (own, common string, err error) {
	text, err := c.readGit(ctx, sandboxID, file, maxHead)
	if errors.Is(err, errTooLarge) { // it may be a folder
		err = errReferences
	}
	if err != nil {
		return "", "", err
	}
	return gitignore.WorkTree(path.Dir(file), text, func(name string) (string, error) {
		return c.readGit(ctx, sandboxID, name, maxHead)
	})
}

// isNoFile reports whether an error says that there is no such file.
func isNoFile(err error) bool {
	own := new(Error)
	return errors.As(err, &own) && (own.Reason == agboxv1.ErrorReason_FILE_NOT_FOUND.String() || own.Reason == agboxv1.ErrorReason_NOT_A_DIRECTORY.String())
}

// tip returns the commit that HEAD of the repository in a workspace names; "" if that is no other
// than was copied in. It must come before the comparison: what changes in between is then work
// that is not committed.
func (c *Client) tip(ctx context.Context, sandboxID string, w *Work) (string, error) {
	tip, err := gitignore.HeadCommit(func(name string) (string, error) {
		switch name {
		case "HEAD":
			return c.findGit(ctx, sandboxID, w)
		case "packed-refs":
			return c.readGit(ctx, sandboxID, w.git().common+"/"+name, maxPackedRefs)
		}
		return c.readGit(ctx, sandboxID, w.git().common+"/"+name, maxHead)
	})
	switch {
	case errors.Is(err, gitignore.ErrReferences):
		return "", errReferences
	case tip == w.head || err != nil:
		return "", err
	}
	return tip, nil
}

// history returns the repository in a workspace.
func (c *Client) history(ctx context.Context, sandboxID string, w *Work) *edits.History {
	return &edits.History{Copied: w.head, Tip: w.tip, Base: w.shared.Files, Brought: w.branched, Objects: func(to io.Writer) error {
		return c.ReadArchive(ctx, sandboxID, w.git().common+"/objects", "objects", to, CopyOptions{})
	}, Read: func(name string, most int64) ([]byte, error) {
		at := w.Target + "/" + name
		if object, is := strings.CutPrefix(name, ".git/"); is {
			at = w.git().common + "/" + object
		}
		text, err := c.readOne(ctx, sandboxID, at, int(most))
		if own := new(Error); ctx.Err() == nil && errors.As(err, &own) && own.Code != codes.Unavailable {
			return nil, nil // something else is there meanwhile
		}
		return []byte(text), err
	}}
}

// copied completes a history by what was copied in, and by what w does not show of the workspace.
func (c *Client) copied(ctx context.Context, sandboxID string, w *Work, h *edits.History) error {
	all, err := c.compare(ctx, sandboxID, WorkOptions{All: true, NamesOnly: true, FromStart: true}, true)
	if err != nil {
		return err
	}
	defer all.Close()
	w.atHome = w.broughtHome(all)
	h.Copy, h.Apart = all.shared.Files, make(map[string]bool)
	if excluded, err := gitignore.NewTree(w.shared.Excludes, false); err == nil {
		h.Excluded = excluded.Excludes
	}
	h.Home = func() (map[string]*edits.File, error) {
		home, err := c.compare(ctx, sandboxID, WorkOptions{NamesOnly: true, folder: true}, true)
		if err != nil {
			return nil, err
		}
		defer home.Close()
		return home.shared.Files, nil
	}
	for name := range h.Copy {
		h.Apart[name] = true
	}
	for name := range w.fresh {
		w.fresh[name] = h.Copy[name] != nil
	}
	for _, c := range slices.Concat(all.Changes, all.Large) {
		h.Apart[c.Path] = c.After != nil
	}
	maps.DeleteFunc(h.Apart, func(name string, _ bool) bool { return w.shared.Files[name] != nil })
	for _, c := range w.Changes {
		delete(h.Apart, c.Path)
	}
	return nil
}

// broughtHome returns the changes since the copy that are not in w, because they came home before. all
// is the comparison with the copy.
func (w *Work) broughtHome(all *Work) (home []WorkChange) {
	pending := make(map[string]bool)
	for _, c := range slices.Concat(w.Changes, w.Large) {
		pending[c.Path] = true
	}
	for _, c := range all.Changes {
		if !pending[c.Path] && edits.Same(w.shared.Files[c.Path], c.After) {
			home = append(home, c)
		}
	}
	return home
}

// findUntracked finds the files of the base that a workspace has as they were copied in, or changed, and
// the new ones, that its index of git does not name; none if it has no index.
func (c *Client) findUntracked(ctx context.Context, sandboxID string, w *Work) error {
	if w.head == "" {
		return nil
	}
	if !w.indexed {
		text, err := c.readOne(ctx, sandboxID, w.git().own+"/index", maxIndex)
		if isNoFile(err) {
			return nil
		}
		var names []string
		if err == nil {
			names, err = gitignore.Tracked([]byte(text), len(w.head)/2)
		}
		if own := new(Error); ctx.Err() != nil || errors.As(err, &own) && own.Code == codes.Unavailable {
			return cmp.Or(ctx.Err(), err)
		}
		if err != nil {
			return c.unreadIndex(ctx, sandboxID, w, err)
		}
		w.untracked = maps.Clone(w.shared.Files)
		for _, change := range slices.Concat(w.Changes, w.Large) {
			if change.Before == nil {
				w.fresh[change.Path] = false
			}
		}
		for _, name := range names {
			delete(w.untracked, name)
			delete(w.fresh, name)
		}
	}
	for _, change := range slices.Concat(w.Changes, w.Large) {
		if change.After == nil {
			delete(w.untracked, change.Path)
		}
	}
	return nil
}

// unreadIndex is the error for an index that cannot be read, with what helps.
func (c *Client) unreadIndex(ctx context.Context, sandboxID string, w *Work, err error) error {
	remedy := gitignore.Remedy(err)
	if errors.Is(err, errTooLarge) {
		err = fmt.Errorf("it is larger than %d MiB", maxIndex>>20)
		var head bytes.Buffer
		if c.ReadFile(ctx, sandboxID, w.git().own+"/index", 0, 8, &head, FileOptions{}) == nil && !bytes.HasSuffix(head.Bytes(), []byte{4}) {
			remedy = gitignore.RewriteIndex // which makes it smaller
		}
	}
	if remedy != "" {
		remedy = fmt.Sprintf("In %s of the sandbox, `%s` writes one that can be read. ", w.Target, remedy)
	}
	if errors.Is(err, gitignore.ErrDamaged) {
		remedy += "Git then tracks what its last commit has, also what it had stopped tracking. "
	}
	return &Error{Code: codes.FailedPrecondition, Message: fmt.Sprintf(
		"The index of git in the sandbox cannot be read (%v), so a branch could get files that git does not track there. %s`agbox apply` without --branch brings the work to the folder.", err, remedy)}
}

// readOne reads a regular file of a sandbox up to a size.
func (c *Client) readOne(ctx context.Context, sandboxID, path string, most int) (string, error) {
	archive := &atMost{left: most + 8<<10}
	if err := c.ReadArchive(ctx, sandboxID, path, "f", archive, CopyOptions{}); err != nil {
		return "", err
	}
	files := tar.NewReader(&archive.Buffer)
	h, err := files.Next()
	if err != nil || h.Typeflag == tar.TypeDir {
		return "", nil //nolint:nilerr // an empty archive
	}
	if h.Typeflag != tar.TypeReg {
		return "", errReferences
	}
	if h.Size > int64(most) {
		return "", errTooLarge
	}
	text, err := io.ReadAll(io.LimitReader(files, int64(most)))
	return string(text), err
}

// atMost is a buffer with a bound.
type atMost struct {
	bytes.Buffer
	left int
}

func (b *atMost) Write(p []byte) (int, error) {
	if b.left -= len(p); b.left < 0 {
		return 0, errTooLarge
	}
	return b.Buffer.Write(p)
}

// maxNested is how many nested repositories of a workspace are read.
const maxNested = 256

var isReference = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^refs/[^\x00-\x20]+$`) })

// known returns what the folder's repositories have, of which one may be nested as in the sandbox.
// Of the stash they have also what they have not removed yet: references name only the newest entry.
func (w *Work) known(ctx context.Context, all []BranchCommit) (map[string]bool, error) {
	names, stash := make(map[string][]string), make(map[string]bool)
	for _, one := range all {
		names[""] = append(names[""], one.Commit)
		if one.Repository != "" {
			names[one.Repository] = append(names[one.Repository], one.Commit)
		}
		stash[one.Commit] = one.Stash
	}
	had := make(map[string]bool)
	for dir, commits := range names {
		folder := filepath.Join(w.Source, dir)
		named, err := edits.HasCommits(ctx, folder, commits)
		if err != nil {
			continue // without a repository it has none
		}
		maps.Copy(had, named)
		if aside := slices.DeleteFunc(slices.Clone(commits), func(one string) bool { return !stash[one] }); len(aside) > 0 {
			stored, _ := edits.StoresCommits(ctx, folder, aside) // else it has none
			maps.Copy(had, stored)
		}
	}
	return had, ctx.Err()
}

// otherCommits returns what NewCommits looks at, except HEAD of the repository in a workspace. An
// error comes with those that were found.
func (c *Client) otherCommits(ctx context.Context, sandboxID string, w *Work) ([]BranchCommit, error) {
	root := w.git().common
	refs, failed := c.references(ctx, sandboxID, root)
	all, err := c.commitsOf(ctx, sandboxID, root, refs)
	failed = cmp.Or(failed, err)
	read := map[string]map[string]string{root: refs}
	for i, n := range w.nested {
		if i == maxNested {
			return all, cmp.Or(failed, error(&Error{Code: codes.FailedPrecondition, Message: fmt.Sprintf("The workspace has more than %d nested repositories of git.", maxNested)}))
		}
		found, err := c.nestedCommits(ctx, sandboxID, w.Target, n, read)
		for _, one := range found {
			one.Repository = string(n.GetPath())
			all = append(all, one)
		}
		failed = cmp.Or(failed, err)
	}
	return all, failed
}

// nestedCommits returns what HEAD of a nested repository names, and what its references do unless
// they were read before, as those of another work tree.
func (c *Client) nestedCommits(ctx context.Context, sandboxID, target string, n *agboxv1.WorkspaceRepository, read map[string]map[string]string) (all []BranchCommit, failed error) {
	own := path.Join(target, string(n.GetPath()), ".git")
	common := own
	if n.GetFile() {
		var err error
		if own, common, err = c.workTree(ctx, sandboxID, own); own == "" || err != nil {
			return nil, cmp.Or(err, error(errReferences))
		}
	}
	refs, known := read[common]
	if !known {
		var err error
		refs, failed = c.references(ctx, sandboxID, common)
		all, err = c.commitsOf(ctx, sandboxID, common, refs)
		failed, read[common] = cmp.Or(failed, err), refs
	}
	tip, err := gitignore.HeadCommit(func(name string) (string, error) {
		if name == "HEAD" {
			return c.readGit(ctx, sandboxID, own+"/"+name, maxHead)
		}
		return refs[name], nil
	})
	if errors.Is(err, gitignore.ErrReferences) {
		err = errReferences
	}
	return append([]BranchCommit{{Commit: tip}}, all...), cmp.Or(failed, err)
}

// references returns the texts of the references in a folder .git of a sandbox, except of what was
// fetched. An error comes with those that were found.
func (c *Client) references(ctx context.Context, sandboxID, dir string) (map[string]string, error) {
	text, err := c.readGit(ctx, sandboxID, dir+"/packed-refs", maxPackedRefs)
	if err != nil {
		return nil, err
	}
	all := gitignore.Packed(text)
	archive := &atMost{left: maxPackedRefs}
	if err := c.ReadArchive(ctx, sandboxID, dir+"/refs", "refs", archive, CopyOptions{}); err != nil && !isNoFile(err) {
		return all, err
	}
	for files := tar.NewReader(&archive.Buffer); ; {
		h, failed := files.Next()
		if failed != nil {
			break // the end, or an archive that ends early: what is in it counts
		}
		text, failed := io.ReadAll(io.LimitReader(files, maxHead))
		switch {
		case h.Typeflag == tar.TypeSymlink && !gitignore.Fetched(h.Name):
			delete(all, h.Name)
			err = errReferences
		case failed == nil && h.Typeflag == tar.TypeReg && isReference().MatchString(h.Name):
			all[h.Name] = strings.TrimSpace(string(text))
		}
	}
	maps.DeleteFunc(all, func(name, _ string) bool { return gitignore.Fetched(name) || !isReference().MatchString(name) })
	return all, err
}

// commitsOf returns the branches of a repository, sorted, its other references, and then its stash,
// newest first. refs are the references in its folder .git.
func (c *Client) commitsOf(ctx context.Context, sandboxID, dir string, refs map[string]string) (branches []BranchCommit, err error) {
	const stash = "refs/stash"
	var others []BranchCommit
	for _, name := range slices.Sorted(maps.Keys(refs)) {
		short, branch := strings.CutPrefix(name, "refs/heads/")
		switch {
		case name == stash || !gitignore.IsCommit(refs[name]):
		case branch:
			branches = append(branches, BranchCommit{Branch: short, Commit: refs[name]})
		default:
			others = append(others, BranchCommit{Branch: strings.TrimPrefix(name, "refs/"), Commit: refs[name], Other: true})
		}
	}
	all := append(branches, others...)
	if refs[stash] == "" {
		return all, nil
	}
	entries, err := c.stash(ctx, sandboxID, dir+"/logs/"+stash, refs[stash])
	return append(all, entries...), err
}

// stash returns the entries of a stash: its reference is the newest one, and the others are in the
// log of that.
func (c *Client) stash(ctx context.Context, sandboxID, log, newest string) ([]BranchCommit, error) {
	text, err := c.readGit(ctx, sandboxID, log, maxPackedRefs)
	all := []BranchCommit{{Commit: newest, Stash: true}}
	for _, line := range slices.Backward(strings.Split(text, "\n")) {
		if words := strings.Fields(line); len(words) > 1 && words[1] != newest {
			all = append(all, BranchCommit{Commit: words[1], Stash: true})
		}
	}
	if slices.ContainsFunc(all, func(one BranchCommit) bool { return !gitignore.IsCommit(one.Commit) }) {
		return nil, errReferences
	}
	return all, err
}

// readGit reads a file of git of a sandbox; "" if there is none.
func (c *Client) readGit(ctx context.Context, sandboxID, name string, most int) (string, error) {
	text, err := c.readOne(ctx, sandboxID, name, most)
	if isNoFile(err) {
		return "", nil
	}
	return strings.TrimSpace(text), err
}
