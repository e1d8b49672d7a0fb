package server

import (
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/agbox/agbox/internal/process"
)

// greetLooks is how many looks, lookEvery apart, a connection gets to send the first
// frame. Clients send it at once.
const greetLooks = 200

// peerConn is an accepted connection.
type peerConn struct {
	*net.UnixConn
	// pid is the process that has connected, or 0 if it has no id here.
	pid int
	// uid is its user.
	uid int
	// begun is called at the first use, ended at the first Close.
	begun, ended func()
	// frames is used by the one goroutine that reads.
	frames frames
	// greeted is set when the client has sent its first frame, acknowledged when it has
	// read that the server ends. It sends no further call then.
	greeted, acknowledged atomic.Bool
}

func (l *Listener) newPeer(conn *net.UnixConn, pid, uid int) *peerConn {
	l.unserved.Add(1)
	c := &peerConn{UnixConn: conn, pid: pid, uid: uid, begun: sync.OnceFunc(l.unserved.Done), frames: newFrames()}
	c.ended = sync.OnceFunc(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.open, c)
	})
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open[c] = struct{}{}
	return c
}

// RemoteAddr returns the address with the user of the peer, for the contexts of its calls.
func (c *peerConn) RemoteAddr() net.Addr { return callerAddr{c.UnixConn.RemoteAddr(), c.uid} }

func (c *peerConn) Read(p []byte) (int, error) {
	c.begun()
	n, err := c.UnixConn.Read(p)
	if n > 0 {
		if c.frames.read(p[:n]) {
			c.acknowledged.Store(true)
		}
		if c.frames.greeted() {
			c.greeted.Store(true)
		}
	}
	return n, err
}

func (c *peerConn) Write(p []byte) (int, error) {
	c.begun()
	return c.UnixConn.Write(p)
}

func (c *peerConn) Close() error {
	c.begun()
	c.ended()
	return c.UnixConn.Close()
}

// peersThat returns the open connections for which is is true.
func (l *Listener) peersThat(is func(*peerConn) bool) []*peerConn {
	l.mu.Lock()
	open := slices.Collect(maps.Keys(l.open))
	l.mu.Unlock()
	return slices.DeleteFunc(open, func(c *peerConn) bool { return !is(c) })
}

func (l *Listener) silent() []*peerConn {
	return l.peersThat(func(c *peerConn) bool { return !c.greeted.Load() })
}

// closeSilent closes the connections over which nothing came yet: grpc would wait two
// minutes for their greeting before it ends. Their clients have not sent a call.
func (l *Listener) closeSilent() {
	if l == nil { // nothing is served
		return
	}
	for _, c := range l.silent() {
		l.log.Warn("a connection is closed, because its client has sent nothing", "pid", c.pid)
		_ = c.Close()
	}
}

// awaitGreetings waits for the first frame of every connection, and closes those without.
func (l *Listener) awaitGreetings() {
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	for range greetLooks {
		if len(l.silent()) == 0 {
			return
		}
		<-look.C
	}
	l.closeSilent()
}

// mayCall reports whether a peer may still send a call: it has not acknowledged the end of
// its connection, and its process is not stopped by a signal.
func (l *Listener) mayCall() bool {
	if l == nil {
		return false
	}
	expected := l.peersThat(func(c *peerConn) bool { return !c.acknowledged.Load() })
	return slices.ContainsFunc(expected, func(c *peerConn) bool { return !process.Stopped(c.pid) })
}
