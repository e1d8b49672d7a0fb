package execs

import (
	"context"
	"errors"
	"testing"

	guestv1 "github.com/agbox/agbox/proto/guest/v1"
	"github.com/agbox/agbox/runtime/guest"
)

// remover has so much to remove that only the end of the call stops it.
type remover struct {
	guestv1.FilesService
	began, stopped chan struct{}
}

func (r *remover) Remove(ctx context.Context, _ *guestv1.FileRequest) (*guestv1.FileReply, error) {
	close(r.began)
	<-ctx.Done()
	close(r.stopped)
	return nil, ctx.Err()
}

func TestTheRemovalOfATreeStopsWhenItIsGivenUp(t *testing.T) {
	b := newBench(t)
	r := &remover{began: make(chan struct{}), stopped: make(chan struct{})}
	b.serve(&supervisor{boot: "boot1", files: r})
	b.connect()
	ctx, giveUp := context.WithCancel(t.Context())
	defer giveUp()
	ended := make(chan error, 1)
	go func() {
		_, err := b.runner.File(ctx, "a", guest.RemoveFile, &guestv1.FileRequest{Path: []byte("/work"), Deep: true})
		ended <- err
	}()
	<-r.began
	giveUp()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("it ended with %v", err)
	}
	<-r.stopped
	if !b.runner.Connected("a") {
		t.Error("the link went with it")
	}
}
