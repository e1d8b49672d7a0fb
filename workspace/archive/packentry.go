package archive

import (
	"archive/tar"
	"context"
	"errors"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// PackOptions says how to pack.
type PackOptions struct {
	// Name is the name of the tree in the archive; "." packs only its content.
	Name string
	// Do runs everything that accesses files.
	Do Do
	// Filter excludes files; nil excludes nothing.
	Filter Filter
	// Replace returns what to pack in the place of a regular file below the tree, or nil. It
	// may be nil.
	Replace func(name string) (*Folder, error)
	// Owner is the owner of all entries; nil keeps the owners.
	Owner *Owner
	// Changed says by the change time and size of a regular file whether to pack its content. If it
	// is set, headers have the change time, a file without content has its size in the PAX
	// record SizeRecord, and each name of a file is packed as a file of its own.
	Changed func(at time.Time, size int64) bool
	// Record is told what is packed. It may be nil.
	Record Record
	// Progress is called for each entry and each piece of a file, with the increments
	// since the last call. It may be nil.
	Progress func(files, bytes int64)
}

// Record is told what an archive has: each header, and then the content that follows it in
// the archive. It must not keep the bytes.
type Record interface {
	Header(h *tar.Header)
	Content(data []byte)
}

// recorded writes to an archive and tells a Record.
type recorded struct {
	*tar.Writer
	to Record
}

// WriteHeader writes the header of the next entry.
func (r recorded) WriteHeader(h *tar.Header) error {
	if r.to != nil {
		r.to.Header(h)
	}
	return r.Writer.WriteHeader(h)
}

// Write writes content of the last entry.
func (r recorded) Write(data []byte) (int, error) {
	if r.to != nil && len(data) > 0 {
		r.to.Content(data)
	}
	return r.Writer.Write(data)
}

// SizeRecord is the PAX record with the size of a file that is packed without its content.
const SizeRecord = "AGBOX.size"

// UnsearchedRecord is the PAX record of a folder that was not searched to its end for repositories.
const UnsearchedRecord = "AGBOX.unsearched"

// Owner is a user id and a group id.
type Owner struct{ UID, GID int }

// Filter excludes files from a copy.
type Filter interface {
	// Enter is called with each directory before Skip is called for its content. name is
	// the path below the tree, "" for the tree itself. dir is open during the call. If it
	// returns fs.SkipDir, the directory is packed without its content.
	Enter(name string, dir int) error
	// Skip reports whether to exclude a file, or a directory with everything below it. An
	// error ends the copy.
	Skip(name string, isDir bool) (bool, error)
}

type inode struct{ dev, ino uint64 }

type packer struct {
	ctx   context.Context
	o     PackOptions
	tar   recorded
	buf   []byte
	depth int
	// links has the first packed name of each file with several names.
	links     map[inode]string
	linkBytes int
}

// entry is a file that is being packed.
type entry struct {
	st unix.Stat_t
	// fd is open for directories and for regular files whose content may be packed, otherwise -1.
	fd     int
	target string
	xattrs map[string]string
	// head is how many bytes of a regular file begin has read into the buffer.
	head int
}

// linked turns the entry into a hard link if the file was packed before under another
// name. It returns false if it was not.
func (p *packer) linked(e *entry, h *tar.Header) bool {
	if e.st.Nlink < 2 || p.o.Changed != nil {
		return false
	}
	id := inode{e.st.Dev, e.st.Ino}
	if first, ok := p.links[id]; ok {
		h.Typeflag, h.Linkname, h.Size, h.PAXRecords = tar.TypeLink, first, 0, nil
		return true
	}
	if len(p.links) < maxLinks && p.linkBytes+len(h.Name) < maxLinkBytes {
		p.links[id] = h.Name
		p.linkBytes += len(h.Name)
	}
	return false
}

// below returns the path of an entry relative to the tree; the tree itself is "".
func (p *packer) below(name string) string {
	if p.o.Name == "." {
		if name == "." {
			return ""
		}
		return name
	}
	return strings.TrimPrefix(strings.TrimPrefix(name, p.o.Name), "/")
}

func (p *packer) header(e *entry, name string) *tar.Header {
	h := e.header(name)
	if o := p.o.Owner; o != nil {
		h.Uid, h.Gid = o.UID, o.GID
	}
	if p.o.Changed != nil {
		h.ChangeTime = e.changeTime()
	}
	return h
}

// open examines a file without following symbolic links, and opens a regular file or
// directory. It also reads the first piece of a regular file, which is all of most
// files, to save a further call of Do. changed is PackOptions.Changed.
func (e *entry) open(dir int, base string, buf []byte, changed func(at time.Time, size int64) bool) error {
	if err := unix.Fstatat(dir, base, &e.st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	flags := unix.O_RDONLY | unix.O_NOFOLLOW | unix.O_CLOEXEC | unix.O_NONBLOCK | unix.O_NOCTTY
	switch e.st.Mode & unix.S_IFMT {
	case unix.S_IFLNK:
		var err error
		e.target, err = readlinkat(dir, base)
		return err
	case unix.S_IFDIR:
		flags |= unix.O_DIRECTORY
	case unix.S_IFREG:
		// The size of files of the kernel, which may be 0, is known once they are read.
		if changed != nil && e.st.Size > 0 && !changed(e.changeTime(), e.st.Size) {
			return nil
		}
	default:
		return nil
	}
	fd, err := openat(dir, base, flags, 0)
	if err != nil {
		return err
	}
	// Another file may have replaced it since Fstatat.
	kind := e.st.Mode & unix.S_IFMT
	if err = unix.Fstat(fd, &e.st); err == nil && e.st.Mode&unix.S_IFMT != kind {
		err = unix.EAGAIN
	}
	if err == nil && kind == unix.S_IFREG {
		err = e.begin(fd, buf)
	}
	if err != nil {
		_ = unix.Close(fd)
		return err
	}
	if e.fd = fd; changed == nil {
		e.xattrs = xattrs(fd)
	}
	return nil
}

func (e *entry) changeTime() time.Time { return time.Unix(e.st.Ctim.Unix()) }

// errNoSize is the error for a file that is larger than its reported size of 0.
var errNoSize = errors.New("it reports a size of 0 but holds more than 64 KiB, as files in /proc may: copy it with cat instead")

// begin reads the first piece of a regular file. Files in /proc and /sys report a size
// of 0 or of one page, whatever they hold. So if a file ends within its first piece,
// the number of bytes read is its size.
func (e *entry) begin(fd int, buf []byte) (err error) {
	said := e.st.Size
	want := min(said, small)
	if said == 0 {
		want = small
	}
	e.head, err = readFull(fd, buf[:want])
	switch {
	case int64(e.head) < want:
		e.st.Size = int64(e.head)
	case said == 0:
		if err := unix.Fstat(fd, &e.st); err != nil {
			return err
		}
		if e.st.Size == 0 {
			return errNoSize
		}
		e.st.Size = want // the file was empty and grew meanwhile
	}
	if said == 0 && e.head == 0 {
		return nil // pack a file of the kernel that cannot be read as empty
	}
	return err
}

func (e *entry) header(name string) *tar.Header {
	h := &tar.Header{
		Name: name, Mode: int64(e.st.Mode & 0o7777), Uid: int(e.st.Uid), Gid: int(e.st.Gid),
		ModTime: time.Unix(e.st.Mtim.Unix()), Format: tar.FormatPAX, PAXRecords: e.xattrs,
	}
	switch e.st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		h.Typeflag = tar.TypeDir
		h.Name = strings.TrimSuffix(name, "/") + "/"
	case unix.S_IFREG:
		h.Typeflag, h.Size = tar.TypeReg, e.st.Size
	case unix.S_IFLNK:
		h.Typeflag, h.Linkname = tar.TypeSymlink, e.target
	case unix.S_IFIFO:
		h.Typeflag = tar.TypeFifo
	case unix.S_IFCHR, unix.S_IFBLK:
		h.Typeflag = tar.TypeChar
		if e.st.Mode&unix.S_IFMT == unix.S_IFBLK {
			h.Typeflag = tar.TypeBlock
		}
		h.Devmajor, h.Devminor = int64(unix.Major(e.st.Rdev)), int64(unix.Minor(e.st.Rdev))
	}
	return h
}

func (p *packer) regular(e *entry, name string) error {
	h := p.header(e, name)
	if p.linked(e, h) {
		p.o.Progress(1, 0)
		return failed("pack", name, p.tar.WriteHeader(h))
	}
	if p.o.Changed != nil && !p.o.Changed(h.ChangeTime, h.Size) {
		h.PAXRecords, h.Size = map[string]string{SizeRecord: strconv.FormatInt(h.Size, 10)}, 0
		p.o.Progress(1, 0)
		return failed("pack", name, p.tar.WriteHeader(h))
	}
	if err := p.tar.WriteHeader(h); err != nil {
		return failed("pack", name, err)
	}
	if _, err := p.tar.Write(p.buf[:e.head]); err != nil {
		return err
	}
	p.o.Progress(1, int64(e.head))
	for left := e.st.Size - int64(e.head); left > 0; {
		if err := p.ctx.Err(); err != nil {
			return err
		}
		n, err := p.piece(e.fd, min(left, chunk))
		if err != nil {
			return failed("read", name, err)
		}
		if _, err := p.tar.Write(p.buf[:n]); err != nil {
			return err
		}
		p.o.Progress(0, int64(n))
		left -= int64(n)
	}
	return nil
}

// piece reads n bytes; beyond the end of the file it fills in zeros.
func (p *packer) piece(fd int, n int64) (int, error) {
	var got int
	err := p.o.Do.run(func() (err error) {
		got, err = readFull(fd, p.buf[:n])
		return err
	})
	clear(p.buf[got:n])
	return int(n), err
}

// opened is a directory whose content is packed, without what the filter excludes.
type opened struct {
	*os.File
	filter Filter
}

// Folder is packed as a folder in the place of a file: what several folders have, as if they
// were one, then Files. A later entry replaces an earlier one of the same name.
type Folder struct {
	Parts []Part
	Files []Content
}

// Part is a folder whose content is packed. Pack closes Dir.
type Part struct {
	Dir int
	// Skip reports whether to exclude a path below the folder.
	Skip func(name string) bool
}

// Content is a small file that is on no disk.
type Content struct {
	Name string
	Data []byte
}

// partFilter is the Filter of a Part, whose content has a prefix in the tree.
type partFilter struct {
	prefix string
	skip   func(name string) bool
}

func (f partFilter) Enter(string, int) error { return nil }

func (f partFilter) Skip(name string, _ bool) (bool, error) {
	return f.skip(strings.TrimPrefix(name, f.prefix)), nil
}

func (p *packer) skip(e *entry, name string) (bool, error) {
	isDir := e.st.Mode&unix.S_IFMT == unix.S_IFDIR
	switch {
	case p.depth == 0:
		return false, nil
	case !isDir && isGitLock(name):
		return true, nil
	case p.o.Filter == nil:
		return false, nil
	}
	return p.o.Filter.Skip(p.below(name), isDir)
}

// gitLocked are the files that git writes under a lock, besides references.
var gitLocked = []string{
	"index", "packed-refs", "config", "config.worktree", "shallow", "sparse-checkout", "MERGE_RR", "gc.pid",
	"maintenance", "commit-graph", "commit-graph-chain", "multi-pack-index", "tables.list",
}

// isGitLock reports whether a file is a lock of git. Nobody would remove it from a copy, where git would refuse each commit.
func isGitLock(name string) bool {
	base, lock := strings.CutSuffix(path.Base(name), ".lock")
	if !lock {
		return base == "gc.pid" && strings.Contains("/"+name, "/.git/")
	}
	_, below, inside := strings.Cut("/"+name, "/.git/")
	return inside && (slices.Contains(gitLocked, base) || strings.HasSuffix(base, "HEAD") || strings.Contains("/"+below, "/refs/"))
}

const (
	// maxLinks bounds the number of remembered files that have several names, and
	// maxLinkBytes the total length of these names. Beyond that, a file is packed once
	// for each of its names.
	maxLinks     = 32 << 10
	maxLinkBytes = 2 << 20
)
