package logs

import (
	"errors"
	"io"
	"os"
	"sync"
)

// indexBlock is how much of an index is read at a time: 1024 records.
const indexBlock = 32 << 10

// blocks keeps the buffers of readers that have come to the end of their index,
// so that a thousand waiting followers hold none.
var blocks = sync.Pool{New: func() any { return new([indexBlock]byte) }}

// errUnsound says that the index does not describe a log that a Writer wrote.
var errUnsound = errors.New("unsound index")

// indexReader walks the records of an index and checks that they fit together.
type indexReader struct {
	f *os.File
	// at is the place in the file of the next record.
	at int64
	// ends is where the records before at end in each stream.
	ends [2]uint64
	// block holds the records of the file from at on: block[used:have]. nil when
	// there are none.
	block      *[indexBlock]byte
	used, have int
}

// peek returns the next record without moving on. It returns io.EOF when it is
// not wholly there yet, and errUnsound when it never will be; finished says that
// nobody writes any more.
func (x *indexReader) peek(finished bool) (record, error) {
	if x.used == x.have {
		if err := x.fill(); err != nil {
			return record{}, err
		}
	}
	rec, whole := parseRecord(x.block[x.used:])
	if !whole {
		// It may have been seen while it was being written.
		if err := x.fill(); err != nil {
			return record{}, err
		}
		rec, whole = parseRecord(x.block[:])
	}
	switch {
	case whole && rec.follows(x.ends):
		return rec, nil
	case whole || finished || x.have > recordSize:
		return record{}, errUnsound
	}
	x.release()
	return record{}, io.EOF
}

// fill reads a block of whole records from at on; io.EOF if there is none.
func (x *indexReader) fill() error {
	if x.block == nil {
		x.block = blocks.Get().(*[indexBlock]byte)
	}
	n, err := x.f.ReadAt(x.block[:], x.at)
	x.used, x.have = 0, n-n%recordSize
	if x.have > 0 {
		return nil
	}
	x.release()
	if err == nil || errors.Is(err, io.EOF) {
		return io.EOF
	}
	return errUnsound
}

// advance moves past rec, which peek has returned.
func (x *indexReader) advance(rec record) {
	x.ends[rec.stream-Stdout] = rec.end()
	x.at += recordSize
	x.used += recordSize
}

// runEnd returns where the run of bytes ends that begins with first, the record
// that peek has returned: the records after it in the block that continue the
// same stream within coalesceWindow. It stops looking at limit.
func (x *indexReader) runEnd(first record, limit uint64) uint64 {
	last := first
	ends := x.ends
	for place := x.used + recordSize; place < x.have && last.end() < limit; place += recordSize {
		ends[first.stream-Stdout] = last.end()
		rec, whole := parseRecord(x.block[place:])
		if !whole || rec.stream != first.stream || !rec.follows(ends) {
			break
		}
		if age := rec.nanos - first.nanos; age < 0 || age > int64(coalesceWindow) {
			break
		}
		last = rec
	}
	return last.end()
}

// hasAnother tells whether a sound record follows first, which peek has returned.
func (x *indexReader) hasAnother(first record) bool {
	if x.fill() != nil || x.have < 2*recordSize {
		return false
	}
	ends := x.ends
	ends[first.stream-Stdout] = first.end()
	next, whole := parseRecord(x.block[recordSize:])
	return whole && next.follows(ends)
}

// release gives the block back.
func (x *indexReader) release() {
	if x.block != nil {
		blocks.Put(x.block)
	}
	x.block, x.used, x.have = nil, 0, 0
}

func (x *indexReader) close() error {
	x.release()
	if x.f == nil {
		return nil
	}
	f := x.f
	x.f = nil
	return f.Close()
}
