package client

import (
	"archive/tar"
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

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"google.golang.org/grpc/codes"

	"github.com/agbox/agbox/workspace/edits"
	"github.com/agbox/agbox/workspace/gitignore"
)

// maxNested is how many nested repositories of a workspace are read.
const maxNested = 256

var isReference = regexp.MustCompile(`^refs/[^\x00-\x20]+$`).MatchString

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
	root := w.Target + "/.git"
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
		text, err := c.readGit(ctx, sandboxID, own, maxHead)
		if err == nil {
			own, common, err = gitignore.WorkTree(path.Dir(own), text, func(name string) (string, error) {
				return c.readGit(ctx, sandboxID, name, maxHead)
			})
		}
		if own == "" || err != nil {
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
		case failed == nil && h.Typeflag == tar.TypeReg && isReference(h.Name):
			all[h.Name] = strings.TrimSpace(string(text))
		}
	}
	maps.DeleteFunc(all, func(name, _ string) bool { return gitignore.Fetched(name) || !isReference(name) })
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
