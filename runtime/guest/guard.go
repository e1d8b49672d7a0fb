package guest

import (
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/agbox/agbox/runtime/guest/wire"
)

const (
	// sendTimeout is how long the supervisor may leave a piece of a request unread
	// before the connection is given up. A write does not know the context of its call.
	sendTimeout = 5 * time.Second
	// sendPiece is the size of such a piece, in bytes: who is only slow, as on a machine
	// that has much to do, need not read a whole request in that time.
	sendPiece = 64 << 10
)

// guard is the connection as the ttrpc client sees it. It lets in only frames
// that answer a request, so that a hostile supervisor can neither fill the
// daemon's memory nor its log.
type guard struct {
	net.Conn
	in, out wire.Scanner

	// mu guards the fields below.
	mu sync.Mutex
	// open holds the streams of requests without a last reply.
	open map[uint32]struct{}
	// broken is the first breach of the protocol; nil if there was none.
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

// breach returns the first breach of the protocol; nil if there was none.
func (g *guard) breach() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.broken
}

// Read lets in what is allowed.
func (g *guard) Read(p []byte) (int, error) {
	n, err := g.Conn.Read(p)
	if bad := g.in.Scan(p[:n]); bad != nil {
		return 0, bad
	}
	return n, err
}

// Write notes which requests are on their way. A request that could not be sent
// whole leaves the connection unusable.
func (g *guard) Write(p []byte) (int, error) {
	_ = g.out.Scan(p) // before the reply can come; what it notes cannot fail
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
