package files

import (
	"context"
	"errors"
	"testing"

	"go.uber.org/goleak"

	guestv1 "github.com/agbox/agbox/proto/guest/v1"

	"github.com/agbox/agbox/daemon/guests/guesttest"
	"github.com/agbox/agbox/runtime/guest"
	"github.com/agbox/agbox/runtime/guest/rpc"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// idle is a supervisor without execs.
type idle struct{}

func (idle) Hello(context.Context, *guestv1.HelloRequest) (*guestv1.HelloResponse, error) {
	return &guestv1.HelloResponse{Protocol: rpc.Protocol, SupervisorVersion: "test", BootId: "boot1"}, nil
}

func (idle) Watch(ctx context.Context, _ *guestv1.WatchRequest, send func(*guestv1.WatchResponse) error) error {
	if err := send(&guestv1.WatchResponse{Watching: true}); err != nil {
		return err
	}
	<-ctx.Done()
	return ctx.Err()
}

// remover removes until its call ends.
type remover struct {
	began, stopped chan struct{}
}

func (r *remover) Remove(ctx context.Context, _ *guestv1.FileRequest) (*guestv1.FileReply, error) {
	close(r.began)
	<-ctx.Done()
	close(r.stopped)
	return nil, ctx.Err()
}

func TestTheRemovalOfATreeStopsWhenItIsGivenUp(t *testing.T) {
	b := guesttest.New(t)
	r := &remover{began: make(chan struct{}), stopped: make(chan struct{})}
	b.Serve(rpc.Methods{
		"guest.v1.Supervisor/Hello": rpc.Unary(idle{}.Hello),
		"guest.v1.Supervisor/Watch": rpc.Stream(idle{}.Watch),
		"guest.v1.Files/Remove":     rpc.Unary(r.Remove),
	})
	b.Connect()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		_, err := New(b.Links, b.Install).Call(ctx, "a", guest.RemoveFile, &guestv1.FileRequest{Path: []byte("/work"), Deep: true})
		ended <- err
	}()
	<-r.began
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("it ended with %v", err)
	}
	<-r.stopped
	if !b.Links.Connected("a") {
		t.Error("the link went with it")
	}
}
