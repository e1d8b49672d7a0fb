// Package archive packs file trees into tar archives and unpacks them. The
// supervisor in a container and the client on the host use the same code.
//
// Archives come from the other side and are untrusted. Unpacking changes nothing
// outside its target directory: it opens one directory after the other relative to
// its parent, follows no symbolic link, and never writes to a file that it has not
// created itself. Memory use does not grow with the archive.
package archive

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

const (
	// maxDepth is the maximum depth of a tree; each level uses a descriptor.
	maxDepth = 256
	// chunk is how much of a file is read or written at a time, in bytes.
	chunk = 256 << 10
	// small is the maximum size of a file that is handled in one step, in bytes.
	small = 64 << 10
)

// Do runs a function that accesses files, so it may block on a disk or need the rights
// of a certain user. A nil Do calls the function directly.
type Do func(func() error) error

func (d Do) run(fn func() error) error {
	if d == nil {
		return fn()
	}
	return d(fn)
}

// Refusal is the error for an archive that is not accepted.
type Refusal struct {
	// Name is the refused entry; empty if the archive as a whole is refused.
	Name string
	// Why is the end of a sentence that begins with the entry.
	Why string
}

// Error returns what was refused and why, without a full stop.
func (r *Refusal) Error() string {
	if r.Name == "" {
		return "the archive " + r.Why
	}
	return fmt.Sprintf("the entry %s of the archive %s", show(r.Name), r.Why)
}

// IsRefusal reports whether err is or wraps a Refusal.
func IsRefusal(err error) bool { return errors.As(err, new(*Refusal)) }

func refuse(name, format string, args ...any) error {
	return &Refusal{Name: name, Why: fmt.Sprintf(format, args...)}
}

// Failure is the error of an operation on one file.
type Failure struct {
	// Op is the operation, for example "make".
	Op string
	// Name is the path of the file from the top of the tree.
	Name string
	Err  error
}

// Error returns the operation, the file and the cause.
func (f *Failure) Error() string { return fmt.Sprintf("%s %s: %v", f.Op, show(f.Name), f.Err) }

// Unwrap returns the cause.
func (f *Failure) Unwrap() error { return f.Err }

func failed(op, name string, err error) error {
	if err == nil || IsRefusal(err) || errors.As(err, new(*Failure)) {
		return err
	}
	return &Failure{Op: op, Name: name, Err: err}
}

func show(name string) string {
	const longest = 256
	if len(name) > longest {
		return strconv.Quote(name[:longest]) + "..."
	}
	return strconv.Quote(name)
}

// split returns the components of a name in an archive; no components mean the target
// itself. It refuses a name that leads out of the target.
func split(name string) ([]string, error) {
	if strings.HasPrefix(name, "/") {
		return nil, refuse(name, "has an absolute name")
	}
	if strings.IndexByte(name, 0) >= 0 {
		return nil, refuse(name, "has a NUL byte in its name")
	}
	parts := make([]string, 0, 8)
	for part := range strings.SplitSeq(name, "/") {
		switch part {
		case "", ".":
			continue
		case "..":
			return nil, refuse(name, "leads out of the target by \"..\"")
		}
		if len(parts) == maxDepth {
			return nil, refuse(name, "is more than %d directories deep", maxDepth)
		}
		parts = append(parts, part)
	}
	return parts, nil
}

const (
	tempPrefix = ".agbox-"
	tempSuffix = ".tmp"
)

// TempName returns a new name for a file that will be renamed when it is complete.
func TempName() string {
	var id [8]byte
	_, _ = rand.Read(id[:]) // never fails
	return tempPrefix + hex.EncodeToString(id[:]) + tempSuffix
}

// IsTemp reports whether a name has the form of TempName.
func IsTemp(name string) bool {
	return strings.HasPrefix(name, tempPrefix) && strings.HasSuffix(name, tempSuffix)
}
