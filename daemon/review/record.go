package review

import (
	"archive/tar"
	"cmp"
	"crypto/sha256"
	"fmt"
	"hash"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	storev1 "github.com/agbox/agbox/proto/store/v1"
	"github.com/agbox/agbox/workspace/gitignore"
)

// BaseRecorder writes a base while its workspace is packed: it is an archive.Record. One
// goroutine at a time uses it.
type BaseRecorder struct {
	dir, top string
	pack     *os.File
	out      *packWriter
	base     *storev1.WorkspaceBase
	byName   map[string]*storev1.BaseFile
	// current is the file whose content arrives; nil if it is not kept.
	current *storev1.BaseFile
	sum     hash.Hash
	refs    refs
}

// RecordBase begins the base of a folder dir, which it makes anew. top is the name of the
// workspace in the archive. Either Finish or Discard must be called.
func RecordBase(dir, top string) (*BaseRecorder, error) {
	if err := os.RemoveAll(dir); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	pack, err := os.OpenFile(filepath.Join(dir, packName), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	r := &BaseRecorder{dir: dir, top: top + "/", pack: pack, base: new(storev1.WorkspaceBase), byName: make(map[string]*storev1.BaseFile), sum: sha256.New()}
	if r.out, err = appendTo(pack, 0, 0); err != nil {
		return nil, cmp.Or(err, pack.Close())
	}
	return r, nil
}

// Header begins a file. Content follows.
func (r *BaseRecorder) Header(h *tar.Header) {
	r.finishFile()
	path, below := strings.CutPrefix(h.Name, r.top)
	r.refs.begin(path)
	if !below || gitignore.Inside(path) {
		return
	}
	f := &storev1.BaseFile{Path: []byte(path), Mode: unix.S_IFREG | uint32(h.Mode&0o7777), Size: uint64(h.Size), Modified: h.ModTime.UnixNano()}
	switch h.Typeflag {
	case tar.TypeReg:
		f.Offset = r.out.written
		r.current = f
	case tar.TypeSymlink:
		f.Mode, f.Size, f.Link = unix.S_IFLNK|0o777, 0, []byte(h.Linkname)
	case tar.TypeLink:
		first := r.byName[strings.TrimPrefix(h.Linkname, r.top)]
		if first == nil {
			return
		}
		f.Mode, f.Size, f.Modified, f.Offset, f.Sha256, f.Link = first.GetMode(), first.GetSize(), first.GetModified(), first.GetOffset(), first.GetSha256(), first.GetLink()
	default:
		return
	}
	r.base.Files = append(r.base.Files, f)
	r.byName[path] = f
}

// Content adds content of the file of the last Header.
func (r *BaseRecorder) Content(data []byte) {
	r.refs.add(data)
	if r.current == nil {
		return
	}
	_, _ = r.sum.Write(data) // a hash never fails
	r.out.add(data)
}

func (r *BaseRecorder) finishFile() {
	if r.current != nil {
		r.current.Sha256 = r.sum.Sum(nil)
		r.sum.Reset()
		r.current = nil
	}
}

// AboutBase says what a base is of.
type AboutBase struct {
	// Source is the folder of the host, and Target its path in the container.
	Source, Target string
	Excludes       []string
	// CopiedAt is when the copy was complete, in nanoseconds since 1970.
	CopiedAt int64
	// Foreign are the paths below Target that other copies and mounts brought in,
	// relative to it.
	Foreign []string
}

// Finish completes the base.
func (r *BaseRecorder) Finish(about AboutBase) error {
	r.finishFile()
	blocks, err := r.out.close()
	if err = cmp.Or(err, r.pack.Close()); err != nil {
		return fmt.Errorf("the base of the workspace could not be written: %w", err)
	}
	b := r.base
	b.Source, b.Target, b.ExcludePatterns, b.CopiedAt, b.Foreign, b.Blocks = about.Source, about.Target, about.Excludes, about.CopiedAt, about.Foreign, blocks
	b.Head, b.Home = r.refs.head(), r.refs.all()
	if err := writeBase(r.dir, b, nil); err != nil {
		return fmt.Errorf("the base of the workspace could not be written: %w", err)
	}
	return nil
}

// Discard ends without a base.
func (r *BaseRecorder) Discard() {
	_, _ = r.out.close() // removed below
	_ = r.pack.Close()
	_ = os.RemoveAll(r.dir) // without an index it is no base
}

// blockSize is the size of a block before compression, in bytes.
const blockSize = 1 << 20

// packWriter appends contents to a pack. Its goroutine compresses and writes full blocks,
// and ends with close.
type packWriter struct {
	file *os.File
	// written is the total of the bytes given to add, and offset where the next block
	// goes in the file.
	written, offset uint64
	buf             []byte
	full            chan []byte
	spare           chan []byte
	ended           chan struct{}
	// blocks and err belong to the goroutine until ended is closed.
	blocks []*storev1.BaseBlock
	err    error
}

// appendTo returns a writer that appends to a pack whose blocks end at an offset.
func appendTo(file *os.File, offset, written uint64) (*packWriter, error) {
	small, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1))
	if err != nil {
		return nil, err
	}
	p := &packWriter{
		file: file, written: written, offset: offset, buf: make([]byte, 0, blockSize),
		full: make(chan []byte, 2), spare: make(chan []byte, 4), ended: make(chan struct{}),
	}
	go func() { // close waits for it
		defer close(p.ended)
		var out []byte
		for block := range p.full {
			if p.err == nil {
				out = small.EncodeAll(block, out[:0])
				p.write(out, len(block))
			}
			p.spare <- block[:0]
		}
	}()
	return p, nil
}

func (p *packWriter) write(out []byte, size int) {
	if _, p.err = p.file.WriteAt(out, int64(p.offset)); p.err != nil {
		return
	}
	// The disk begins now, so the sync at the end waits for little. It may fail: the sync
	// decides.
	_ = unix.SyncFileRange(int(p.file.Fd()), int64(p.offset), int64(len(out)), unix.SYNC_FILE_RANGE_WRITE)
	p.blocks = append(p.blocks, &storev1.BaseBlock{Offset: p.offset, Length: uint32(len(out)), Size: uint32(size)})
	p.offset += uint64(len(out))
}

// add appends bytes.
func (p *packWriter) add(data []byte) {
	p.written += uint64(len(data))
	for len(data) > 0 {
		n := min(len(data), blockSize-len(p.buf))
		p.buf, data = append(p.buf, data[:n]...), data[n:]
		if len(p.buf) == blockSize {
			p.flush()
		}
	}
}

func (p *packWriter) flush() {
	p.full <- p.buf
	select {
	case p.buf = <-p.spare:
	default:
		p.buf = make([]byte, 0, blockSize)
	}
}

// close writes the rest and returns the blocks. It leaves the file open.
func (p *packWriter) close() ([]*storev1.BaseBlock, error) {
	if len(p.buf) > 0 {
		p.flush()
	}
	close(p.full)
	<-p.ended
	return p.blocks, cmp.Or(p.err, p.file.Sync())
}

// refs reads references of git while a workspace is packed.
type refs struct {
	// files are those of the repository at the top that head needs.
	files map[string]*strings.Builder
	// current is the file whose content arrives, and name its name; nil if it has no reference.
	current *strings.Builder
	name    string
	// named is what references of all repositories name.
	named map[string]bool
}

// maxRefs is the maximum size of a file with references, in bytes. A larger one is cut. maxNamed is
// how many commits and tags of references are kept.
const (
	maxRefs  = 16 << 20
	maxNamed = 100_000
)

// begin begins a file.
func (r *refs) begin(name string) {
	r.finish()
	dir, base := path.Split(name)
	if !strings.Contains("/"+dir, "/.git/") || base != "HEAD" && base != "packed-refs" && !strings.Contains(dir, "/refs/") {
		return
	}
	r.current, r.name = new(strings.Builder), name
	if name, ok := strings.CutPrefix(name, ".git/"); ok && (name == "HEAD" || name == "packed-refs" || strings.HasPrefix(name, "refs/heads/")) {
		if r.files == nil {
			r.files = make(map[string]*strings.Builder)
		}
		r.files[name] = r.current
	}
}

func (r *refs) add(data []byte) {
	if r.current != nil && r.current.Len()+len(data) <= maxRefs {
		r.current.Write(data)
	}
}

// finish ends a file.
func (r *refs) finish() {
	if r.current == nil {
		return
	}
	text := r.current.String()
	r.current = nil
	if path.Base(r.name) != "packed-refs" {
		r.note(strings.TrimSpace(text))
		return
	}
	for _, commit := range gitignore.Packed(text) {
		r.note(commit)
	}
}

func (r *refs) note(commit string) {
	if r.named == nil {
		r.named = make(map[string]bool)
	}
	if gitignore.IsCommit(commit) && len(r.named) < maxNamed {
		r.named[commit] = true
	}
}

// all returns what references name, sorted.
func (r *refs) all() []string {
	r.finish()
	return slices.Sorted(maps.Keys(r.named))
}

// head returns the commit that HEAD names, or "".
func (r *refs) head() string {
	commit, _ := gitignore.HeadCommit(func(name string) (string, error) { // without one, commits do not come home
		if f := r.files[name]; f != nil {
			return strings.TrimSpace(f.String()), nil
		}
		return "", nil
	})
	return commit
}
