package client

import (
	"bytes"
	"context"
	"errors"
	"maps"

	"github.com/agbox/agbox/workspace/edits"
)

// newerFiles are the files that the commit tip of a sandbox has newer than earlier ones.
type newerFiles struct {
	tip   string
	since map[string]foundNewer
}

type foundNewer struct {
	files map[string]edits.Newer
	err   error
}

// of finds the files that w.tip has newer than an earlier commit. It remembers those of the last tip.
func (n *newerFiles) of(ctx context.Context, w *Work, h *edits.History, since string) (map[string]edits.Newer, error) {
	if n.tip != w.tip || len(n.since) > 2 {
		*n = newerFiles{w.tip, make(map[string]foundNewer)}
	}
	if found, is := n.since[since]; is {
		return found.files, found.err
	}
	files, err := within(ctx, func() (map[string]edits.Newer, error) { return h.Newer(ctx, w.Source, since) })
	if err == nil || errors.Is(err, edits.ErrUnread) { // not because the daemon is away
		n.since[since] = foundNewer{files, err}
	}
	return files, err
}

// filesCame reports whether the commit w.tip is home if all files of w are: each file that the commit has
// newer than what is home came as the commit has it, or is in the folder so. If that cannot be told, the
// commit is not home. Only the end of ctx is an error.
func (c *Client) filesCame(ctx context.Context, id string, w *Work, known *newerFiles) (bool, error) {
	since := w.head
	if w.brought != "" && w.broughtBy == "" { // what came to a branch may have left it
		since = w.brought
	}
	files, err := known.of(ctx, w, c.history(ctx, id, w), since)
	if err != nil {
		return false, ctx.Err()
	}
	newer := maps.Clone(files)
	for _, change := range w.Changes {
		one, is := newer[change.Path]
		if !is {
			continue
		}
		if is, err = one.IsAfter(change); !is || err != nil {
			return false, ctx.Err()
		}
		delete(newer, change.Path)
	}
	maps.DeleteFunc(newer, func(name string, one edits.Newer) bool {
		is, err := within(ctx, func() (bool, error) {
			f, content, err := edits.ReadFile(w.Source, name)
			if err != nil {
				return false, err
			}
			return one.Is(f, bytes.NewReader(content))
		})
		return is && err == nil
	})
	if len(newer) == 0 {
		return ctx.Err() == nil, ctx.Err()
	}
	came, err := c.cameBefore(ctx, id, w, newer)
	if err != nil {
		return false, ctx.Err()
	}
	return came, nil
}

// cameBefore reports whether the base has files as a commit has them: they came before, and the folder has
// got another version since. No change of w is about them.
func (c *Client) cameBefore(ctx context.Context, id string, w *Work, newer map[string]edits.Newer) (bool, error) {
	if len(newer) > maxReads {
		return false, nil
	}
	if len(w.shared.Files) == 0 { // the base was not asked for
		var err error
		if w, err = c.compare(ctx, id, WorkOptions{NamesOnly: true}, true); err != nil {
			return false, err
		}
		defer w.Close()
	}
	for name, one := range newer {
		f := w.shared.Files[name]
		if f == nil {
			return false, nil
		}
		content, err := c.readVersion(ctx, id, w.Target+"/"+name, f)
		if err != nil {
			return false, err
		}
		if is, err := one.Is(f, bytes.NewReader(content)); !is || err != nil {
			return false, err
		}
	}
	return true, nil
}

// maxReads is how many files of a sandbox are read because the folder has other versions.
const maxReads = 1_000

// readVersion reads a version of a regular file of a sandbox.
func (c *Client) readVersion(ctx context.Context, id, path string, f *WorkFile) ([]byte, error) {
	text, err := c.readOne(ctx, id, path, maxIndex)
	if err == nil && !f.Is([]byte(text)) {
		err = edits.ErrUnread
	}
	return []byte(text), err
}
