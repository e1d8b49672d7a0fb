package review

import (
	"archive/tar"
	"bytes"
	"compress/zlib"
	"context"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
	"time"

	guestv1 "github.com/agbox/agbox/proto/guest/v1"

	"github.com/agbox/agbox/internal/archive"
	"github.com/agbox/agbox/internal/gitignore"
)

// A work tree of git in an ignored folder (git worktree add) is no repository of its own: what is
// committed in it is in the references of the workspace, and the rest is in ignored files only.

// maxTreeIndex is the maximum size of the index of a work tree, and maxCommit how much of a commit is
// read, which begins with its tree, in bytes.
const (
	maxTreeIndex = 16 << 20
	maxCommit    = 1 << 10
)

// workTrees says which work trees of git in ignored folders may have what is not committed. open is
// nil if the sandbox runs.
func (c *comparison) workTrees(ctx context.Context, open Archive) error {
	for _, dir := range c.ignoredTrees {
		clean, err := c.clean(ctx, dir, open)
		if err == nil && !clean {
			err = c.unshown(fmt.Sprintf("what is not committed in the ignored work tree %q", dir),
				fmt.Sprintf("`agbox exec %s -- git -C %s status` shows it, and what is committed there comes as a branch.", c.sandboxID, shellWord(dir)))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// clean reports whether a folder is no work tree of another repository, or is as the commit that its
// HEAD names. It is not if that cannot be told.
func (c *comparison) clean(ctx context.Context, dir string, open Archive) (bool, error) {
	s := &references{review: c.review, sandboxID: c.sandboxID, open: open, left: maxTreeIndex + maxReferences}
	own, common, err := s.folders(ctx, path.Join(c.base.GetTarget(), dir))
	if err != nil || own == common {
		return err == nil, knownDirty(err)
	}
	tree, err := s.tree(ctx, own, common)
	if err != nil || tree == "" {
		return tree == "" && err == nil, knownDirty(err)
	}
	text, written, err := s.raw(ctx, own+"/index", maxTreeIndex)
	if err != nil {
		return false, knownDirty(err)
	}
	w := &workTree{entries: make(map[string]gitignore.IndexEntry), written: written, clean: true}
	same, err := gitignore.ReadIndex([]byte(text), len(tree)/2, func(e gitignore.IndexEntry) {
		if e.Stage != 0 {
			w.clean = false
		}
		w.entries[e.Path] = e
	})
	if err != nil || !w.clean || hex.EncodeToString(same) != tree {
		return false, nil
	}
	if err := c.inTree(ctx, dir, open, w); err != nil {
		return false, err
	}
	for _, e := range w.entries {
		w.clean = w.clean && (e.Absent || !e.File())
	}
	return w.clean, nil
}

// knownDirty returns nil for what cannot be read: it counts as work.
func knownDirty(err error) error {
	if errors.Is(err, errUnbrought) {
		return nil
	}
	return err
}

// tree returns the tree of the commit that HEAD of a work tree names: empty if there is no HEAD, so
// that git does not take it for one. It is errUnbrought if it cannot be read, as of a commit that git
// has packed.
func (s *references) tree(ctx context.Context, own, common string) (string, error) {
	head, is, err := s.text(ctx, own+"/HEAD", maxRef)
	if err != nil || !is {
		return "", err
	}
	commit, err := s.resolve(ctx, head, common)
	if commit == "" || err != nil {
		return "", errors.Join(err, errUnbrought)
	}
	tree := ""
	err = s.each(ctx, common+"/objects/"+commit[:2]+"/"+commit[2:], func(_ *tar.Header, content io.Reader) error {
		plain, err := zlib.NewReader(content)
		if err != nil {
			return io.EOF
		}
		text, _ := io.ReadAll(io.LimitReader(plain, maxCommit)) // what is damaged has no tree
		_, text, _ = bytes.Cut(text, []byte{0})
		line, _, _ := bytes.Cut(text, []byte{'\n'})
		if name, is := strings.CutPrefix(string(line), "tree "); is && len(name) == len(commit) {
			tree = name
		}
		return io.EOF
	})
	if err == nil && tree == "" {
		err = errUnbrought
	}
	return tree, err
}

// workTree compares the files of a work tree with its index.
type workTree struct {
	// entries are those that were not seen yet, and written is when the index was written.
	entries map[string]gitignore.IndexEntry
	written time.Time
	clean   bool
}

// see compares a file. It may have no content if it did not change since the index was written.
func (w *workTree) see(name string, h *tar.Header, content io.Reader) error {
	e, known := w.entries[name]
	delete(w.entries, name)
	for up := path.Dir(name); !known && up != "."; up = path.Dir(up) {
		if w.entries[up].Mode>>12 == 0o16 {
			return nil // of a submodule, which is a repository of its own
		}
	}
	if !known || e.Mode>>12 == 0o12 != (h.Typeflag == tar.TypeSymlink) || h.Typeflag == tar.TypeLink {
		w.clean = false
		return nil
	}
	if h.Typeflag == tar.TypeSymlink {
		w.clean = w.clean && is(e.Object, uint64(len(h.Linkname)), strings.NewReader(h.Linkname))
		return nil
	}
	at := e.Modified
	if h.ModTime.Nanosecond() == 0 { // the engine's archives have whole seconds
		at = at.Truncate(time.Second)
	}
	size := sizeOf(h)
	same := uint32(size) == e.Size && h.ModTime.Equal(at) && h.ModTime.Before(w.written)
	if _, bare := h.PAXRecords[archive.SizeRecord]; !same && !bare {
		same = is(e.Object, size, content)
	}
	w.clean = w.clean && same && h.Mode&0o100 != 0 == (e.Mode&0o100 != 0)
	return nil
}

// is reports whether a content has the name of an object of git.
func is(object []byte, size uint64, content io.Reader) bool {
	sum := sha1.New() // as git names objects
	if len(object) == sha256.Size {
		sum = sha256.New()
	}
	_, _ = fmt.Fprintf(sum, "blob %d\x00", size) // a hash never fails
	_, err := io.Copy(sum, content)
	return err == nil && bytes.Equal(sum.Sum(nil), object)
}

// inTree shows w the files of a work tree that it does not ignore, and those that its index names.
func (c *comparison) inTree(ctx context.Context, dir string, open Archive, w *workTree) error {
	if open != nil {
		return c.inArchive(ctx, dir, open, w)
	}
	for _, all := range []bool{false, true} {
		scan := &guestv1.WorkScan{Gitignore: !all, ChangedSince: w.written.UnixNano() - int64(settled), MaxSize: maxFile}
		t, done, err := c.review.files.Transfer(ctx, c.sandboxID, &guestv1.TransferRequest{Kind: &guestv1.TransferRequest_Out{
			Out: &guestv1.OutTransfer{Path: []byte(c.base.GetTarget() + "/" + dir), Name: []byte("f"), Work: scan},
		}})
		if err != nil {
			return err
		}
		in := &stream{t: t}
		err = in.explain(filesOf(in, func(name string, h *tar.Header, content io.Reader) error {
			if _, left := w.entries[name]; h.Typeflag == tar.TypeDir || all && !left {
				return nil
			}
			return w.see(name, h, content)
		}))
		done()
		if err != nil || !w.clean || len(w.entries) == 0 {
			return err
		}
	}
	return nil
}

// inArchive is inTree for a sandbox that does not run.
func (c *comparison) inArchive(ctx context.Context, dir string, open Archive, w *workTree) error {
	pass := func(f func(name string, h *tar.Header, content io.Reader) error) error {
		stream, err := open(ctx, c.base.GetTarget()+"/"+dir)
		if err != nil {
			return err
		}
		defer stream.Close() // only read
		return filesOf(stream, f)
	}
	s := &stopped{comparison: c, ignored: make(map[string]string)}
	tree, err := gitignore.NewTree(nil, true)
	if err == nil {
		err = pass(s.collect)
	}
	if err != nil {
		return err
	}
	return pass(func(name string, h *tar.Header, content io.Reader) error {
		folder := h.Typeflag == tar.TypeDir
		skip := s.skipped != "" && strings.HasPrefix(name, s.skipped+"/")
		if name != "" && !skip {
			var err error
			if skip, err = tree.Skip(name, folder); err != nil {
				return unusable(err)
			}
			if skip && folder {
				s.skipped = name
			}
		}
		switch _, tracked := w.entries[name]; {
		case folder && skip:
			return nil
		case folder:
			return unusable(tree.EnterText(name, s.ignored[name]))
		case skip && !tracked:
			return nil
		}
		return w.see(name, h, content)
	})
}

// filesOf calls f with the folders, files and links in an archive of a folder, and their paths in it.
func filesOf(in io.Reader, f func(name string, h *tar.Header, content io.Reader) error) error {
	for files := tar.NewReader(in); ; {
		h, err := files.Next()
		if errors.Is(err, io.EOF) {
			_, err = io.Copy(io.Discard, in) // the supervisor's last word
			return err
		}
		if err != nil {
			return err
		}
		_, name, _ := strings.Cut(strings.TrimSuffix(h.Name, "/"), "/")
		switch h.Typeflag {
		case tar.TypeDir, tar.TypeReg, tar.TypeSymlink, tar.TypeLink:
			if name == "" || Valid(name) {
				err = f(name, h, files)
			}
		}
		if err != nil {
			return err
		}
	}
}
