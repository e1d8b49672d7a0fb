package review

import (
	"bytes"
	"crypto/sha256"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/agbox/agbox/daemon/bases"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	storev1 "github.com/agbox/agbox/proto/store/v1"
)

const (
	// pieceSize is the size of a message with content, in bytes.
	pieceSize = 256 << 10
	// inMemory is the maximum size of a content that is held in memory, in bytes.
	inMemory = 4 << 20
)

// linkFile describes a symbolic link.
func linkFile(target []byte) *agboxv1.WorkspaceFile {
	sum := sha256.Sum256(target)
	return &agboxv1.WorkspaceFile{Link: true, Size: uint64(len(target)), Sha256: sum[:]}
}

// baseFile describes a file of the base; nil if there is none.
func baseFile(f *storev1.BaseFile) *agboxv1.WorkspaceFile {
	switch {
	case f == nil:
		return nil
	case f.GetMode()&unix.S_IFMT == unix.S_IFLNK:
		return linkFile(f.GetLink())
	}
	return &agboxv1.WorkspaceFile{Executable: f.GetMode()&0o100 != 0, Size: f.GetSize(), Sha256: f.GetSha256()}
}

// equal is same for files that may not exist.
func equal(a, b *agboxv1.WorkspaceFile) bool {
	return a == nil && b == nil || a != nil && b != nil && same(a, b)
}

func same(a, b *agboxv1.WorkspaceFile) bool {
	return a.GetLink() == b.GetLink() && a.GetExecutable() == b.GetExecutable() && bytes.Equal(a.GetSha256(), b.GetSha256())
}

// link compares a symbolic link.
func (c *comparison) link(path, target string) error {
	return c.compare(path, linkFile([]byte(target)), func(w io.Writer) error {
		_, err := io.WriteString(w, target)
		return err
	})
}

// file compares a regular file. Its content is kept until it is known whether it is to be
// sent.
func (c *comparison) file(path string, executable bool, content io.Reader) error {
	sum := sha256.New()
	var small bytes.Buffer
	size, err := io.Copy(io.MultiWriter(&small, sum), io.LimitReader(content, inMemory))
	if err != nil {
		return err
	}
	keep := func(w io.Writer) error {
		_, err := w.Write(small.Bytes())
		return err
	}
	if size == inMemory {
		spool, err := os.CreateTemp(c.review.paths.GuestBase(c.sandboxID), "spool-")
		if err != nil {
			return err
		}
		defer spool.Close()         // a copy
		_ = os.Remove(spool.Name()) // it goes with its descriptor
		more, err := io.Copy(io.MultiWriter(spool, sum), io.LimitReader(content, maxFile))
		if err != nil {
			return err
		}
		if size += more; size > maxFile {
			return tooLarge(path, uint64(size))
		}
		keep = func(w io.Writer) error {
			_, err := w.Write(small.Bytes())
			if err == nil {
				_, err = io.Copy(w, io.NewSectionReader(spool, 0, more))
			}
			return err
		}
	}
	return c.compare(path, &agboxv1.WorkspaceFile{Executable: executable, Size: uint64(size), Sha256: sum.Sum(nil)}, keep)
}

// gone compares a file that is not there.
func (c *comparison) gone(path string) error { return c.compare(path, nil, nil) }

// compare sends a difference with its contents, if it is one.
func (c *comparison) compare(path string, after *agboxv1.WorkspaceFile, content func(io.Writer) error) error {
	f := c.base.File(path)
	before := baseFile(f)
	if equal(before, after) {
		return nil
	}
	if other, ok := c.base.Folder(path); ok && equal(baseFile(other), after) {
		return nil // it is home in the folder
	}
	if c.changes++; c.changes > maxChanges {
		return c.tooMany()
	}
	err := c.send(&agboxv1.CompareWorkspaceResponse{Item: &agboxv1.CompareWorkspaceResponse_Difference{
		Difference: &agboxv1.WorkspaceDifference{Path: []byte(path), Before: before, After: after},
	}})
	if err != nil || c.o.NamesOnly {
		return err
	}
	if before != nil {
		w := pieces(func(p []byte) error {
			return c.send(&agboxv1.CompareWorkspaceResponse{Item: &agboxv1.CompareWorkspaceResponse_Before{Before: p}})
		})
		if before.GetLink() {
			_, err = w.Write(f.GetLink())
		} else {
			err = c.base.Content(f, w)
		}
	}
	if err == nil && after != nil {
		err = content(pieces(func(p []byte) error {
			return c.send(&agboxv1.CompareWorkspaceResponse{Item: &agboxv1.CompareWorkspaceResponse_After{After: p}})
		}))
	}
	return err
}

// pieces is a writer that sends pieces of a bounded size.
type pieces func([]byte) error

// Write sends all of p.
func (s pieces) Write(p []byte) (int, error) {
	for at := 0; at < len(p); {
		piece := p[at:min(len(p), at+pieceSize)]
		if err := s(piece); err != nil {
			return at, err
		}
		at += len(piece)
	}
	return len(p), nil
}

// Files sends all files of a base.
func Files(base *bases.Base, send func(*agboxv1.CompareWorkspaceResponse) error) error {
	for _, f := range base.GetFiles() {
		err := send(&agboxv1.CompareWorkspaceResponse{Item: &agboxv1.CompareWorkspaceResponse_BaseFile{
			BaseFile: &agboxv1.AdvancedFile{Path: f.GetPath(), File: baseFile(f)},
		}})
		if err != nil {
			return err
		}
	}
	return nil
}
