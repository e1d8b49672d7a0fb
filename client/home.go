package client

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/agbox/agbox/workspace/edits"
	"github.com/agbox/agbox/workspace/gitignore"
)

const (
	// maxReads is how many objects of a sandbox are read because the folder has other versions than its
	// commit, and maxReadAll the size of all in bytes.
	maxReads   = 1_000
	maxReadAll = 256 << 20
	// lookWithin bounds the look whether the files of a commit came before it was made: to read objects of a
	// sandbox that is stopped takes 0.1 s each.
	lookWithin = 5 * time.Second
)

// NewCommits returns the newest commit of HEAD and of each other branch of the repository in a
// workspace, HEAD first, then of its other references except what it fetched, and then its stash,
// and the same of the repositories nested in it. w is what Work has returned of it. It leaves out
// what the folder's repositories have, what was copied in, what another one has named, and up to
// which commit ApplyWork has brought all commits or all work to a branch, or to the folder while
// HEAD is there. If w has no changes, that is also a HEAD whose files had come before it was made.
// An error comes with those that were found.
func (c *Client) NewCommits(ctx context.Context, sandbox string, w *Work) ([]BranchCommit, error) {
	tip, failed := c.tip(ctx, sandbox, w)
	others, err := c.otherCommits(ctx, sandbox, w)
	seen := map[string]bool{"": true, w.head: true}
	if w.broughtBy != "" { // what came to the folder may have left it since, unless HEAD is there
		seen[w.brought] = true
	}
	switch {
	case tip == "" || failed != nil:
	case tip == w.brought:
		var left bool
		left, failed = c.leftOut(ctx, sandbox, w, tip)
		seen[tip] = !left
	case len(w.Changes)+len(w.Large) == 0: // they may have been made after their files had come
		at := *w
		at.tip = tip
		look, cancel := context.WithTimeout(ctx, lookWithin)
		defer cancel()
		seen[tip], _ = (&homeCheck{c: c}).came(look, sandbox, &at, c.baseOf(look, sandbox, w.Source, WorkOptions{}), nil)
		failed = ctx.Err()
	}
	var all []BranchCommit
	for _, one := range append([]BranchCommit{{Commit: tip}}, others...) {
		if !seen[one.Commit] {
			seen[one.Commit] = true
			all = append(all, one)
		}
	}
	if err = cmp.Or(failed, err); len(all) == 0 {
		return nil, err
	}
	had, failed := within(ctx, func() (map[string]bool, error) { return w.known(ctx, all) })
	if failed != nil {
		return all, failed
	}
	return slices.DeleteFunc(all, func(one BranchCommit) bool { return had[one.Commit] }), err
}

// leftOut reports whether commits have files that were excluded from the copy, and that the commit
// that was copied in does not have: they come with commits only, and are in no other work. They may
// have some if the index does not tell.
func (c *Client) leftOut(ctx context.Context, sandboxID string, w *Work, tip string) (bool, error) {
	if tip == "" || len(w.shared.Excludes) == 0 {
		return false, nil
	}
	patterns, err := gitignore.NewTree(w.shared.Excludes, false)
	if err != nil {
		return false, err
	}
	index, err := c.readOne(ctx, sandboxID, w.git().own+"/index", maxIndex)
	if isNoFile(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	tracked, err := gitignore.Tracked([]byte(index), len(tip)/2)
	if err != nil {
		return true, nil //nolint:nilerr // what the index does not tell may be left out
	}
	names := slices.DeleteFunc(tracked, func(name string) bool { return !patterns.Excludes(name) })
	if len(names) == 0 {
		return false, nil
	}
	copied, err := within(ctx, func() (map[string]bool, error) { return edits.FilesOf(ctx, w.Source, w.head) })
	if err != nil {
		copied = nil // the repository is gone, or has another history now
	}
	return slices.ContainsFunc(names, func(name string) bool { return !copied[name] }), ctx.Err()
}

// homeCheck tells whether commits of a sandbox are home. It is for one goroutine.
type homeCheck struct {
	c *Client
	// tip is the commit that was looked at last, and since has the files that it has newer than earlier ones.
	tip   string
	since map[string]newerFiles
	// missing is a file of it that was not home.
	missing string
}

type newerFiles struct {
	files map[string]edits.Newer
	err   error
}

// newer returns the files that the commit w.tip has newer than what is home.
func (h *homeCheck) newer(ctx context.Context, id string, w *Work) (map[string]edits.Newer, error) {
	if h.tip != w.tip || len(h.since) > 2 {
		h.tip, h.since = w.tip, make(map[string]newerFiles)
	}
	since := w.head
	if w.brought != "" && w.broughtBy == "" { // what came to a branch may have left it
		since = w.brought
	}
	if found, is := h.since[since]; is {
		return found.files, found.err
	}
	history := h.c.history(ctx, id, w)
	files, err := within(ctx, func() (map[string]edits.Newer, error) { return history.Newer(ctx, w.Source, since) })
	if err == nil || errors.Is(err, edits.ErrUnread) { // not because the daemon is away
		h.since[since] = newerFiles{files, err}
	}
	return files, err
}

// came reports whether the commit w.tip is home if the files of w are, except those outside: each file
// that the commit has newer than what is home came as the commit has it, or is in the folder so, or base
// has it so, because it came before. If that cannot be told, the commit is not home. Only the end of ctx is
// an error.
func (h *homeCheck) came(ctx context.Context, id string, w *Work, base *base, outside []string) (bool, error) {
	newer, err := h.newer(ctx, id, w)
	if err != nil {
		return false, ctx.Err()
	}
	changes := make(map[string]WorkChange)
	for _, change := range w.Changes {
		if changes[change.Path] = change; change.From != "" {
			changes[change.From] = WorkChange{}
		}
	}
	left := make(map[string]bool, len(outside))
	for _, name := range outside {
		delete(changes, name)
		left[name] = true
	}
	names := slices.Collect(maps.Keys(newer))
	if i := slices.Index(names, h.missing); i > 0 { // it is missing most likely
		names[0], names[i] = names[i], names[0]
	}
	for _, name := range names {
		one := newer[name]
		var is bool
		if change, comes := changes[name]; comes {
			is, err = one.IsAfter(change)
		} else if is, err = w.has(ctx, name, one); err == nil && !is && !left[name] {
			is, err = base.has(ctx, h.c.history(ctx, id, w), name, one)
		}
		if err != nil || !is {
			h.missing = name
			return false, ctx.Err()
		}
	}
	return true, ctx.Err()
}

// has reports whether the folder has a file as a commit has it.
func (w *Work) has(ctx context.Context, name string, one edits.Newer) (bool, error) {
	return within(ctx, func() (bool, error) {
		f, content, err := edits.ReadFile(w.Source, name)
		if err != nil {
			return false, nil //nolint:nilerr // it is not there, or something else is
		}
		return one.Is(f, bytes.NewReader(content))
	})
}

// base has what came before. It is for one look.
type base struct {
	// folder is the one that was copied. files are read when they are needed first.
	folder string
	files  map[string]*WorkFile
	read   func() (*Work, error)
	// reads is how many objects were read for it, and size that of all in bytes.
	reads, size int
}

// baseOf is the base that a comparison with o has.
func (c *Client) baseOf(ctx context.Context, id, folder string, o WorkOptions) *base {
	o.NamesOnly = true
	return &base{folder: folder, read: func() (*Work, error) { return c.compare(ctx, id, o, true) }}
}

// has reports whether the base has a file as a commit of a sandbox has it.
func (b *base) has(ctx context.Context, h *edits.History, name string, one edits.Newer) (bool, error) {
	if b.files == nil {
		w, err := b.read()
		if err != nil {
			return false, err
		}
		defer w.Close()
		b.files = w.shared.Files
	}
	f := b.files[name]
	if b.reads++; f == nil || b.reads > maxReads || b.size > maxReadAll {
		return false, nil
	}
	is, read, err := h.Stored(ctx, b.folder, one, f)
	b.size += read
	return is, err
}
