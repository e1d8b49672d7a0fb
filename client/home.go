package client

import (
	"bytes"
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"

	"github.com/agbox/agbox/workspace/edits"
	"github.com/agbox/agbox/workspace/gitignore"
)

const (
	// maxReads is how many objects of a sandbox are read because the folder has other versions than its
	// commit, and maxReadAll the size of all in bytes.
	maxReads   = 1_000
	maxReadAll = 256 << 20
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
		seen[tip], failed = (&homeCheck{c: c}).came(ctx, sandbox, &at, nil)
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
	index, err := c.readOne(ctx, sandboxID, w.Target+"/.git/index", maxIndex)
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
	// tip is the commit, and since has the files that it has newer than earlier ones.
	tip   string
	since map[string]map[string]edits.Newer
	// missing is a file that was not home when it was last looked at.
	missing string
	// looking is a look ahead.
	looking sync.WaitGroup
}

// begin finds the files that the commit tip has newer than what is home while the daemon compares the
// workspace, of which from is the origin. wait must be called.
func (h *homeCheck) begin(ctx context.Context, id string, from *Work, tip string) {
	if tip == "" || tip == from.brought && from.broughtBy == "" {
		return
	}
	at := *from
	at.tip = tip
	h.looking.Go(func() {
		_, _ = h.find(ctx, id, &at) // an error comes again
	})
}

// wait ends the look ahead.
func (h *homeCheck) wait() { h.looking.Wait() }

// home returns the commit with which all came to the folder last. What came to a branch may have left it.
func (w *Work) home() string {
	if w.brought != "" && w.broughtBy == "" {
		return w.brought
	}
	return w.head
}

// headLeft reports whether HEAD of the sandbox has left the commit with which all came to the folder: what
// comes then takes that out of the folder again.
func (w *Work) headLeft() bool { return w.home() != w.head && w.home() != w.tip }

// find returns the files that the commit w.tip has newer than what is home.
func (h *homeCheck) find(ctx context.Context, id string, w *Work) (map[string]edits.Newer, error) {
	if h.tip != w.tip || len(h.since) > 2 {
		h.tip, h.since = w.tip, make(map[string]map[string]edits.Newer)
	}
	since := w.home()
	if files, is := h.since[since]; is {
		return files, nil
	}
	history := h.c.history(ctx, id, w)
	files, err := within(ctx, func() (map[string]edits.Newer, error) { return history.Newer(ctx, w.Source, since) })
	if err == nil {
		h.since[since] = files
	}
	return files, err
}

// came reports whether the commit w.tip is home if the files of w are, except those outside: each file
// that the commit has newer than what is home came as the commit has it, or is in the folder so, or came so
// before. If that cannot be told, the commit is not home. Only the end of ctx is an error.
func (h *homeCheck) came(ctx context.Context, id string, w *Work, outside []string) (bool, error) {
	h.wait()
	newer, err := h.find(ctx, id, w)
	if err != nil {
		return false, ctx.Err()
	}
	changes := make(map[string]WorkChange)
	for _, change := range w.Changes {
		if changes[change.Path] = change; change.From != "" {
			changes[change.From] = WorkChange{}
		}
	}
	for _, name := range outside {
		delete(changes, name)
	}
	b := &baseCheck{homeCheck: h, id: id, w: w}
	names := slices.Collect(maps.Keys(newer))
	if i := slices.Index(names, h.missing); i > 0 {
		names[0], names[i] = names[i], names[0]
	}
	for _, name := range names {
		one := newer[name]
		var is bool
		if change, comes := changes[name]; comes {
			is, err = one.IsAfter(change)
		} else if is, err = w.has(ctx, name, one); err == nil && !is && !slices.Contains(outside, name) {
			is, err = b.has(ctx, name, one)
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
	is, err := within(ctx, func() (bool, error) {
		f, content, err := edits.ReadFile(w.Source, name)
		if err != nil {
			return false, nil //nolint:nilerr // it is not there, or something else is
		}
		return one.Is(f, bytes.NewReader(content))
	})
	return is, err
}

// baseCheck tells which files the base has as a commit has them: they came before, and the folder has got
// another version since.
type baseCheck struct {
	*homeCheck
	id    string
	w     *Work
	files map[string]*WorkFile
	reads int
	size  int
}

func (b *baseCheck) has(ctx context.Context, name string, one edits.Newer) (bool, error) {
	if b.files == nil {
		b.files = b.w.shared.Files
	}
	if len(b.files) == 0 { // the base was not asked for
		w, err := b.c.compare(ctx, b.id, WorkOptions{NamesOnly: true}, true)
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
	is, read, err := b.c.history(ctx, b.id, b.w).Stored(ctx, b.w.Source, one, f)
	b.size += read
	return is, err
}
