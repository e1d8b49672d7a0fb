// Package guesttest has a test bench for the packages below guests: a READY sandbox "a"
// and the socket of its supervisor.
package guesttest

import (
	"bufio"
	"context"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"

	"github.com/agbox/agbox/daemon/guests/links"
	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/internal/paths"
	"github.com/agbox/agbox/runtime/guest/rpc"
	"github.com/agbox/agbox/store"
)

// Bench is a ledger with a READY sandbox "a", and links without a connection. The sandbox
// runs execs as user agent in /work.
type Bench struct {
	Install paths.Install
	Ledger  *ledger.Ledger
	Links   *links.Links
	// Lost receives the id of the sandbox each time a link breaks.
	Lost chan string
	Log  *slog.Logger

	t testing.TB
}

// New makes a Bench that ends with the test.
func New(t testing.TB) *Bench {
	t.Helper()
	dir, err := os.MkdirTemp("", "agbox-guests-") // the path of t.TempDir is too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	b := &Bench{
		t: t, Install: paths.Install{Data: dir, Config: dir, Run: dir},
		Lost: make(chan string, 16), Log: slog.New(slog.DiscardHandler),
	}
	b.makeFolders()
	b.openLedger()
	b.Links = links.New(context.Background(), links.Options{
		Ledger: b.Ledger, Paths: b.Install, Now: time.Now, Log: b.Log, Lost: func(id string) { b.Lost <- id },
		// Serve answers in this process.
		FirstPID: func(context.Context, string) (int, error) { return os.Getpid(), nil },
	})
	t.Cleanup(b.Links.Close)
	return b
}

func (b *Bench) makeFolders() {
	b.t.Helper()
	for _, d := range []string{b.Install.GuestLink("a"), b.Install.SandboxLogs("a")} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			b.t.Fatal(err)
		}
	}
	raw, err := (&guestv1.BootConfig{User: "agent", Cwd: "/work"}).MarshalVT()
	if err != nil {
		b.t.Fatal(err)
	}
	if err := os.WriteFile(b.Install.GuestBoot("a"), raw, 0o600); err != nil {
		b.t.Fatal(err)
	}
}

func (b *Bench) openLedger() {
	b.t.Helper()
	db, err := store.Open(b.t.Context(), store.Options{Path: b.Install.Database(), Sentinel: b.Install.Sentinel()})
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { _ = db.Close() })
	if b.Ledger, err = ledger.Open(b.t.Context(), db, time.Now, b.Log); err != nil {
		b.t.Fatal(err)
	}
	sb, err := b.Ledger.Create(b.t.Context(), "a", &agboxv1.CreateSpec{Image: "img"})
	if err != nil {
		b.t.Fatal(err)
	}
	if _, err := b.Ledger.Emit(b.t.Context(), sb.Record, &agboxv1.SandboxEvent{EventType: agboxv1.EventType_SANDBOX_READY}); err != nil {
		b.t.Fatal(err)
	}
}

// Serve answers on the socket of the sandbox's supervisor. cut breaks all connections, like
// the end of a process. end stops the server.
func (b *Bench) Serve(methods rpc.Methods) (cut, end func()) {
	b.t.Helper()
	socket := filepath.Join(b.Install.GuestLink("a"), paths.LinkSocket)
	_ = os.Remove(socket)
	inner, err := net.Listen("unix", socket)
	if err != nil {
		b.t.Fatal(err)
	}
	lis := &cutter{Listener: inner}
	var serving sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	serving.Go(func() {
		for {
			raw, err := lis.Accept()
			if err != nil {
				return
			}
			conn := rpc.NewConn(raw, func() {})
			context.AfterFunc(ctx, conn.Close)
			serving.Go(func() { conn.Serve(ctx, bufio.NewReader(raw), methods) })
		}
	})
	end = sync.OnceFunc(func() {
		cancel()
		_ = lis.Close()
		serving.Wait()
	})
	b.t.Cleanup(end)
	return lis.cut, end
}

// Connect links the sandbox's supervisor.
func (b *Bench) Connect() {
	b.t.Helper()
	if err := b.Links.Connect(b.t.Context(), "a"); err != nil {
		b.t.Fatal(err)
	}
}

// cutter is a listener whose connections can be broken, as at the end of a process.
type cutter struct {
	net.Listener
	mu    sync.Mutex // guards conns
	conns []net.Conn
}

func (c *cutter) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	if err == nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.conns = append(c.conns, conn)
	}
	return conn, err
}

func (c *cutter) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conn := range c.conns {
		_ = conn.Close()
	}
}
