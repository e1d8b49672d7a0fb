// Package files moves files between the host and sandboxes: small file calls, transfers
// for clients, and the files that are copied in while a sandbox is made.
package files

import (
	"context"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"github.com/agbox/agbox/daemon/guests/links"
	"github.com/agbox/agbox/internal/paths"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"
	"github.com/agbox/agbox/runtime/guest"
)

const (
	// fileTimeout bounds a small file call. Removing a tree takes long.
	fileTimeout = 10 * time.Minute
	// maxTransfers bounds the concurrent transfers of one sandbox; further ones wait. It
	// is less than the limit of the supervisor. The same number of trees can be removed
	// at the same time.
	maxTransfers = 16
)

// Files makes file calls over the links to supervisors.
type Files struct {
	links *links.Links
	paths paths.Install

	// transfers limits the running transfers, removals the running removals of trees.
	transfers, removals turns
}

// New makes Files.
func New(l *links.Links, install paths.Install) *Files { return &Files{links: l, paths: install} }

// Call makes a small file call to a sandbox.
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
	return guest.RemoveTree(ctx, f.paths.GuestLink(sandboxID), f.links.Check(sandboxID), req)
}

// Transfer starts a file transfer of a sandbox when it has its turn. done must be called
// at the end. It closes the transfer.
func (f *Files) Transfer(ctx context.Context, sandboxID string, req *guestv1.TransferRequest) (t *guest.Transfer, done func(), err error) {
	// Only a linked supervisor is sure to answer.
	lk, err := f.links.Wait(ctx, sandboxID)
	if err != nil {
		return nil, nil, err
	}
	leave := func() {}
	if req.GetWatch() == nil { // a watch may last forever and moves no bulk data
		if leave, err = f.transfers.enter(ctx, sandboxID); err != nil {
			return nil, nil, err
		}
	}
	t, err = guest.DialTransfer(ctx, f.paths.GuestLink(sandboxID), f.links.Check(sandboxID), req)
	if err != nil {
		leave()
		return nil, nil, f.tooOld(ctx, lk, err)
	}
	return t, func() { t.Close(); leave() }, nil
}

// tooOld checks whether a supervisor that closed the connection of a transfer knows file
// calls at all. An older one does not report the reason.
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

// turns limits the number of concurrent users for each sandbox.
type turns struct {
	// mu guards rooms. It is held only for map operations.
	mu    sync.Mutex
	rooms map[string]*room
}

// room has the turns of one sandbox.
type room struct {
	seats chan struct{}
	// users counts those that have or wait for a turn. The room is removed with the last
	// one.
	users int
}

// enter waits for a turn. The function that it returns ends the turn.
func (t *turns) enter(ctx context.Context, sandboxID string) (leave func(), err error) {
	t.mu.Lock()
	r := t.rooms[sandboxID]
	if r == nil {
		if t.rooms == nil {
			t.rooms = make(map[string]*room)
		}
		r = &room{seats: make(chan struct{}, maxTransfers)}
		t.rooms[sandboxID] = r
	}
	r.users++
	t.mu.Unlock()
	select {
	case r.seats <- struct{}{}:
		return func() { <-r.seats; t.part(sandboxID, r) }, nil
	case <-ctx.Done():
		t.part(sandboxID, r)
		return nil, ctx.Err()
	}
}

func (t *turns) part(sandboxID string, r *room) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if r.users--; r.users == 0 {
		delete(t.rooms, sandboxID)
	}
}
