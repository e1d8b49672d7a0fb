package review

import (
	"archive/tar"
	"bytes"
	"cmp"
	"crypto/sha256"
	"io"
	"os"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	storev1 "github.com/agbox/agbox/proto/store/v1"
	"github.com/agbox/agbox/workspace/archive"
	"github.com/agbox/agbox/workspace/edits"
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
	return &agboxv1.WorkspaceFile{Executable: f.GetMode()&0o100 != 0, Size: f.GetSize(), Sha256: f.GetSha256(), TooLarge: f.GetSize() > maxFile}
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

// sizeOf returns the size of a regular file by its header, with which its content may not come.
func sizeOf(h *tar.Header) uint64 {
	if n, err := strconv.ParseUint(h.PAXRecords[archive.SizeRecord], 10, 64); err == nil {
		return n
	}
	return uint64(max(h.Size, 0))
}

// large compares a file that is too large to be read: it is unchanged if it has the size and the
// time of the base, as no other file there has, and was not changed after the copy. The engine's
// archives have seconds, and no change time.
func (c *comparison) large(path string, h *tar.Header) error {
	size, modified, executable := sizeOf(h), h.ModTime.UnixNano(), h.Mode&0o100 != 0
	f := c.base.File(path)
	recent := h.ChangeTime.After(time.Unix(0, c.base.GetCopiedAt())) && !c.advanced(f)
	if !recent && !c.twins[stamp{f.GetSize(), f.GetModified()}] && f.GetModified() != 0 && f.GetSize() == size && (f.GetMode()&0o100 != 0) == executable {
		if later := f.GetModified() - modified; later == 0 || h.ModTime.Nanosecond() == 0 && later > 0 && later < int64(time.Second) {
			return nil
		}
	}
	return c.compare(path, &agboxv1.WorkspaceFile{Executable: executable, Size: size, TooLarge: true, Modified: modified}, nil)
}

// advanced reports whether a file of the base is not the one that was copied in.
func (c *comparison) advanced(f *storev1.BaseFile) bool {
	return slices.ContainsFunc(c.base.GetFirst(), func(first *storev1.BaseFile) bool {
		return first != f && bytes.Equal(first.GetPath(), f.GetPath())
	})
}

// file compares a regular file. Its content is kept until it is known whether it is to be
// sent.
func (c *comparison) file(path string, h *tar.Header, content io.Reader) error {
	if sizeOf(h) > maxFile {
		return c.large(path, h)
	}
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
		more, err := io.Copy(io.MultiWriter(spool, sum), content)
		if err != nil {
			return err
		}
		size += more
		keep = func(w io.Writer) error {
			_, err := w.Write(small.Bytes())
			if err == nil {
				_, err = io.Copy(w, io.NewSectionReader(spool, 0, more))
			}
			return err
		}
	}
	return c.compare(path, &agboxv1.WorkspaceFile{Executable: h.Mode&0o100 != 0, Size: uint64(size), Sha256: sum.Sum(nil)}, keep)
}

// gone compares a file that is not there.
func (c *comparison) gone(path string) error { return c.compare(path, nil, nil) }

// compare sends a difference with its contents, if it is one.
func (c *comparison) compare(path string, after *agboxv1.WorkspaceFile, content func(io.Writer) error) error {
	f := c.base.File(path)
	before, retracked := baseFile(f), after != nil && c.retracked(path)
	if equal(before, after) && !retracked {
		c.isHome(path, after)
		return nil
	}
	if other, ok := c.base.Folder(path); ok && !c.o.Branch && (!retracked || c.o.Removal) && equal(baseFile(other), after) {
		return nil // it is home in the folder
	}
	if c.changes++; c.changes > maxChanges {
		return c.tooMany()
	}
	d := &agboxv1.WorkspaceDifference{Path: []byte(path), Before: before, After: after, Lost: c.base.Lost(path), Tracked: c.inIndex[path], Retracked: retracked}
	old := func(w io.Writer) error {
		if before.GetLink() {
			_, err := w.Write(f.GetLink())
			return err
		}
		return c.base.Content(f, w)
	}
	if c.o.Stat {
		if retracked {
			d.Before = nil // all of its lines are new there
		}
		if err := count(d, old, content); err != nil {
			return err
		}
		d.Before = before
	}
	names := c.o.NamesOnly || c.o.Stat
	if !names {
		c.bound(d)
	}
	err := c.send(&agboxv1.CompareWorkspaceResponse{Item: &agboxv1.CompareWorkspaceResponse_Difference{Difference: d}})
	if err != nil || names {
		return err
	}
	err = c.contents(before, old, func(p []byte) error {
		return c.send(&agboxv1.CompareWorkspaceResponse{Item: &agboxv1.CompareWorkspaceResponse_Before{Before: p}})
	})
	if err != nil {
		return err
	}
	return c.contents(after, content, func(p []byte) error {
		return c.send(&agboxv1.CompareWorkspaceResponse{Item: &agboxv1.CompareWorkspaceResponse_After{After: p}})
	})
}

// isHome notes a file that came home before, if it did.
func (c *comparison) isHome(path string, file *agboxv1.WorkspaceFile) {
	copied, ok := c.base.Copied()[path]
	if before := baseFile(copied); c.o.Home && ok && !equal(before, file) {
		c.home = append(c.home, &agboxv1.WorkspaceDifference{Path: []byte(path), Before: before, After: file})
	}
}

// sendHome sends what came home before.
func (c *comparison) sendHome() error {
	for path := range c.removed {
		if !c.seen[path] {
			c.isHome(path, nil)
		}
	}
	for _, d := range c.home {
		if err := c.send(&agboxv1.CompareWorkspaceResponse{Item: &agboxv1.CompareWorkspaceResponse_Home{Home: d}}); err != nil {
			return err
		}
	}
	return nil
}

// bound marks a difference whose contents would be more than one comparison may send.
func (c *comparison) bound(d *agboxv1.WorkspaceDifference) {
	need := uint64(0)
	for _, f := range []*agboxv1.WorkspaceFile{d.GetBefore(), d.GetAfter()} {
		if f != nil && !f.GetTooLarge() && !c.sent[string(f.GetSha256())] {
			need += f.GetSize()
		}
	}
	if c.total+need <= cmp.Or(c.o.total, maxTotal) {
		c.total += need
		return
	}
	for _, f := range []*agboxv1.WorkspaceFile{d.GetBefore(), d.GetAfter()} {
		if f != nil {
			f.TooLarge = true
		}
	}
}

// contents sends the content of a side, unless it is too large or was sent before.
func (c *comparison) contents(f *agboxv1.WorkspaceFile, content func(io.Writer) error, send pieces) error {
	sum := string(f.GetSha256())
	if f == nil || f.GetTooLarge() || c.sent[sum] {
		return nil
	}
	if c.o.Once {
		c.sent[sum] = true
	}
	return content(send)
}

// count counts the changed lines.
func count(d *agboxv1.WorkspaceDifference, before, after func(io.Writer) error) error {
	var texts [2]edits.LineText
	for i, side := range []struct {
		file    *agboxv1.WorkspaceFile
		content func(io.Writer) error
	}{{d.GetBefore(), before}, {d.GetAfter(), after}} {
		if side.file.GetTooLarge() {
			d.Binary = true
			return nil
		}
		if side.file != nil {
			if err := side.content(&texts[i]); err != nil {
				return err
			}
		}
	}
	lines := edits.CompareLines(&texts[0], &texts[1])
	d.Added, d.Removed, d.Binary = uint64(lines.Added), uint64(lines.Removed), lines.Binary
	return nil
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

// partSize is how many files of a base are sent at a time.
const partSize = 500

// Lost sends the files of a base that a branch has lost.
func Lost(base *Base, send func(*agboxv1.CompareWorkspaceResponse) error) error {
	for _, f := range base.GetBranched() {
		if f = base.File(string(f.GetPath())); !f.GetUntracked() {
			continue
		}
		if err := send(&agboxv1.CompareWorkspaceResponse{Item: &agboxv1.CompareWorkspaceResponse_BaseFile{BaseFile: fileOf(f)}}); err != nil {
			return err
		}
	}
	return nil
}

// Files sends all files of a base, one by one or in parts.
func Files(base *Base, inParts bool, send func(*agboxv1.CompareWorkspaceResponse) error) error {
	if !inParts {
		for _, f := range base.GetFiles() {
			if err := send(&agboxv1.CompareWorkspaceResponse{Item: &agboxv1.CompareWorkspaceResponse_BaseFile{BaseFile: fileOf(f)}}); err != nil {
				return err
			}
		}
		return nil
	}
	for some := range slices.Chunk(slices.Concat(base.GetFiles(), base.Removed()), partSize) {
		part := new(agboxv1.AdvancedFiles)
		for _, f := range some {
			part.Files = append(part.Files, fileOf(f))
		}
		if err := send(&agboxv1.CompareWorkspaceResponse{Item: &agboxv1.CompareWorkspaceResponse_BaseFiles{BaseFiles: part}}); err != nil {
			return err
		}
	}
	return nil
}

func fileOf(f *storev1.BaseFile) *agboxv1.AdvancedFile {
	all := &agboxv1.AdvancedFile{Path: f.GetPath(), Untracked: f.GetUntracked(), Branched: len(f.GetCommits()) > 0 && !f.GetUntracked()}
	if f.GetMode() != 0 {
		all.File = baseFile(f)
	}
	return all
}

// retracked reports whether git tracks a file that a branch lost because git did not track it.
func (c *comparison) retracked(path string) bool {
	return c.inIndex[path] && c.base.File(path).GetUntracked()
}
