package guest

import (
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/agbox/agbox/runtime/guest/wire"
)

const (
	// sendTimeout is how long the supervisor may take to read one piece of a request
	// before the connection is closed. A write has no access to the context of its call.
	sendTimeout = 5 * time.Second
	// sendPiece is the size of such a piece, in bytes. With a timeout per piece, a slow
	// supervisor on a busy machine need not read a whole request within sendTimeout.
	sendPiece = 64 << 10
)

// guard wraps the connection for the ttrpc client. It accepts only frames that
// answer a request, so that a hostile supervisor cannot fill the daemon's memory or
// log.
type guard struct {
	net.Conn
	in, out wire.Scanner

	// mu guards the fields below.
	mu sync.Mutex
	// open has the streams whose last reply has not arrived.
	open map[uint32]struct{}
	// broken is the violation of the protocol that ended the connection; nil if there
	// was none.
	broken error
}

func newGuard(conn net.Conn) *guard {
	g := &guard{Conn: conn, open: make(map[uint32]struct{})}
	g.in.Check = g.reply
	g.out.Check = g.request
	return g
}

func (g *guard) request(h wire.Header) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if h.Type == wire.Request {
		g.open[h.StreamID] = struct{}{}
	}
	return nil
}

func (g *guard) reply(h wire.Header) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	_, asked := g.open[h.StreamID]
	switch {
	case h.Type != wire.Response && h.Type != wire.Data:
		g.broken = fmt.Errorf("%w: type %d from the supervisor", wire.ErrFrame, h.Type)
	case h.Length > wire.MaxReply:
		g.broken = fmt.Errorf("%w: a reply of %d bytes, the limit is %d", wire.ErrFrame, h.Length, wire.MaxReply)
	case !asked:
		g.broken = fmt.Errorf("%w: a reply to nothing on stream %d", wire.ErrFrame, h.StreamID)
	}
	if h.Last() {
		delete(g.open, h.StreamID)
	}
	return g.broken
}

// breach returns the violation of the protocol; nil if there was none.
func (g *guard) breach() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.broken
}

// Read fails if the data contains a frame that reply refuses.
func (g *guard) Read(p []byte) (int, error) {
	n, err := g.Conn.Read(p)
	if bad := g.in.Scan(p[:n]); bad != nil {
		return 0, bad
	}
	return n, err
}

// Write records the requests that it sends. If a request cannot be sent completely,
// the connection is unusable and Write closes it.
func (g *guard) Write(p []byte) (int, error) {
	_ = g.out.Scan(p) // before the reply can arrive; request never fails
	done := 0
	for done < len(p) {
		if err := g.SetWriteDeadline(time.Now().Add(sendTimeout)); err != nil {
			return done, err
		}
		n, err := g.Conn.Write(p[done:min(len(p), done+sendPiece)])
		done += n
		if err != nil {
			_ = g.Close()
			return done, err
		}
	}
	return done, nil
}
