package archive

import (
	"archive/tar"
	"context"
	"errors"
	"io"
	"strconv"
	"strings"
)

// Bounds limit what Relay passes on.
type Bounds struct {
	// Files is the number of entries, and Bytes the size of all files together, with their holes.
	Files, Bytes int64
}

// Relay reads an archive of one tree to its end and writes it again, entry by entry. It is for
// archives that one container makes and another one unpacks: nothing of them reaches the files
// of this machine. only is the name that the tree must have.
//
// It refuses what is no folder, what Unpack refuses, what leads out of the tree, sparse files, and more than the
// bounds allow; devices and FIFOs are left out. The targets of symbolic links stay as they are:
// nobody follows them here. Errors of the archive are Refusals.
func Relay(ctx context.Context, w io.Writer, r io.Reader, only string, most Bounds, progress func(files, bytes int64)) error {
	u := &unpacker{ctx: ctx, o: UnpackOptions{Only: only}, src: &source{r: r}, buf: make([]byte, chunk)}
	u.tar = tar.NewReader(u.src)
	out := tar.NewWriter(w)
	for first := true; ; first = false {
		if err := ctx.Err(); err != nil {
			return err
		}
		h, err := u.tar.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return u.damaged(err)
		}
		if first && (h.Typeflag != tar.TypeDir || strings.Trim(h.Name, "/") != only) {
			return refuse(h.Name, "is no folder with the name %s", show(only))
		}
		if most.Files--; most.Files < 0 {
			return refuse("", "has too many files")
		}
		if most.Bytes -= max(h.Size, 0); h.Size < 0 || most.Bytes < 0 {
			return refuse(h.Name, "makes it larger than it may be")
		}
		kept, err := u.relayed(h)
		if err != nil {
			return err
		}
		if !kept {
			continue
		}
		if err := out.WriteHeader(h); err != nil {
			return err
		}
		if _, err := io.CopyBuffer(onlyWriter{out}, u.tar, u.buf); err != nil {
			if u.src.err != nil || errors.Is(err, io.ErrUnexpectedEOF) {
				return u.damaged(err)
			}
			return err
		}
		progress(1, h.Size)
	}
	if err := u.drain(); err != nil {
		return err
	}
	return out.Close()
}

// onlyWriter hides io.ReaderFrom, which would read without the buffer.
type onlyWriter struct{ io.Writer }

// relayed checks an entry, and reports whether it is passed on.
func (u *unpacker) relayed(h *tar.Header) (kept bool, err error) {
	parts, err := split(h.Name)
	if err != nil {
		return false, err
	}
	if err := u.allowed(parts, h.Name); err != nil {
		return false, err
	}
	if isSparse(h) {
		return false, refuse(h.Name, "is a sparse file")
	}
	switch h.Typeflag {
	case tar.TypeReg, tar.TypeDir:
	case tar.TypeSymlink:
		if h.Linkname == "" || strings.IndexByte(h.Linkname, 0) >= 0 {
			return false, refuse(h.Name, "is a symbolic link with an invalid target")
		}
	case tar.TypeLink:
		if target, err := split(h.Linkname); err != nil || u.allowed(target, h.Linkname) != nil {
			return false, refuse(h.Name, "is a hard link to %s, outside the target", show(h.Linkname))
		}
	case tar.TypeFifo, tar.TypeChar, tar.TypeBlock:
		return false, nil
	default:
		return false, refuse(h.Name, "has the unknown type %s", strconv.QuoteRune(rune(h.Typeflag)))
	}
	return true, nil
}
