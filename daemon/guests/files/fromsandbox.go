package files

import (
	"cmp"
	"context"
	"errors"
	"io"
	"path"
	"time"

	"github.com/containerd/errdefs"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"

	"github.com/agbox/agbox/daemon/hostfiles"
	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/runtime/guest"
	"github.com/agbox/agbox/workspace/archive"
)

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
		User: cmp.Or(one.FromUser, lk.Boot.GetUser(), "0"),
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
