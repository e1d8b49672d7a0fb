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
	"github.com/agbox/agbox/workspace/covers"
	"github.com/agbox/agbox/workspace/edits"
)

// SyncOptions say how Sync works.
type SyncOptions struct {
	// Watch goes on until the context ends.
	Watch bool
	// Began is called once. It may be nil, and so may Told.
	Began func(folder, target string)
	// Told is called for each file that was brought to the other side, and once for each
	// conflict. Both are called by one goroutine at a time.
	Told func(SyncedFile)
	// Agree is asked once for each version of a file that this machine would execute. What does
	// not come for it counts and is told as a conflict. Nil agrees.
	Agree Agree
	// Trouble is called with a sentence if changes are noticed later than usual. It may be nil.
	Trouble func(why string)
}

// SyncedFile is what became of a file.
type SyncedFile struct {
	// Path is relative to the folder.
	Path string
	// ToSandbox is false for a file that came from the sandbox.
	ToSandbox bool
	// Before and After are the versions of the side that has the file now. nil means none.
	Before, After *WorkFile
	// Target is that of a symbolic link that came from the sandbox.
	Target string
	// Conflict says why both sides keep their versions, as the end of a sentence. It is empty
	// if the file was brought.
	Conflict string
}

// syncing is one run of Sync.
type syncing struct {
	c         *Client
	id, label string
	// data is the folder with agbox's own files about folders.
	data string
	// tracked means that the copy had only what git tracks.
	tracked bool
	o       SyncOptions
	scanner edits.Scanner
	target  string
	// pushes are what was written to the sandbox, or is about to be.
	pushes *edits.Pushes
	// release ends the hold on the folder.
	release func()
	// folders are those of the last scan.
	folders []string
	// conflicts has why each path was told to be in conflict.
	conflicts map[string]string
	// moved has the files that were not what the round before had found.
	moved map[string]bool
	// last is set in a round after which none follows.
	last bool
	// asked has what Agree has said.
	asked covers.Consent
	// from has what the workspace was copied from.
	from *Work
	// home tells whether the commits are home.
	home homeCheck
	// waited is for how long a git was waited for that works on the folder.
	waited time.Duration
}

// close lets other clients keep the folder in step.
func (s *syncing) close() {
	if s.release != nil {
		s.release()
	}
}

// at is a path in the workspace of the sandbox. It gets files of the folder: a file is replaced or
// removed only if it is what the base says, so nothing that the sandbox has changed since the
// comparison is lost.
func (s *syncing) at(name string) string { return s.target + "/" + name }

// write makes or replaces a file.
func (s *syncing) write(ctx context.Context, change edits.Change, content []byte) error {
	if !utf8.ValidString(change.Path) {
		return &Error{Code: codes.InvalidArgument, Message: "its name is not UTF-8"}
	}
	before, after := change.Before, change.After
	if before != nil && (before.Link || after.Link) {
		if err := s.take(ctx, change.Path, before); err != nil {
			return err
		}
		before = nil
	}
	if before == nil {
		return s.create(ctx, change.Path, after, content)
	}
	now, err := s.c.StatFile(ctx, s.id, s.at(change.Path), false, FileOptions{})
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
	_, err = s.c.WriteFile(ctx, s.id, s.at(change.Path), bytes.NewReader(content), WriteOptions{Mode: &mode, Expected: before.Sum[:]})
	return err
}

// create makes a file that is not there. It belongs to the owner of the folder it is in.
func (s *syncing) create(ctx context.Context, name string, after *edits.File, content []byte) error {
	owner, err := s.owner(ctx, path.Dir(name))
	if err != nil {
		return err
	}
	if after.Link {
		return s.link(ctx, name, string(content), owner)
	}
	mode := uint32(0o644)
	if after.Executable {
		mode = 0o755
	}
	_, err = s.c.WriteFile(ctx, s.id, s.at(name), bytes.NewReader(content), WriteOptions{FileOptions: owner, Mode: &mode, CreateOnly: true, Parents: true})
	return err
}

// owner returns the owner of a folder of the workspace, or of the nearest one above it that
// exists.
func (s *syncing) owner(ctx context.Context, dir string) (FileOptions, error) {
	for ; ; dir = path.Dir(dir) {
		at, err := s.c.StatFile(ctx, s.id, path.Join(s.target, dir), false, FileOptions{})
		if err == nil {
			return FileOptions{User: fmt.Sprintf("%d:%d", at.GetUid(), at.GetGid())}, nil
		}
		if dir == "." {
			return FileOptions{}, err
		}
	}
}

// link makes a symbolic link.
func (s *syncing) link(ctx context.Context, name, to string, owner FileOptions) error {
	dir, temp := path.Dir(s.at(name)), s.pushes.Temp(name)
	if err := s.c.MakeDirectory(ctx, s.id, dir, true, owner); err != nil {
		return err
	}
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: temp, Linkname: to, Mode: 0o777, ModTime: time.Now(), Format: tar.FormatPAX})
	if err == nil {
		err = w.Close()
	}
	if err == nil {
		_, err = s.c.WriteArchive(ctx, s.id, dir, temp, &out, CopyOptions{FileOptions: owner, NoOwner: true})
	}
	if err != nil {
		return err
	}
	if err := s.c.MoveFile(ctx, s.id, path.Join(dir, temp), s.at(name), true, FileOptions{}); err != nil {
		_ = s.c.RemoveFile(ctx, s.id, path.Join(dir, temp), false, FileOptions{}) // the move failed, which is said
		return err
	}
	return nil
}

// remove removes a file, and the folders above it that then are empty and that the folder
// does not have.
func (s *syncing) remove(ctx context.Context, change edits.Change) error {
	if !utf8.ValidString(change.Path) {
		return &Error{Code: codes.InvalidArgument, Message: "its name is not UTF-8"}
	}
	if err := s.take(ctx, change.Path, change.Before); err != nil {
		return err
	}
	for dir := path.Dir(change.Path); dir != "." && !edits.HasFolder(s.scanner.Folder, dir); dir = path.Dir(dir) {
		if s.c.RemoveFile(ctx, s.id, s.at(dir), false, FileOptions{}) != nil {
			break // not empty
		}
	}
	return nil
}

func tempName() string { return ".agbox-sync-" + strings.ToLower(rand.Text()[:12]) }

// take removes a file if it is what the base says. It is moved away first, so nobody
// changes it between the look and the removal.
func (s *syncing) take(ctx context.Context, name string, want *edits.File) error {
	temp := path.Join(path.Dir(s.at(name)), s.pushes.Temp(name))
	if err := s.c.MoveFile(ctx, s.id, s.at(name), temp, true, FileOptions{}); err != nil {
		return err
	}
	same, err := s.is(ctx, temp, want)
	if err == nil && same {
		return s.c.RemoveFile(ctx, s.id, temp, false, FileOptions{})
	}
	if back := s.c.MoveFile(context.WithoutCancel(ctx), s.id, temp, s.at(name), true, FileOptions{}); back != nil {
		return &Error{Code: codes.Aborted, Message: fmt.Sprintf("the sandbox has changed it at this moment; what it had is in %s there", path.Base(temp))}
	}
	if err != nil {
		return err
	}
	return &Error{Code: codes.Aborted, Reason: agboxv1.ErrorReason_FILE_CHANGED.String(), Message: "the sandbox has changed it at this moment"}
}

// is reports whether a file of the sandbox is a version.
func (s *syncing) is(ctx context.Context, at string, want *edits.File) (bool, error) {
	now, err := s.c.StatFile(ctx, s.id, at, false, FileOptions{})
	if err != nil {
		return false, err
	}
	sum := sha256.New()
	switch now.GetType() {
	case agboxv1.FileType_FILE_TYPE_SYMLINK:
		_, _ = sum.Write([]byte(now.GetLinkTarget())) // a hash never fails
		return want.Link && same(sum, want), nil
	case agboxv1.FileType_FILE_TYPE_REGULAR:
		err := s.c.ReadFile(ctx, s.id, at, 0, 0, sum, FileOptions{})
		return !want.Link && want.Executable == (now.GetMode()&0o100 != 0) && same(sum, want), err
	}
	return false, nil
}

func same(sum hash.Hash, want *edits.File) bool { return bytes.Equal(sum.Sum(nil), want.Sum[:]) }
