package files

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"io"
	"path"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/sys/user"
	"golang.org/x/sys/unix"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"

	"github.com/agbox/agbox/daemon/guests/links"
	"github.com/agbox/agbox/daemon/hostfiles"
	"github.com/agbox/agbox/daemon/review"
	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/runtime/guest"
	"github.com/agbox/agbox/workspace/archive"
)

const (
	// pushTimeout bounds the writing of one piece of a copy. A busy disk may take long.
	pushTimeout = 2 * time.Minute
	// pieceSize is the size of one piece of a copy, in bytes.
	pieceSize = 256 << 10
)

// CopyIn copies files of the host into a linked sandbox, one after the other. Repeated,
// it replaces what it made before. progress receives the progress since the previous
// call, and the current copy. Only one goroutine at a time calls it.
func (f *Files) CopyIn(ctx context.Context, sandboxID string, check hostfiles.Checker, copies []hostfiles.Copy, progress func(one hostfiles.Copy, files, bytes int64)) error {
	lk, err := f.links.Get(sandboxID)
	if err != nil {
		return err
	}
	c := &copyIn{files: f, lk: lk, check: check}
	defer c.discard()
	for _, one := range copies {
		tell := func(files, bytes int64) { progress(one, files, bytes) }
		if err := c.one(ctx, one, tell); err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return one.Failed(err)
		}
	}
	return c.finishBase(ctx)
}

// copyIn is one run of CopyIn.
type copyIn struct {
	files *Files
	lk    *links.Link
	check hostfiles.Checker
	// who is the user of execs, once it was resolved.
	who *user.ExecUser
	// base records the workspace; nil before and after. about says what it is of.
	base  *review.BaseRecorder
	about review.AboutBase
}

func (c *copyIn) one(ctx context.Context, one hostfiles.Copy, progress func(files, bytes int64)) error {
	owner, err := c.owner(ctx, one)
	if err != nil {
		return err
	}
	target, err := c.resolve(ctx, one.Target)
	if err != nil {
		return err
	}
	if one.From != "" {
		return c.fromSandbox(ctx, one, target, progress)
	}
	if one.Added {
		return c.add(ctx, target, one.Content)
	}
	tree, err := c.check.Open(one)
	if err != nil {
		return err
	}
	defer tree.Close()
	above := archive.Owner{}
	if hostfiles.InHome(one.Target) {
		above = owner
	}
	dir, name, err := c.destination(ctx, target, tree.IsDir(), above)
	if err != nil {
		return err
	}
	var record archive.Record
	if one.Base && tree.IsDir() {
		if err := c.beginBase(ctx, one, dir, name); err != nil {
			return err
		}
		record = c.base
	}
	return c.send(ctx, dir, name, func(w io.Writer) error { return tree.Pack(ctx, w, name, owner, record, progress) })
}

// resolve replaces "~" in a target by the home of the user of execs.
func (c *copyIn) resolve(ctx context.Context, target string) (string, error) {
	rest, home := strings.CutPrefix(target, "~")
	if !home || !hostfiles.InHome(target) {
		return target, nil
	}
	who, err := c.user(ctx)
	if err != nil {
		return "", err
	}
	return path.Join(who.Home, rest), nil
}

// owner returns the owner of a copy.
func (c *copyIn) owner(ctx context.Context, one hostfiles.Copy) (archive.Owner, error) {
	if one.ForUser {
		who, err := c.user(ctx)
		if err != nil {
			return archive.Owner{}, err
		}
		return archive.Owner{UID: who.Uid, GID: who.Gid}, nil
	}
	return one.Numbers()
}

// user returns the default user of execs, resolved with the container's own files.
func (c *copyIn) user(ctx context.Context) (*user.ExecUser, error) {
	if c.who != nil {
		return c.who, nil
	}
	name := cmp.Or(c.lk.Boot.GetUser(), "0")
	passwd, err := c.read(ctx, "/etc/passwd")
	if err != nil {
		return nil, err
	}
	group, err := c.read(ctx, "/etc/group")
	if err != nil {
		return nil, err
	}
	c.who, err = hostfiles.LookUpUser(name, passwd, group)
	return c.who, err
}

// read reads a small file of the container. A missing file counts as empty.
func (c *copyIn) read(ctx context.Context, name string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, pushTimeout)
	defer cancel()
	t, err := guest.DialTransfer(ctx, c.files.paths.GuestLink(c.lk.SandboxID), c.files.links.Check(c.lk.SandboxID), &guestv1.TransferRequest{
		Kind: &guestv1.TransferRequest_Read{Read: &guestv1.ReadTransfer{Path: []byte(name), Length: hostfiles.MaxUserFile}},
	})
	if fault.ReasonOf(err) == agboxv1.ErrorReason_FILE_NOT_FOUND {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer t.Close()
	var content []byte
	for len(content) < hostfiles.MaxUserFile {
		piece, err := t.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		content = append(content, piece...)
	}
	return content, nil
}

// destination returns the folder and the name for a copy. If the target is an existing
// folder, also through a symbolic link, a folder is merged into it. It makes missing
// parent folders.
func (c *copyIn) destination(ctx context.Context, target string, isDir bool, above archive.Owner) (dir, name string, err error) {
	if at, err := c.stat(ctx, target); err != nil {
		return "", "", err
	} else if isDir && at != nil && at.GetMode()&unix.S_IFMT == unix.S_IFDIR && string(at.GetRealPath()) != "/" {
		target = string(at.GetRealPath())
	}
	dir, name = path.Dir(target), path.Base(target)
	return dir, name, c.folders(ctx, dir, above)
}

// stat describes the target of a path, or returns nil if there is none.
func (c *copyIn) stat(ctx context.Context, name string) (*guestv1.FileStat, error) {
	ctx, cancel := context.WithTimeout(ctx, links.CallTimeout)
	defer cancel()
	reply, err := c.lk.Conn.File(ctx, guest.StatFile, &guestv1.FileRequest{Path: []byte(name), Follow: true})
	if r := fault.ReasonOf(err); r == agboxv1.ErrorReason_FILE_NOT_FOUND {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return reply.GetFiles()[0], nil
}

// folders makes the missing parts of a folder's path.
func (c *copyIn) folders(ctx context.Context, dir string, owner archive.Owner) error {
	there := dir
	var missing []string
	for there != "/" {
		at, err := c.stat(ctx, there)
		if err != nil {
			return err
		}
		if at != nil {
			break
		}
		missing = append([]string{path.Base(there)}, missing...)
		there = path.Dir(there)
	}
	if len(missing) == 0 {
		return nil
	}
	names := make([]string, len(missing))
	for i := range missing {
		names[i] = path.Join(missing[:i+1]...)
	}
	return c.send(ctx, there, "", func(w io.Writer) error { return hostfiles.Folders(w, names, owner) })
}

// send unpacks the archive that pack writes in a folder of the container.
func (c *copyIn) send(ctx context.Context, dir, only string, pack func(io.Writer) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	t, err := guest.DialTransfer(ctx, c.files.paths.GuestLink(c.lk.SandboxID), c.files.links.Check(c.lk.SandboxID), &guestv1.TransferRequest{
		Kind: &guestv1.TransferRequest_In{In: &guestv1.InTransfer{
			Path: []byte(dir), Only: []byte(only), Special: guestv1.Special_SPECIAL_SKIP,
		}},
	})
	if err != nil {
		return err
	}
	defer t.Close()
	out, in := io.Pipe()
	packed := make(chan error, 1)
	go func() { // waited for below
		buf := bufio.NewWriterSize(in, pieceSize)
		err := pack(buf)
		if err == nil {
			err = buf.Flush()
		}
		_ = in.CloseWithError(err)
		packed <- err
	}()
	pushErr := push(t, out, func() { cancel(context.DeadlineExceeded) })
	_ = out.CloseWithError(io.ErrClosedPipe)
	packErr := <-packed
	switch {
	case packErr != nil && !errors.Is(packErr, io.ErrClosedPipe):
		return packErr // the reason why there was nothing more to push
	case pushErr != nil && errors.Is(context.Cause(ctx), context.DeadlineExceeded):
		return fault.New(errdefs.ErrUnavailable, agboxv1.ErrorReason_SANDBOX_UNREACHABLE,
			"The sandbox took nothing for %s.", pushTimeout).Because(pushErr)
	}
	return pushErr
}

// push sends everything that it reads to a transfer, and finishes the transfer. It calls
// late if one piece takes too long.
func push(t *guest.Transfer, from io.Reader, late func()) error {
	buf := make([]byte, pieceSize)
	for {
		n, err := from.Read(buf) // complete pieces, because they are buffered
		end := err == io.EOF     //nolint:errorlint // what wraps it, or looks like it, says that the source broke off
		if err != nil && !end {
			return err
		}
		watchdog := time.AfterFunc(pushTimeout, late)
		if n > 0 {
			err = t.Push(buf[:n])
		} else {
			err = nil
		}
		if err == nil && end {
			_, err = t.Finish()
		}
		watchdog.Stop()
		if err != nil || end {
			return err
		}
	}
}
