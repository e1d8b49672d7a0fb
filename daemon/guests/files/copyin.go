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

	"github.com/agbox/agbox/daemon/guests/links"
	"github.com/agbox/agbox/daemon/hostfiles"
	"github.com/agbox/agbox/daemon/review"
	"github.com/agbox/agbox/internal/fault"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"
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
	name := cmp.Or(c.lk.Boot().GetUser(), "0")
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

// add adds lines to the end of a file of root, unless the file has them. A file that the
// sandbox cannot change stays as it is: its root may be read-only.
func (c *copyIn) add(ctx context.Context, target, lines string) error {
	content, err := c.read(ctx, target)
	if err == nil {
		content, missing := withLines(string(content), lines)
		if !missing || len(content) >= hostfiles.MaxUserFile {
			return nil
		}
		err = c.replace(ctx, target, content)
	}
	if f := fault.Of(err); f != nil && !errdefs.IsUnavailable(f.Class) {
		return nil
	}
	return err
}

// withLines returns a text with lines at its end. missing is false if it has them.
func withLines(text, lines string) (all string, missing bool) {
	if strings.Contains("\n"+text, "\n"+lines) {
		return text, false
	}
	if text != "" && !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	return text + lines, true
}

// replace writes a file of root.
func (c *copyIn) replace(ctx context.Context, target, content string) error {
	tree, err := c.check.Open(hostfiles.Copy{Content: content, Target: target})
	if err != nil {
		return err
	}
	dir, name, err := c.destination(ctx, target, false, archive.Owner{})
	if err != nil {
		return err
	}
	return c.send(ctx, dir, path.Base(name), func(w io.Writer) error {
		return tree.Pack(ctx, w, name, archive.Owner{}, nil, func(int64, int64) {})
	})
}

// beginBase begins to record the base of the workspace, which is copied to name in dir.
func (c *copyIn) beginBase(ctx context.Context, one hostfiles.Copy, dir, name string) (err error) {
	c.about = review.AboutBase{Source: one.Source, Target: path.Join(dir, name), Excludes: one.Excludes}
	for _, other := range one.Foreign {
		if other, err = c.resolve(ctx, other); err != nil {
			return err
		}
		if below, ok := strings.CutPrefix(path.Clean(other), c.about.Target+"/"); ok {
			c.about.Foreign = append(c.about.Foreign, below)
		}
	}
	c.base, err = review.RecordBase(c.files.paths.GuestBase(c.lk.SandboxID), name)
	return err
}

// finishBase completes the base after the last copy. The caller records only then that all
// is copied, so a daemon that is killed before copies everything again.
func (c *copyIn) finishBase(ctx context.Context) error {
	if c.base == nil || ctx.Err() != nil {
		return ctx.Err()
	}
	c.about.CopiedAt = time.Now().UnixNano()
	base := c.base
	c.base = nil
	return base.Finish(c.about)
}

// discard removes an incomplete base.
func (c *copyIn) discard() {
	if c.base != nil {
		c.base.Discard()
	}
}

// relayed bounds what one sandbox gets of another one. A program may have put more there than
// the disk of the engine has room for: a file of holes claims any size.
var relayed = archive.Bounds{Files: 1_000_000, Bytes: 8 << 30}

// fromSandbox copies a folder of another sandbox to the same path, with the rights of a user
// there. The host keeps nothing of it: each entry of the archive is checked on its way.
func (c *copyIn) fromSandbox(ctx context.Context, one hostfiles.Copy, target string, progress func(files, bytes int64)) error {
	lk, err := c.files.links.Get(one.From)
	if err != nil {
		return fault.New(errdefs.ErrUnavailable, agboxv1.ErrorReason_SANDBOX_UNREACHABLE, "Sandbox %s, which has it, does not run at the moment; it is tried again.", one.From).Because(err)
	}
	dir, name, err := c.destination(ctx, target, true, archive.Owner{})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx) // ends both transfers if one fails
	defer cancel(nil)
	source, err := guest.DialTransfer(ctx, c.files.paths.GuestLink(lk.SandboxID), c.files.links.Check(lk.SandboxID), &guestv1.TransferRequest{
		User: cmp.Or(one.FromUser, lk.Boot().GetUser(), "0"),
		Kind: &guestv1.TransferRequest_Out{Out: &guestv1.OutTransfer{Path: []byte(path.Clean(target)), Name: []byte(name)}},
	})
	if err != nil {
		return err
	}
	defer source.Close()
	late := fault.New(errdefs.ErrUnavailable, agboxv1.ErrorReason_SANDBOX_UNREACHABLE, "Sandbox %s, which has it, gave nothing for %s.", one.From, pushTimeout)
	next := func() ([]byte, error) {
		watchdog := time.AfterFunc(pushTimeout, func() { cancel(late) })
		defer watchdog.Stop()
		return source.Next()
	}
	return c.send(ctx, dir, name, func(w io.Writer) error {
		err := archive.Relay(ctx, w, &chunks{next: next}, name, relayed, progress)
		if errors.Is(context.Cause(ctx), late) {
			return late
		}
		if archive.IsRefusal(err) {
			return fault.New(errdefs.ErrFailedPrecondition, agboxv1.ErrorReason_INVALID_REQUEST, "It is not taken over, because %v: remove that, or spawn the agent with the workspace \"none\".", err)
		}
		return err
	})
}

// chunks reads the pieces that next returns.
type chunks struct {
	next func() ([]byte, error)
	left []byte
	err  error
}

func (c *chunks) Read(p []byte) (int, error) {
	for len(c.left) == 0 && c.err == nil {
		c.left, c.err = c.next()
	}
	if len(c.left) == 0 {
		return 0, c.err
	}
	n := copy(p, c.left)
	c.left = c.left[n:]
	return n, nil
}
