package hostfiles

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/workspace/archive"
)

// Tree is an opened source.
type Tree struct {
	copied Copy
	// dir is the folder itself, or the one that has the file base.
	dir  *os.File
	base string
	// check is for repositories of git that are not in the folder.
	check Checker
}

// Open opens a source of the host. Errors are fault.Errors.
func (c Checker) Open(one Copy) (*Tree, error) {
	if one.Source == "" {
		return &Tree{copied: one}, nil
	}
	held, err := c.hold(one.Source, Copied, rights{dangerous: one.Force || one.Tool, tool: one.Tool})
	if err != nil {
		return nil, err
	}
	defer held.Close()
	t, err := one.tree(held)
	if err == nil {
		t.check = c
	}
	return t, err
}

// tree opens what a source holds, whatever its name leads to by now.
func (one Copy) tree(held *Source) (t *Tree, err error) {
	t = &Tree{copied: one}
	if held.info.IsDir() {
		if t.dir, err = os.Open(held.again()); err != nil {
			return nil, unusable(one.Source, err)
		}
		return t, nil
	}
	dir, base := filepath.Split(held.Path)
	if t.dir, err = os.Open(dir); err != nil {
		return nil, unusable(one.Source, err)
	}
	t.base = base
	if !t.holds(held) {
		t.Close()
		return nil, refusal("%s was replaced while it was checked: create the sandbox again when nothing changes it.", one.Source)
	}
	return t, nil
}

// holds reports whether the file of the tree is the one that was checked.
func (t *Tree) holds(checked *Source) bool {
	var now unix.Stat_t
	if err := unix.Fstatat(int(t.dir.Fd()), t.base, &now, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return false
	}
	was, ok := checked.info.Sys().(*syscall.Stat_t)
	return ok && was.Dev == now.Dev && was.Ino == now.Ino
}

// IsDir reports whether the source is a folder.
func (t *Tree) IsDir() bool { return t.dir != nil && t.base == "" }

// Close closes the source.
func (t *Tree) Close() {
	if t.dir != nil {
		_ = t.dir.Close() // only read
	}
}

// Pack writes the source to w as a tar archive with the given name and owner. record is told
// what it has, and may be nil. Errors of the host's files are fault.Errors.
func (t *Tree) Pack(ctx context.Context, w io.Writer, name string, owner archive.Owner, record archive.Record, progress func(files, bytes int64)) error {
	if t.dir == nil {
		return t.packContent(w, name, owner)
	}
	options := archive.PackOptions{Name: name, Owner: &owner, Record: record, Progress: progress}
	filter, err := t.filter(ctx)
	if err != nil {
		return err
	}
	options.Filter = filter
	if top, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", t.dir.Fd())); err == nil && t.IsDir() && !t.copied.Tool {
		options.Replace = repositories{check: t.check, force: t.copied.Force, top: top}.Replace
	}
	return t.pack(ctx, w, options)
}

// pack packs what is on the host, and says which file failed.
func (t *Tree) pack(ctx context.Context, w io.Writer, options archive.PackOptions) error {
	name := options.Name
	err := archive.Pack(ctx, w, int(t.dir.Fd()), t.base, options)
	var one *archive.Failure
	if !errors.As(err, &one) || fault.Of(err) != nil {
		return err
	}
	file := path.Join(t.copied.Source, strings.TrimPrefix(one.Name, name))
	switch {
	case errors.Is(err, fs.ErrPermission):
		return unusable(file, err)
	case errors.Is(err, fs.ErrNotExist):
		return refusal("%s went away while it was copied: make it again, and create the sandbox again.", file).Because(err)
	case errors.Is(err, archive.ErrGitBusy):
		return refusal("%s was changed by git while it was copied, again and again: create the sandbox again when git is done there.", file).Because(err)
	case errors.Is(err, unix.EAGAIN):
		return refusal("%s was replaced while it was copied: create the sandbox again when nothing changes it.", file).Because(err)
	}
	return refusal("%s could not be read (%v): mend it, and create the sandbox again.", file, one.Err).Because(err)
}

func (t *Tree) packContent(w io.Writer, name string, owner archive.Owner) error {
	out := tar.NewWriter(w)
	err := out.WriteHeader(&tar.Header{
		Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Uid: owner.UID, Gid: owner.GID,
		Size: int64(len(t.copied.Content)), ModTime: time.Unix(0, 0), Format: tar.FormatPAX,
	})
	if err == nil {
		_, err = io.WriteString(out, t.copied.Content)
	}
	return errors.Join(err, out.Close())
}

// PackFiltered writes the content of a folder to w as a tar archive, without what the
// filter excludes, and tells record of it. All of it belongs to root. Errors of the host's files
// are fault.Errors.
func (t *Tree) PackFiltered(ctx context.Context, w io.Writer, filter archive.Filter, record archive.Record) error {
	return t.pack(ctx, w, archive.PackOptions{Name: ".", Owner: &archive.Owner{}, Filter: filter, Record: record})
}

// PackBelow is PackFiltered of a whole folder, below a name in the archive.
func (t *Tree) PackBelow(ctx context.Context, w io.Writer, name string, record archive.Record) error {
	return t.pack(ctx, w, archive.PackOptions{Name: name, Owner: &archive.Owner{}, Record: record})
}

// filter returns what a copy leaves out, or counts; nil if it is nothing.
func (t *Tree) filter(ctx context.Context) (archive.Filter, error) {
	one := t.copied
	counts := one.Base && one.Ignored != nil && !one.Gitignore && !one.Tracked
	if len(one.Excludes) == 0 && !one.Gitignore && !one.Tracked && !counts {
		return nil, nil
	}
	f, err := newFilter(one)
	switch {
	case err != nil:
		return nil, err
	case one.Tracked:
		return f.onlyTracked(ctx, one)
	case counts:
		return one.Ignored.counting(f), nil
	}
	return f, nil
}
