package files_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/agbox/agbox/internal/paths"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"
	"github.com/agbox/agbox/runtime/guest"
	"github.com/agbox/agbox/runtime/guest/rpc"
	"github.com/agbox/agbox/runtime/supervisor/files"
)

// plant creates a tree and returns the request that removes it.
func plant(t *testing.T) (root string, req *guestv1.FileRequest) {
	t.Helper()
	root = filepath.Join(t.TempDir(), "tree")
	for _, dir := range []string{"a/b/c", "a/empty", "d"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
		for i := range 3 {
			if err := os.WriteFile(filepath.Join(root, dir, "..", fmt.Sprint("f", i)), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	return root, &guestv1.FileRequest{Path: []byte(root), Deep: true}
}

// below lists the paths at and below root.
func below(t *testing.T, root string) string {
	var b strings.Builder
	err := filepath.WalkDir(root, func(p string, _ fs.DirEntry, err error) error {
		fmt.Fprintln(&b, p)
		return err
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	return b.String()
}

// patience is a context that is cancelled after left calls of Err. It then calls over.
type patience struct {
	context.Context
	left int
	over func()
}

func (p *patience) Err() error {
	if p.left > 0 {
		p.left--
		return nil
	}
	if p.over != nil {
		p.over()
		p.over = nil
	}
	return context.Canceled
}

func TestACancelledRemovalRemovesNothingMore(t *testing.T) {
	service := files.New(t.Context(), nil)
	for last := 0; ; last++ { // the number of checks before the cancellation
		root, req := plant(t)
		seen, over := "", false
		reply, err := service.Remove(&patience{t.Context(), last, func() { seen, over = below(t, root), true }}, &guestv1.FileRequest{Path: req.GetPath(), Deep: req.GetDeep()})
		now := below(t, root)
		if !over {
			if err != nil || reply.GetError() != nil || !strings.HasSuffix(now, "tree\n") {
				t.Errorf("at the end: %v, %v; there is\n%s", err, reply, now)
			}
			if last < 10 {
				t.Errorf("it checks only %d times", last)
			}
			return
		}
		if now != seen || seen == "" || !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled at check %d: %v\nthere was\n%sand is\n%s", last, err, seen, now)
		}
	}
}

// spy reports the removals that it forwards.
type spy struct {
	*files.Service
	began chan context.Context
	ended chan struct{}
}

func (s *spy) Remove(ctx context.Context, req *guestv1.FileRequest) (*guestv1.FileReply, error) {
	defer close(s.ended)
	s.began <- ctx
	return s.Service.Remove(ctx, req)
}

// hello is the part of a supervisor that a connection needs.
func hello(context.Context, *guestv1.HelloRequest) (*guestv1.HelloResponse, error) {
	return &guestv1.HelloResponse{Protocol: 1, BootId: "boot"}, nil
}

func TestARemovalIsCancelledWithItsCaller(t *testing.T) {
	s := &spy{files.New(t.Context(), nil), make(chan context.Context), make(chan struct{})}
	link := shortDir(t)
	l, err := net.Listen("unix", filepath.Join(link, paths.LinkSocket))
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		rpc.NewConn(c, func() {}).Serve(context.WithoutCancel(t.Context()), bufio.NewReader(c), rpc.Methods{
			"guest.v1.Supervisor/Hello": rpc.Unary(hello),
			"guest.v1.Files/Remove":     rpc.Unary(s.Remove),
		})
	})
	t.Cleanup(func() { _ = l.Close(); serving.Wait() })

	root, req := plant(t)
	before := below(t, root)
	release := s.HoldThreads()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	removed := make(chan error, 1)
	go func() { _, err := guest.RemoveTree(ctx, link, anyone, req); removed <- err }()
	call := <-s.began
	cancel()
	if err := <-removed; !errors.Is(err, context.Canceled) {
		t.Errorf("it ended with %v", err)
	}
	<-call.Done() // the connection is closed
	release()
	<-s.ended
	if now := below(t, root); now != before {
		t.Errorf("there was\n%sand is\n%s", before, now)
	}
}
