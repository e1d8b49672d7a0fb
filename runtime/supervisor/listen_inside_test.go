package supervisor

import (
	"bytes"
	"context"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/agbox/agbox/logs"
	"github.com/agbox/agbox/runtime/guest/rpc"
)

// A server that does not learn of the end of a connection keeps a goroutine and buffers
// for it.
func TestNothingIsKeptOfAConnectionThatIsCut(t *testing.T) {
	for name, cut := range map[string]func(*listener, net.Conn){
		"for an even stream": func(_ *listener, c net.Conn) { _, _ = c.Write([]byte{0, 0, 0, 0, 0, 0, 0, 2, 1, 0}) },
		"for a stop": func(l *listener, _ net.Conn) {
			for _, known := range l.all() {
				known.CloseWhenIdle()
			}
		},
	} {
		t.Run(name, func(t *testing.T) { checkCut(t, cut) })
	}
}

// checkCut calls cut for a connection that is served. Its listener gets no other connection:
// open is waited for, and a WaitGroup may not count from zero again while it is.
func checkCut(t *testing.T, cut func(*listener, net.Conn)) {
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
	var serving sync.WaitGroup
	serving.Go(func() { _ = l.serve(context.WithoutCancel(t.Context()), nil) })

	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	// A call without a name is answered with an error: the connection is served.
	_, _ = c.Write([]byte{0, 0, 0, 0, 0, 0, 0, 1, byte(rpc.Request), 0})
	head := make([]byte, rpc.HeaderLen)
	if _, err := io.ReadFull(c, head); err != nil {
		t.Fatal(err)
	}
	cut(l, c)
	rest, err := io.ReadAll(c)
	if err != nil || !bytes.Contains(rest, []byte("no method")) {
		t.Errorf("read %q, %v", rest, err)
	}
	_ = c.Close()
	l.open.Wait()
	_ = l.Close()
	serving.Wait()
	l.serving.Wait()
}
