package client

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"unicode/utf8"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"google.golang.org/grpc/codes"

	"github.com/agbox/agbox/workspace/archive"
	"github.com/agbox/agbox/workspace/covers"
)

// pathInfo describes the file at a path of a copy.
type pathInfo struct {
	exists, dir bool
	// special is true for devices, FIFOs, sockets and open files of processes.
	special bool
	// real is the path without symbolic links.
	real string
}

// destination is where a copy goes: a name in a directory. The name "." means that only
// the contents go into the directory.
type destination struct{ dir, name string }

// only is the only name that may be made in the directory; empty means any.
func (d destination) only() string {
	if d.name == "." {
		return ""
	}
	return d.name
}

// contents reports whether a source means only its contents.
func contents(p string) bool {
	return p == "." || p != "" && strings.Trim(p, "/") == "" || strings.HasSuffix(p, "/.")
}

// last splits off the last component of a path. It does not clean the rest, because after
// a symbolic link ".." is not the textual parent.
func last(p string) (dir, base string) {
	for p = strings.TrimRight(p, "/"); strings.HasSuffix(p, "/."); {
		p = strings.TrimRight(strings.TrimSuffix(p, "."), "/")
	}
	dir, base = path.Split(p)
	switch {
	case dir == "":
		return ".", base
	case strings.Trim(dir, "/") == "":
		return "/", base
	}
	return strings.TrimRight(dir, "/"), base
}

// destinationOf returns the destination of a source by the rules of cp and docker cp.
func destinationOf(src string, srcDir bool, dst string, at pathInfo) (destination, error) {
	slash := strings.HasSuffix(dst, "/") || strings.HasSuffix(dst, "/.")
	switch {
	case at.exists && at.dir && srcDir && contents(src):
		return destination{at.real, "."}, nil
	case at.exists && at.dir:
		return destination{at.real, path.Base(path.Clean(src))}, nil
	case at.special:
		return destination{}, &Error{Code: codes.FailedPrecondition, Reason: agboxv1.ErrorReason_FILE_NOT_REGULAR.String(), Message: fmt.Sprintf(
			"%s is a device, a FIFO or a socket, and a copy would replace it. Choose another name, or remove it first.", dst)}
	case at.exists && srcDir:
		return destination{}, &Error{Code: codes.FailedPrecondition, Reason: agboxv1.ErrorReason_NOT_A_DIRECTORY.String(), Message: fmt.Sprintf(
			"The directory %s cannot be copied over %s, which is a file. Choose another name.", src, dst)}
	case at.exists && slash:
		return destination{}, &Error{Code: codes.FailedPrecondition, Reason: agboxv1.ErrorReason_NOT_A_DIRECTORY.String(), Message: fmt.Sprintf(
			"%s is a file. Remove the slash at the end to replace it.", dst)}
	case at.exists:
		return destination{path.Dir(at.real), path.Base(at.real)}, nil
	case slash && !srcDir:
		return destination{}, &Error{Code: codes.NotFound, Reason: agboxv1.ErrorReason_FILE_NOT_FOUND.String(), Message: fmt.Sprintf(
			"The directory %s does not exist. Create it first, or remove the slash at the end to create a file of that name.", dst)}
	}
	dir, base := last(dst)
	if base == "." || base == ".." {
		return destination{}, &Error{Code: codes.NotFound, Reason: agboxv1.ErrorReason_FILE_NOT_FOUND.String(), Message: fmt.Sprintf(
			"The directory %s does not exist. Create it first.", dst)}
	}
	return destination{dir, base}, nil
}

// remote describes a path in a sandbox. It follows symbolic links.
func (c *Client) remote(ctx context.Context, sandbox, p string, o CopyOptions) (pathInfo, error) {
	info, err := c.StatFile(ctx, sandbox, p, true, o.FileOptions)
	if e, ok := errors.AsType[*Error](err); ok && e.Reason == agboxv1.ErrorReason_FILE_NOT_FOUND.String() {
		return pathInfo{}, nil
	}
	at := pathInfo{exists: true, real: info.GetRealPath()}
	switch info.GetType() {
	case agboxv1.FileType_FILE_TYPE_DIRECTORY:
		at.dir = true
	case agboxv1.FileType_FILE_TYPE_FIFO, agboxv1.FileType_FILE_TYPE_SOCKET, agboxv1.FileType_FILE_TYPE_DEVICE:
		at.special = true
	}
	return at, err
}

// remoteSource describes a source in a sandbox and returns the path that determines the
// name of its copy.
func (c *Client) remoteSource(ctx context.Context, sandbox, p string, o CopyOptions) (name string, at pathInfo, err error) {
	above := path.Base(p) == ".." // ".." is not a name
	follow := o.Follow || above || strings.HasSuffix(p, "/") || strings.HasSuffix(p, "/.")
	info, err := c.StatFile(ctx, sandbox, p, follow, o.FileOptions)
	if name = p; above {
		name = info.GetRealPath()
	}
	return name, pathInfo{exists: true, dir: info.GetType() == agboxv1.FileType_FILE_TYPE_DIRECTORY, real: info.GetRealPath()}, err
}

// local describes a path on the host. It follows symbolic links.
func local(p string) (pathInfo, error) {
	st, err := os.Stat(p)
	if errors.Is(err, fs.ErrNotExist) {
		return pathInfo{}, nil
	}
	if err != nil {
		return pathInfo{}, localError("Looking at "+p, err)
	}
	if !st.IsDir() && (!st.Mode().IsRegular() || ofDescriptor(p)) {
		return pathInfo{exists: true, special: true, real: p}, nil
	}
	real, err := filepath.EvalSymlinks(p)
	return pathInfo{exists: true, dir: st.IsDir(), real: real}, localError("Looking at "+p, err)
}

// ofDescriptor reports whether a path names an open file of a process, as /dev/stdout does,
// or is a symbolic link to such a path. A copy would replace the file, not write to it.
func ofDescriptor(p string) bool {
	const longest = 40 // links, as in the kernel
	for range longest {
		to, err := os.Readlink(p)
		if err != nil {
			return false
		}
		dir, err := filepath.EvalSymlinks(filepath.Dir(p))
		if err != nil {
			return false
		}
		if strings.HasPrefix(dir, "/proc/") && filepath.Base(dir) == "fd" {
			return true
		}
		if p = to; !filepath.IsAbs(p) {
			p = dir + "/" + p
		}
	}
	return false
}

// CopyTo copies a file or tree of the host into a sandbox, by the rules of docker cp. If
// the destination is a directory, the source goes into it; if the source ends in "/.",
// its contents do. Otherwise the destination is the name of the copy, in an existing
// directory. Symbolic links, hard links, modes and times are kept. If the daemon goes
// away, the client begins the copy again with the next one.
func (c *Client) CopyTo(ctx context.Context, from, sandbox, to string, o CopyOptions) (Copied, error) {
	tree, err := openTree(from, o.Follow)
	if err != nil {
		return Copied{}, localError("Reading "+from, err)
	}
	defer tree.Close()
	at, err := c.remote(ctx, sandbox, to, o)
	if err != nil {
		return Copied{}, err
	}
	where, err := destinationOf(tree.name, tree.base == "", to, at)
	if err != nil {
		return Copied{}, err
	}
	var done Copied
	err = c.whole(ctx, o, func(progress func(files, bytes int64)) error {
		done, err = c.copyTo(ctx, tree, sandbox, where, o, progress)
		return err
	})
	return done, localError("Copying "+from, err)
}

func (c *Client) copyTo(ctx context.Context, t *tree, sandbox string, where destination, o CopyOptions, progress func(files, bytes int64)) (Copied, error) {
	only := where.only()
	if !utf8.ValidString(only) {
		only = "" // it could not be sent, and this process makes the archive
	}
	pack := func(ctx context.Context, w io.Writer) error {
		buf := bufio.NewWriterSize(w, pieceSize)
		err := archive.Pack(ctx, buf, int(t.dir.Fd()), t.base, archive.PackOptions{Name: where.name, Progress: progress})
		return errors.Join(err, buf.Flush())
	}
	return piped(ctx, pack, func(ctx context.Context, r io.Reader) (Copied, error) {
		return c.WriteArchive(ctx, sandbox, where.dir, only, r, o)
	})
}

// piped lets one function read what another writes.
func piped(ctx context.Context, write func(context.Context, io.Writer) error, read func(context.Context, io.Reader) (Copied, error)) (Copied, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r, w := io.Pipe()
	written := make(chan struct{})
	go func() { // waited for below
		defer close(written)
		_ = w.CloseWithError(write(ctx, w))
	}()
	done, err := read(ctx, r)
	_ = r.CloseWithError(io.ErrClosedPipe)
	<-written
	return done, err
}

// reading reads the source of a copy as an archive, in which it has the name of where.
func (c *Client) reading(sandbox, from string, where destination, o CopyOptions) func(context.Context, io.Writer) error {
	return func(ctx context.Context, w io.Writer) error {
		return c.ReadArchive(ctx, sandbox, source(from), where.name, w, o)
	}
}

// whole repeats a copy from its beginning while the daemon is away.
func (c *Client) whole(ctx context.Context, o CopyOptions, once func(progress func(files, bytes int64)) error) error {
	wait := c.newPatience()
	for restarted := false; ; restarted = true {
		moved := false
		err := once(func(files, bytes int64) {
			moved = true
			if o.Progress != nil {
				o.Progress(files, bytes, restarted)
			}
			restarted = false
		})
		var e *Error
		if err == nil || !errors.As(err, &e) {
			return err
		}
		if moved {
			wait.reset()
		}
		if err := wait.again(ctx, e); err != nil {
			return err
		}
	}
}

// tree is an open source on the host.
type tree struct {
	dir *os.File
	// base is the file in dir. It is empty if dir itself is the source.
	base string
	// name is the source's path. Its last component is the name of the copy.
	name string
}

func (t *tree) Close() { _ = t.dir.Close() } // only read

func openTree(from string, follow bool) (*tree, error) {
	if from == "" {
		return nil, fs.ErrNotExist
	}
	stat := os.Lstat
	if follow || strings.HasSuffix(from, "/") || contents(from) {
		stat = os.Stat
	}
	st, err := stat(from)
	if err != nil {
		return nil, err
	}
	t := &tree{name: from}
	if base := filepath.Base(from); base == ".." || base == "." && !contents(from) {
		if t.name, err = filepath.Abs(from); err != nil {
			return nil, err
		}
	}
	file := from
	if !st.IsDir() {
		if follow {
			if file, err = filepath.EvalSymlinks(from); err != nil {
				return nil, err
			}
		}
		t.base = filepath.Base(file)
		file = filepath.Dir(file)
	}
	t.dir, err = os.Open(file)
	return t, err
}

// CopyFrom copies a file or tree of a sandbox to the host, by the rules of CopyTo.
// Whatever the sandbox sends, nothing is written outside the destination, and setuid and
// setgid bits are removed. Owners are kept only for root.
func (c *Client) CopyFrom(ctx context.Context, sandbox, from, to string, o CopyOptions) (Copied, error) {
	name, src, err := c.remoteSource(ctx, sandbox, from, o)
	if err != nil {
		return Copied{}, err
	}
	at, err := local(to)
	if err != nil {
		return Copied{}, err
	}
	where, err := destinationOf(name, src.dir, to, at)
	if err != nil {
		return Copied{}, err
	}
	dir, err := os.Open(where.dir)
	if err != nil {
		return Copied{}, localError("Copying to "+to, err)
	}
	defer dir.Close() // only opened to write in it
	watch, err := covers.NewWatch(where.dir, o.Executable)
	if err != nil {
		return Copied{}, localError("Copying to "+to, err)
	}
	defer watch.Close()
	var done Copied
	err = c.whole(ctx, o, func(progress func(files, bytes int64)) error {
		done, err = c.copyFrom(ctx, sandbox, from, dir, where, o, archive.UnpackOptions{Progress: progress, Hold: watch.Hold})
		return err
	})
	done.Executable, done.Left = watch.Result()
	return done, localError("Copying to "+to, err)
}

func (c *Client) copyFrom(ctx context.Context, sandbox, from string, dir *os.File, where destination, o CopyOptions, unpack archive.UnpackOptions) (Copied, error) {
	special := archive.SkipSpecial
	if o.Special {
		special = archive.MakeSpecial
	}
	unpack.Only, unpack.KeepOwner, unpack.Special = where.only(), !o.NoOwner && os.Geteuid() == 0, special
	// As root, a device of the sandbox's choice would give access to the host's disks.
	unpack.NoDevices = true
	return piped(ctx, c.reading(sandbox, from, where, o), func(ctx context.Context, r io.Reader) (Copied, error) {
		got, err := archive.Unpack(ctx, r, int(dir.Fd()), unpack)
		return Copied{Files: got.Files, Bytes: got.Bytes, Skipped: got.Skipped}, err
	})
}

// source returns a path of a sandbox without the suffix that says how to copy it, except
// that a symbolic link is still followed.
func source(p string) string {
	if contents(p) && p != "/" {
		return strings.TrimSuffix(p, ".")
	}
	return p
}

// CopyBetween copies a file or tree from one sandbox to another, or within one, by the
// rules of CopyTo. The data passes through the caller, which stores none of it.
func (c *Client) CopyBetween(ctx context.Context, sandbox, from, other, to string, o CopyOptions) (Copied, error) {
	name, src, err := c.remoteSource(ctx, sandbox, from, o)
	if err != nil {
		return Copied{}, err
	}
	at, err := c.remote(ctx, other, to, o)
	if err != nil {
		return Copied{}, err
	}
	where, err := destinationOf(name, src.dir, to, at)
	if err == nil && src.dir {
		err = c.apart(ctx, sandbox, src, other, where, o)
	}
	if err != nil {
		return Copied{}, err
	}
	var done Copied
	err = c.whole(ctx, o, func(progress func(files, bytes int64)) error {
		done, err = piped(ctx, c.reading(sandbox, from, where, o), func(ctx context.Context, r io.Reader) (Copied, error) {
			return c.WriteArchive(ctx, other, where.dir, where.only(), &countingReader{r, progress}, o)
		})
		return err
	})
	return done, err
}

// apart refuses to copy a directory into itself, because that would never end.
func (c *Client) apart(ctx context.Context, sandbox string, src pathInfo, other string, where destination, o CopyOptions) error {
	target, err := c.StatFile(ctx, other, where.dir, true, o.FileOptions)
	if err != nil {
		return err
	}
	if dir := strings.TrimSuffix(src.real, "/") + "/"; !strings.HasPrefix(target.GetRealPath()+"/", dir) {
		return nil
	}
	if sandbox != other { // different names may still mean the same sandbox
		one, err := c.GetSandbox(ctx, sandbox)
		if err != nil {
			return err
		}
		two, err := c.GetSandbox(ctx, other)
		if err != nil || one.GetSandbox().GetSandboxId() != two.GetSandbox().GetSandboxId() {
			return err
		}
	}
	return &Error{Code: codes.InvalidArgument, Reason: agboxv1.ErrorReason_INVALID_REQUEST.String(), Message: fmt.Sprintf(
		"The directory %s cannot be copied into itself. Choose a destination outside it.", src.real)}
}

// countingReader reports the number of bytes of each read.
type countingReader struct {
	r        io.Reader
	progress func(files, bytes int64)
}

func (c *countingReader) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.progress(0, int64(n))
	return n, err
}

// IsDirectory reports whether a path of a sandbox is a directory, or a symbolic link to
// one. It returns false if the path does not exist.
func (c *Client) IsDirectory(ctx context.Context, sandbox, path string, o FileOptions) (bool, error) {
	at, err := c.remote(ctx, sandbox, path, CopyOptions{FileOptions: o})
	return at.dir, err
}
