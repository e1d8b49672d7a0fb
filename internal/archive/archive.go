// Package archive packs trees of files into tar archives and unpacks them, on
// both sides of a sandbox's wall: the supervisor in a container and the client on
// the host use the same code.
//
// An archive is written by whoever is on the other side, and may say anything.
// Unpacking touches nothing outside the directory that it is given: it goes down
// name by name from one open directory, follows no symbolic link, and never
// writes to a file that it has not made. Memory does not grow with the archive.
package archive

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

const (
	// maxDepth is how deep trees may be; each level holds a descriptor.
	maxDepth = 256
	// chunk is how much of a file is read or written at a time, in bytes.
	chunk = 256 << 10
	// small is the size up to which a file is handled in one go, in bytes.
	small = 64 << 10
)

// Do runs work that may wait for a disk, or needs somebody's rights. Nil runs it
// as it is.
type Do func(func() error) error

func (d Do) run(fn func() error) error {
	if d == nil {
		return fn()
	}
	return d(fn)
}

// Refusal is an archive, or a tree, that is not accepted.
type Refusal struct {
	// Name is the entry; empty when the archive as a whole is meant.
	Name string
	// Why continues a sentence that begins with the entry.
	Why string
}

// Error returns what was refused and why, without a full stop.
func (r *Refusal) Error() string {
	if r.Name == "" {
		return "the archive " + r.Why
	}
	return fmt.Sprintf("the entry %s of the archive %s", show(r.Name), r.Why)
}

// IsRefusal tells whether err is or wraps a Refusal.
func IsRefusal(err error) bool { return errors.As(err, new(*Refusal)) }

func refuse(name, format string, args ...any) error {
	return &Refusal{Name: name, Why: fmt.Sprintf(format, args...)}
}

// Failure is an operation on one file that failed.
type Failure struct {
	// Op is what was to be done, for example "make".
	Op string
	// Name is the file, from the top of the tree.
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

// split gives the parts of a name in an archive; none is the target itself. It
// refuses a name that does not stay below it.
func split(name string) ([]string, error) {
	if strings.HasPrefix(name, "/") {
		return nil, refuse(name, "has an absolute name")
	}
	if strings.IndexByte(name, 0) >= 0 {
		return nil, refuse(name, "has a NUL in its name")
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
