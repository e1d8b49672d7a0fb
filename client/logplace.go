package client

import (
	"fmt"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"google.golang.org/grpc/codes"
)

// logPlace is a reader's position in the output of an exec. A cursor does not say whether
// the gaps at it were already reported, and the daemon repeats them. So logPlace counts
// them.
type logPlace struct {
	Cursor
	// gaps has the gaps of stdout and stderr.
	gaps [2]gapsAt
}

// gapsAt counts the gaps of one stream at one offset.
type gapsAt struct {
	offset uint64
	// given is the number of dropped bytes reported to the reader there. repeated is how
	// many of them the daemon may report again.
	given, repeated uint64
}

// resume returns where a new call starts.
func (p *logPlace) resume() Cursor {
	for i := range p.gaps {
		p.gaps[i].repeated = p.gaps[i].given
	}
	return p.Cursor
}

// take advances past a chunk and returns its new part. The item may be empty.
func (p *logPlace) take(chunk *agboxv1.LogChunk) (LogItem, error) {
	at, gaps := &p.Stdout, &p.gaps[0]
	switch chunk.GetStream() {
	case agboxv1.LogStream_LOG_STREAM_STDOUT:
	case agboxv1.LogStream_LOG_STREAM_STDERR:
		at, gaps = &p.Stderr, &p.gaps[1]
	default:
		// A stream of a later version. A cursor of this version cannot count it.
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

// take returns how many of the bytes dropped at an offset are new to the reader.
func (g *gapsAt) take(offset, dropped uint64) uint64 {
	if g.offset != offset {
		*g = gapsAt{offset: offset}
	}
	known := min(g.repeated, dropped)
	g.repeated -= known
	g.given += dropped - known
	return dropped - known
}

// empty reports whether an item has no content.
func (i LogItem) empty() bool {
	return len(i.Data) == 0 && i.Dropped == 0 && i.Created == nil && i.End == nil
}
