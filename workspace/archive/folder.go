package archive

import (
	"archive/tar"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

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

// replaced packs a Folder, unless there was an error.
func (p *packer) replaced(f *Folder, name string, err error) error {
	if err != nil {
		return failed("pack", name, err)
	}
	outer := p.o
	defer func() { p.o = outer }()
	p.o.Replace = nil
	dirs := make([]opened, len(f.Parts))
	for i, part := range f.Parts {
		dirs[i] = opened{os.NewFile(uintptr(part.Dir), name), partFilter{strings.TrimPrefix(p.below(name)+"/", "/"), part.Skip}}
		defer dirs[i].Close() // only read
	}
	var e entry
	if err := unix.Fstat(f.Parts[0].Dir, &e.st); err != nil {
		return failed("read", name, err)
	}
	if err := p.folder(&e, name, dirs); err != nil {
		return err
	}
	for _, file := range f.Files {
		h := &tar.Header{Typeflag: tar.TypeReg, Name: name + "/" + file.Name, Mode: 0o644, Size: int64(len(file.Data)), ModTime: time.Now(), Format: tar.FormatPAX}
		if o := p.o.Owner; o != nil {
			h.Uid, h.Gid = o.UID, o.GID
		}
		if err := p.tar.WriteHeader(h); err != nil {
			return failed("pack", h.Name, err)
		}
		if _, err := p.tar.Write(file.Data); err != nil {
			return err
		}
		p.o.Progress(1, h.Size)
	}
	return nil
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
