package review

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/errdefs"

	"github.com/agbox/agbox/internal/fault"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"
	storev1 "github.com/agbox/agbox/proto/store/v1"
	"github.com/agbox/agbox/workspace/archive"
	"github.com/agbox/agbox/workspace/gitignore"
)

// scan calls each with the files of the workspace.
func (c *comparison) scan(ctx context.Context, scan *guestv1.WorkScan, each func(path string, h *tar.Header, content io.Reader) error) error {
	t, done, err := c.review.files.Transfer(ctx, c.sandboxID, &guestv1.TransferRequest{Kind: &guestv1.TransferRequest_Out{
		Out: &guestv1.OutTransfer{Path: []byte(c.base.GetTarget()), Name: []byte("."), Follow: true, Work: scan},
	}})
	if fault.ReasonOf(err) == agboxv1.ErrorReason_FILE_NOT_FOUND {
		return nil // all is removed
	}
	if err != nil {
		return err
	}
	defer done()
	in := &stream{t: t}
	for files := tar.NewReader(in); ; {
		h, err := files.Next()
		if errors.Is(err, io.EOF) {
			_, err = io.Copy(io.Discard, in) // the supervisor's last word
			return err
		}
		if err != nil {
			return in.explain(err)
		}
		path := strings.TrimSuffix(strings.TrimPrefix(h.Name, "./"), "/")
		if _, more := h.PAXRecords[archive.UnsearchedRecord]; more && scan.GetRepositoriesWithin() > 0 {
			if err := c.unsearched(path); err != nil {
				return err
			}
			continue
		}
		if dir, is := gitignore.Repository(path); is {
			if err := c.repository(dir, h, scan.GetChangedSince() == math.MaxInt64); err != nil {
				return err
			}
			continue
		}
		if h.Typeflag != tar.TypeReg && h.Typeflag != tar.TypeSymlink || !Valid(path) || c.foreign(path) {
			continue
		}
		if err := each(path, h, files); err != nil {
			return in.explain(err)
		}
	}
}

// copiedUnrecorded reports whether a file was copied in with a name that no base has: it is no
// work. What the sandbox has under such a name is, and is never brought.
func (c *comparison) copiedUnrecorded(path string, h *tar.Header) bool {
	at, copied := h.ChangeTime, time.Unix(0, c.base.GetCopiedAt())
	if at.IsZero() {
		at, copied = h.ModTime, copied.Truncate(time.Second) // an archive of the engine has whole seconds
	}
	return gitignore.Inside(path) && at.Before(copied)
}

// found compares a file of the first scan.
func (c *comparison) found(path string, h *tar.Header, content io.Reader) error {
	if c.seen[path] || c.copiedUnrecorded(path, h) {
		return nil
	}
	c.seen[path] = true
	if c.base.File(path) == nil {
		c.names += len(path)
	}
	if c.names > maxNames || len(c.seen) > maxChanges+len(c.base.GetFiles()) {
		return c.tooMany()
	}
	if h.Typeflag == tar.TypeSymlink {
		return c.link(path, h.Linkname)
	}
	if size, bare := h.PAXRecords[archive.SizeRecord]; bare && sizeOf(h) <= maxFile {
		if !c.untouched(path, size, h) {
			c.later = append(c.later, path)
		}
		return nil
	}
	return c.file(path, h, content)
}

// untouched reports whether a file that did not change is the one of the base.
func (c *comparison) untouched(path, size string, h *tar.Header) bool {
	f := c.base.File(path)
	if f == nil || c.retracked(path) {
		return false
	}
	n, err := strconv.ParseUint(size, 10, 64)
	s := stamp{f.GetSize(), f.GetModified()}
	return err == nil && f.GetModified() != 0 && n == s.size && h.ModTime.UnixNano() == s.modified && !c.twins[s]
}

// readLater compares files that the scan had no content of.
func (c *comparison) readLater(ctx context.Context) error {
	for _, path := range c.later {
		if err := c.read(ctx, path); err != nil {
			return err
		}
	}
	c.later = nil
	return nil
}

// read compares a file, which is read apart.
func (c *comparison) read(ctx context.Context, path string) error {
	there, err := c.readOne(ctx, c.base.GetTarget()+"/"+path, maxFile, func(h *tar.Header, content io.Reader) error {
		switch h.Typeflag {
		case tar.TypeSymlink:
			return c.link(path, h.Linkname)
		case tar.TypeReg:
			return c.file(path, h, content)
		}
		return c.gone(path)
	})
	if err == nil && !there {
		return c.gone(path)
	}
	return err
}

// readOne calls f with a file of a running sandbox. there is false if there is none.
func (c *comparison) readOne(ctx context.Context, path string, most uint64, f func(h *tar.Header, content io.Reader) error) (there bool, err error) {
	t, done, err := c.review.files.Transfer(ctx, c.sandboxID, &guestv1.TransferRequest{Kind: &guestv1.TransferRequest_Out{
		Out: &guestv1.OutTransfer{Path: []byte(path), Name: []byte("f"), Work: &guestv1.WorkScan{MaxSize: most}},
	}})
	if fault.ReasonOf(err) == agboxv1.ErrorReason_FILE_NOT_FOUND || fault.ReasonOf(err) == agboxv1.ErrorReason_NOT_A_DIRECTORY {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer done()
	in := &stream{t: t}
	files := tar.NewReader(in)
	h, err := files.Next()
	if errors.Is(err, io.EOF) {
		return false, nil
	}
	if err == nil {
		err = f(h, files)
	}
	return true, in.explain(err)
}

// missing compares the files of the base that the first scan has not shown: they are
// removed or ignored.
func (c *comparison) missing(ctx context.Context) error {
	left := make(map[string]*storev1.BaseFile)
	for _, f := range c.base.GetFiles() {
		if path := string(f.GetPath()); !c.seen[path] && !c.foreign(path) {
			left[path] = f
		}
	}
	maps.DeleteFunc(c.removed, func(path string, _ bool) bool { return c.seen[path] })
	if len(left) == 0 && len(c.removed) == 0 {
		return nil
	}
	if !c.o.All {
		since := c.base.GetCopiedAt() - int64(settled)
		err := c.scan(ctx, &guestv1.WorkScan{ChangedSince: math.MaxInt64}, func(path string, h *tar.Header, _ io.Reader) error {
			delete(c.removed, path) // it is there, and ignored
			if left[path] == nil {
				return nil
			}
			delete(left, path)
			if h.Typeflag == tar.TypeSymlink {
				return c.link(path, h.Linkname)
			}
			if sizeOf(h) > maxFile {
				return c.large(path, h)
			}
			if h.ChangeTime.UnixNano() >= since || !c.untouched(path, h.PAXRecords[archive.SizeRecord], h) {
				c.later = append(c.later, path)
			}
			return nil
		})
		if err != nil {
			return err
		}
		if err := c.readLater(ctx); err != nil {
			return err
		}
	}
	for _, f := range c.base.GetFiles() {
		if path := string(f.GetPath()); left[path] != nil {
			if err := c.gone(path); err != nil {
				return err
			}
		}
	}
	return nil
}

// What git tracks in a workspace is work although a .gitignore names it, as for git itself.
//
// maxIndex is the maximum size in bytes of the file in which git says what it tracks. A larger one is not
// read.
const maxIndex = 64 << 20

// errLargeIndex is the error for an index that is not read.
var errLargeIndex = fmt.Errorf("it is no file of at most %d MiB", maxIndex>>20)

// tracked returns what git tracks in the workspace of a running sandbox.
func (c *comparison) tracked(ctx context.Context) (map[string]bool, error) {
	var all map[string]bool
	indexed := func(h *tar.Header, content io.Reader) error {
		var err error
		all, err = c.indexed(h, content)
		return err
	}
	there, err := c.readOne(ctx, c.base.GetTarget()+"/.git/index", maxIndex, indexed)
	if !there && err == nil {
		var other string
		if other, err = c.indexElsewhere(ctx, nil); other != "" && err == nil {
			_, err = c.readOne(ctx, other, maxIndex, indexed)
		}
		if err != nil && ctx.Err() == nil && !errdefs.IsUnavailable(err) {
			return nil, nil //nolint:nilerr // .git may name anything
		}
		return all, err
	}
	if !there && fault.ReasonOf(err) == agboxv1.ErrorReason_FILE_FAILED {
		return nil, nil // .git may be a link in a loop
	}
	return all, err
}

// indexElsewhere returns the path of the index if .git of the workspace is a file that names the folder in
// which it is. open is nil if the sandbox runs.
func (c *comparison) indexElsewhere(ctx context.Context, open Archive) (string, error) {
	s := &references{review: c.review, sandboxID: c.sandboxID, open: open, left: maxReferences}
	own, _, err := s.folders(ctx, c.base.GetTarget())
	if own == "" || own == c.base.GetTarget()+"/.git" || err != nil {
		return "", err
	}
	return own + "/index", nil
}

// indexed returns the paths that an index names and the base does not have, and notes the others.
func (c *comparison) indexed(h *tar.Header, content io.Reader) (map[string]bool, error) {
	changed := !h.ModTime.Before(time.Unix(0, c.base.GetCopiedAt()).Truncate(time.Second)) // the engine's archives have whole seconds
	if h.Typeflag != tar.TypeReg || sizeOf(h) > maxIndex {
		if changed {
			c.partIndex = errLargeIndex
		}
		return nil, nil
	}
	text, err := io.ReadAll(io.LimitReader(content, maxIndex))
	if err != nil {
		return nil, err
	}
	var excluded *gitignore.Tree
	if !c.o.All {
		if excluded, err = gitignore.NewTree(c.base.GetExcludePatterns(), false); err != nil {
			return nil, unusable(err)
		}
	}
	all := make(map[string]bool)
	c.inIndex = make(map[string]bool)
	paths, err := gitignore.Tracked(text, max(20, len(c.base.GetHead())/2))
	if changed {
		c.partIndex = err
	}
	c.whole = err == nil
	for _, path := range paths {
		c.inIndex[path] = true
		if c.base.File(path) == nil && !c.o.All && Valid(path) && !c.foreign(path) && !excluded.Excludes(path) {
			all[path] = true
		}
	}
	return all, nil
}

// sendIndex sends the files of the base and the new ones that the index does not name, or did not before
// the files were read: with its new content, a file must not be taken for one that git tracks.
func (c *comparison) sendIndex(ctx context.Context, read func(context.Context) (map[string]bool, error)) error {
	if !c.o.Index || !c.whole {
		return nil
	}
	before := c.inIndex
	c.whole = false
	if _, err := read(ctx); err != nil || !c.whole {
		return err
	}
	part := new(agboxv1.WorkspaceIndex)
	flush := func() error {
		err := c.send(&agboxv1.CompareWorkspaceResponse{Item: &agboxv1.CompareWorkspaceResponse_Index{Index: part}})
		part = new(agboxv1.WorkspaceIndex)
		return err
	}
	named := func(path string) bool { return before[path] && c.inIndex[path] }
	for _, f := range c.base.GetFiles() {
		if named(string(f.GetPath())) {
			continue
		}
		if part.Unnamed = append(part.Unnamed, fileOf(f)); len(part.GetUnnamed()) == partSize {
			if err := flush(); err != nil {
				return err
			}
		}
	}
	for path := range c.seen {
		if named(path) || c.base.File(path) != nil {
			continue
		}
		of := &agboxv1.AdvancedFile{Path: []byte(path), File: baseFile(c.base.Copied()[path])}
		if part.Fresh = append(part.Fresh, of); len(part.GetFresh()) == partSize {
			if err := flush(); err != nil {
				return err
			}
		}
	}
	part.Complete = true
	return flush()
}

// untold says that there may be work which only an index names that was not read as a whole.
func (c *comparison) untold() error {
	if c.partIndex == nil || !c.o.Removal {
		return nil
	}
	advice := fmt.Sprintf("`agbox exec %s -- git ls-files -ci --exclude-standard` shows them.", c.sandboxID)
	if remedy := gitignore.Remedy(c.partIndex); remedy != "" {
		advice = fmt.Sprintf("In %s of the sandbox, `%s` writes an index that can be read.", c.base.GetTarget(), remedy)
	}
	return c.unshown(fmt.Sprintf("any ignored files that git tracks, because its index cannot be read (%v)", c.partIndex), advice)
}

// addTracked compares what git tracks and the first scan has not shown.
func (c *comparison) addTracked(ctx context.Context, tracked map[string]bool, excludes []string) error {
	left := 0
	for path := range tracked {
		if !c.seen[path] {
			left++
		}
	}
	if left == 0 {
		return nil
	}
	return c.scan(ctx, &guestv1.WorkScan{ExcludePatterns: excludes, ChangedSince: math.MaxInt64}, func(path string, h *tar.Header, content io.Reader) error {
		if !tracked[path] {
			return nil
		}
		return c.found(path, h, content)
	})
}
