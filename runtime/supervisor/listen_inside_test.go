package supervisor

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/containerd/ttrpc"

	"github.com/agbox/agbox/logs"
)

// observed reports each connection that its server has accepted and closed.
type observed struct {
	*listener
	taken, given chan struct{}
}

func (o observed) Accept() (net.Conn, error) {
	c, err := o.listener.Accept()
	if err != nil {
		return nil, err
	}
	o.taken <- struct{}{}
	return observedConn{c, o.given}, nil
}

type observedConn struct {
	net.Conn
	given chan struct{}
}

func (c observedConn) Close() error {
	defer func() { c.given <- struct{}{} }()
	return c.Conn.Close()
}

// A server that does not learn of the end of a connection keeps a goroutine and buffers
// for it.
func TestNothingIsKeptOfAConnectionThatIsCut(t *testing.T) {
	dir, err := os.MkdirTemp("", "agbox-sup-") // the path of t.TempDir is too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	path := filepath.Join(dir, "socket")
	l, err := listen(path, logs.Owner{UID: os.Geteuid(), GID: os.Getegid()})
	if err != nil {
		t.Fatal(err)
	}
	server, err := ttrpc.NewServer()
	if err != nil {
		t.Fatal(err)
	}
	o := observed{l, make(chan struct{}, 1), make(chan struct{}, 1)}
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(context.WithoutCancel(t.Context()), o) })
	defer func() { _ = server.Close(); serving.Wait() }()

	for name, cut := range map[string]func(net.Conn){
		"for an even stream": func(c net.Conn) { _, _ = c.Write([]byte{0, 0, 0, 0, 0, 0, 0, 2, 1, 0}) },
		"for a stop": func(net.Conn) {
			for _, known := range l.all() {
				known.closeWhenIdle()
			}
		},
	} {
		c, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		<-o.taken
		cut(c)
		select {
		case <-o.given:
		case <-time.After(10 * time.Second):
			t.Errorf("%s: the server waits for more", name)
		}
		_ = c.Close()
	}
}
