package client

import (
	"fmt"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"google.golang.org/grpc/codes"
)

// logPlace is how far the output of an exec was read. A cursor does not tell whether a
// gap at it was given already, and the daemon repeats one: so this does.
type logPlace struct {
	Cursor
	// gaps are of stdout and stderr.
	gaps [2]gapsAt
}

// gapsAt are the gaps of one stream at one offset.
type gapsAt struct {
	offset uint64
	// given is how many dropped bytes the reader was told of there, and repeated how
	// many of these the daemon may tell again.
	given, repeated uint64
}

// resume returns where a new call starts.
func (p *logPlace) resume() Cursor {
	for i := range p.gaps {
		p.gaps[i].repeated = p.gaps[i].given
	}
	return p.Cursor
}

// take moves over a chunk and returns what of it is new; the item may be empty.
func (p *logPlace) take(chunk *agboxv1.LogChunk) (LogItem, error) {
	at, gaps := &p.Stdout, &p.gaps[0]
	switch chunk.GetStream() {
	case agboxv1.LogStream_LOG_STREAM_STDOUT:
	case agboxv1.LogStream_LOG_STREAM_STDERR:
		at, gaps = &p.Stderr, &p.gaps[1]
	default:
		// A stream of a later version; this one cannot keep a cursor in it.
		return LogItem{}, nil
	}
	if chunk.GetOffset() > *at {
		return LogItem{}, &Error{Code: codes.DataLoss, Message: fmt.Sprintf(
			"agboxd left out the bytes %d to %d of %s. Read the log again from the start.",
			*at, chunk.GetOffset(), streamName(chunk.GetStream()))}
	}
	known := min(*at-chunk.GetOffset(), uint64(len(chunk.GetData())))
	item := LogItem{Stream: chunk.GetStream(), Offset: *at, Data: chunk.GetData()[known:]}
	if chunk.GetOffset() == *at {
		item.Dropped = gaps.take(*at, chunk.GetDroppedBytes())
	}
	if t := chunk.GetTime(); t != nil {
		item.Time = t.AsTime()
	}
	*at += uint64(len(item.Data))
	item.Cursor = p.Cursor
	return item, nil
}

// take returns how many of the bytes dropped at an offset the reader does not know of.
func (g *gapsAt) take(offset, dropped uint64) uint64 {
	if g.offset != offset {
		*g = gapsAt{offset: offset}
	}
	known := min(g.repeated, dropped)
	g.repeated -= known
	g.given += dropped - known
	return dropped - known
}

// empty tells whether an item says nothing.
func (i LogItem) empty() bool {
	return len(i.Data) == 0 && i.Dropped == 0 && i.Created == nil && i.End == nil
}
