package client

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"hash"
	"path"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/grpc/codes"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/workspace/edits"
)

// syncTarget is a workspace in a sandbox that gets files of a folder. A file is replaced or
// removed only if it is what the base says; so nothing that the sandbox has changed since the
// comparison is lost.
type syncTarget struct {
	c           *Client
	id          string
	top, folder string
	// pushes has the names of files beside their place.
	pushes *edits.Pushes
}

func (t syncTarget) at(name string) string { return t.top + "/" + name }

// write makes or replaces a file.
func (t syncTarget) write(ctx context.Context, change edits.Change, content []byte) error {
	if !utf8.ValidString(change.Path) {
		return &Error{Code: codes.InvalidArgument, Message: "its name is not UTF-8"}
	}
	before, after := change.Before, change.After
	if before != nil && (before.Link || after.Link) {
		if err := t.take(ctx, change.Path, before); err != nil {
			return err
		}
		before = nil
	}
	if before == nil {
		return t.create(ctx, change.Path, after, content)
	}
	now, err := t.c.StatFile(ctx, t.id, t.at(change.Path), false, FileOptions{})
	if err != nil {
		return err
	}
	mode := now.GetMode() & 0o777
	if after.Executable != before.Executable {
		mode &^= 0o111
		if after.Executable {
			mode |= mode & 0o444 >> 2
		}
	}
	_, err = t.c.WriteFile(ctx, t.id, t.at(change.Path), bytes.NewReader(content), WriteOptions{Mode: &mode, Expected: before.Sum[:]})
	return err
}

// create makes a file that is not there. It belongs to the owner of the folder it is in.
func (t syncTarget) create(ctx context.Context, name string, after *edits.File, content []byte) error {
	owner, err := t.owner(ctx, path.Dir(name))
	if err != nil {
		return err
	}
	if after.Link {
		return t.link(ctx, name, string(content), owner)
	}
	mode := uint32(0o644)
	if after.Executable {
		mode = 0o755
	}
	_, err = t.c.WriteFile(ctx, t.id, t.at(name), bytes.NewReader(content), WriteOptions{FileOptions: owner, Mode: &mode, CreateOnly: true, Parents: true})
	return err
}

// owner returns the owner of a folder of the workspace, or of the nearest one above it that
// exists.
func (t syncTarget) owner(ctx context.Context, dir string) (FileOptions, error) {
	for ; ; dir = path.Dir(dir) {
		at, err := t.c.StatFile(ctx, t.id, path.Join(t.top, dir), false, FileOptions{})
		if err == nil {
			return FileOptions{User: fmt.Sprintf("%d:%d", at.GetUid(), at.GetGid())}, nil
		}
		if dir == "." {
			return FileOptions{}, err
		}
	}
}

// link makes a symbolic link.
func (t syncTarget) link(ctx context.Context, name, to string, owner FileOptions) error {
	dir, temp := path.Dir(t.at(name)), t.pushes.Temp(name)
	if err := t.c.MakeDirectory(ctx, t.id, dir, true, owner); err != nil {
		return err
	}
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: temp, Linkname: to, Mode: 0o777, ModTime: time.Now(), Format: tar.FormatPAX})
	if err == nil {
		err = w.Close()
	}
	if err == nil {
		_, err = t.c.WriteArchive(ctx, t.id, dir, temp, &out, CopyOptions{FileOptions: owner, NoOwner: true})
	}
	if err != nil {
		return err
	}
	if err := t.c.MoveFile(ctx, t.id, path.Join(dir, temp), t.at(name), true, FileOptions{}); err != nil {
		_ = t.c.RemoveFile(ctx, t.id, path.Join(dir, temp), false, FileOptions{}) // the move failed, which is said
		return err
	}
	return nil
}

// remove removes a file, and the folders above it that then are empty and that the folder
// does not have.
func (t syncTarget) remove(ctx context.Context, change edits.Change) error {
	if !utf8.ValidString(change.Path) {
		return &Error{Code: codes.InvalidArgument, Message: "its name is not UTF-8"}
	}
	if err := t.take(ctx, change.Path, change.Before); err != nil {
		return err
	}
	for dir := path.Dir(change.Path); dir != "." && !edits.HasFolder(t.folder, dir); dir = path.Dir(dir) {
		if t.c.RemoveFile(ctx, t.id, t.at(dir), false, FileOptions{}) != nil {
			break // not empty
		}
	}
	return nil
}

func tempName() string { return ".agbox-sync-" + strings.ToLower(rand.Text()[:12]) }

// take removes a file if it is what the base says. It is moved away first, so nobody
// changes it between the look and the removal.
func (t syncTarget) take(ctx context.Context, name string, want *edits.File) error {
	temp := path.Join(path.Dir(t.at(name)), t.pushes.Temp(name))
	if err := t.c.MoveFile(ctx, t.id, t.at(name), temp, true, FileOptions{}); err != nil {
		return err
	}
	same, err := t.is(ctx, temp, want)
	if err == nil && same {
		return t.c.RemoveFile(ctx, t.id, temp, false, FileOptions{})
	}
	if back := t.c.MoveFile(context.WithoutCancel(ctx), t.id, temp, t.at(name), true, FileOptions{}); back != nil {
		return &Error{Code: codes.Aborted, Message: fmt.Sprintf("the sandbox has changed it at this moment; what it had is in %s there", path.Base(temp))}
	}
	if err != nil {
		return err
	}
	return &Error{Code: codes.Aborted, Reason: agboxv1.ErrorReason_FILE_CHANGED.String(), Message: "the sandbox has changed it at this moment"}
}

// is reports whether a file of the sandbox is a version.
func (t syncTarget) is(ctx context.Context, at string, want *edits.File) (bool, error) {
	now, err := t.c.StatFile(ctx, t.id, at, false, FileOptions{})
	if err != nil {
		return false, err
	}
	sum := sha256.New()
	switch now.GetType() {
	case agboxv1.FileType_FILE_TYPE_SYMLINK:
		_, _ = sum.Write([]byte(now.GetLinkTarget())) // a hash never fails
		return want.Link && same(sum, want), nil
	case agboxv1.FileType_FILE_TYPE_REGULAR:
		err := t.c.ReadFile(ctx, t.id, at, 0, 0, sum, FileOptions{})
		return !want.Link && want.Executable == (now.GetMode()&0o100 != 0) && same(sum, want), err
	}
	return false, nil
}

func same(sum hash.Hash, want *edits.File) bool { return bytes.Equal(sum.Sum(nil), want.Sum[:]) }
