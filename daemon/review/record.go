package review

import (
	"archive/tar"
	"cmp"
	"crypto/sha256"
	"fmt"
	"hash"
	"os"
	"path/filepath"
	"strings"

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
