// Package files moves files between the host and sandboxes: small calls about files,
// transfers for clients, and what is copied in while a sandbox is made.
package files

import (
	"context"
	"time"

	"github.com/containerd/errdefs"

	guestv1 "github.com/agbox/agbox/proto/guest/v1"

	"github.com/agbox/agbox/daemon/guests/links"
	"github.com/agbox/agbox/internal/paths"
	"github.com/agbox/agbox/runtime/guest"
)

const (
	// fileTimeout bounds a small call about files. Removing a tree takes long.
	fileTimeout = 10 * time.Minute
	// maxTransfers bounds the transfers of one sandbox at a time; further ones
	// wait. It stays below what its supervisor takes. So many trees can be removed
	// beside them.
	maxTransfers = 16
)

// Files makes calls about files over the links to supervisors.
type Files struct {
	links *links.Links
	paths paths.Install

	// transfers are those of files under way, removals those of trees.
	transfers, removals turns
}

// New makes Files.
func New(l *links.Links, install paths.Install) *Files { return &Files{links: l, paths: install} }

// Call makes a small call about files of a sandbox.
func (f *Files) Call(ctx context.Context, sandboxID string, op guest.FileOp, req *guestv1.FileRequest) (*guestv1.FileReply, error) {
	lk, err := f.links.Wait(ctx, sandboxID)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, fileTimeout)
	defer cancel()
	if op != guest.RemoveFile || !req.GetDeep() {
		return lk.Conn.File(ctx, op, req)
	}
	leave, err := f.removals.enter(ctx, sandboxID)
	if err != nil {
		return nil, err
	}
	defer leave()
	return guest.RemoveTree(ctx, f.paths.GuestLink(sandboxID), req)
}

// Transfer begins a transfer of files of a sandbox, when it is its turn. Done
// must be called at the end; it closes the transfer.
func (f *Files) Transfer(ctx context.Context, sandboxID string, req *guestv1.TransferRequest) (t *guest.Transfer, done func(), err error) {
	// Only a sandbox whose supervisor is linked has one that answers.
	lk, err := f.links.Wait(ctx, sandboxID)
	if err != nil {
		return nil, nil, err
	}
	leave := func() {}
	if req.GetWatch() == nil { // a watch may last for ever and moves nothing
		if leave, err = f.transfers.enter(ctx, sandboxID); err != nil {
			return nil, nil, err
		}
	}
	t, err = guest.DialTransfer(ctx, f.paths.GuestLink(sandboxID), req)
	if err != nil {
		leave()
		return nil, nil, f.tooOld(ctx, lk, err)
	}
	return t, func() { t.Close(); leave() }, nil
}

// tooOld asks a supervisor that hung up on a transfer whether it knows of files at
// all: one that is older does not say so.
func (f *Files) tooOld(ctx context.Context, lk *links.Link, err error) error {
	if !errdefs.IsUnavailable(err) {
		return err
	}
	_, asked := lk.Conn.File(ctx, guest.StatFile, &guestv1.FileRequest{Path: []byte("/")})
	if errdefs.IsNotImplemented(asked) {
		return asked
	}
	return err
}
