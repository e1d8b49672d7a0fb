package logs

import (
	"errors"
	"io"
	"iter"
	"os"
	"sync"
)

// indexBlock is how much of an index is read at a time, in bytes.
const (
	indexBlock   = 32 << 10
	blockRecords = indexBlock / recordSize
)

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
	// unsure tells of a stream that ends is not known: the reading did not begin
	// at the first record, and none of the stream was seen since.
	unsure [2]bool
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
	case whole && x.fits(rec):
		return rec, nil
	case whole || finished || x.have > recordSize:
		return record{}, errUnsound
	}
	x.release()
	return record{}, io.EOF
}

// fits tells whether a Writer can have written rec at the place of the reader.
func (x *indexReader) fits(rec record) bool {
	ends := x.ends
	if x.unsure[rec.stream-Stdout] {
		ends[rec.stream-Stdout] = rec.offset
	}
	return rec.continues(ends)
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
	x.unsure[rec.stream-Stdout] = false
	x.at += recordSize
	x.used += recordSize
}

// runEnd returns where the run of bytes ends that begins with first, the record
// that peek has returned: the records after it in the block that continue the
// same stream within coalesceWindow. It stops looking at limit, and at a record
// that is not wanted.
func (x *indexReader) runEnd(first record, limit uint64, wanted func(record) bool) uint64 {
	last := first
	ends := x.ends
	for at := x.used + recordSize; at < x.have && last.end() < limit; at += recordSize {
		ends[first.stream-Stdout] = last.end()
		rec, whole := parseRecord(x.block[at:])
		if !whole || rec.stream != first.stream || rec.dropped > 0 || !rec.continues(ends) || !wanted(rec) {
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
	next, whole := parseRecord(x.block[recordSize:])
	after := *x
	after.ends[first.stream-Stdout], after.unsure[first.stream-Stdout] = first.end(), false
	return whole && after.fits(next)
}

// count is how many whole records the file holds now.
func (x *indexReader) count() (int64, error) {
	info, err := x.f.Stat()
	if err != nil {
		return 0, errUnsound
	}
	return info.Size() / recordSize, nil
}

// search returns the first record of those from lo to hi, by number, for which
// before is false. What is before must stand in front, as in sort.Search; a
// record that is damaged is not before.
func (x *indexReader) search(lo, hi int64, before func(record) bool) int64 {
	var one [recordSize]byte
	for lo < hi {
		mid := lo + (hi-lo)/2
		n, _ := x.f.ReadAt(one[:], mid*recordSize)
		rec, whole := parseRecord(one[:])
		if n == recordSize && whole && before(rec) {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo
}

// scanned is how many records are looked at one by one for a time: 32 MB of index.
const scanned = 1 << 20

// firstAt returns the first record of those from lo to hi, by number, that is not
// before a time; a damaged one is not. They stand in the order in which they were
// written, which is that of their times only until somebody sets the clock back: so
// it goes through all of them, and searches only where they are very many.
func (x *indexReader) firstAt(lo, hi, nanos int64) int64 {
	if hi-lo > scanned {
		return x.search(lo, hi, func(rec record) bool { return rec.nanos < nanos })
	}
	for number, rec := range x.walk(lo, hi) {
		if rec.stream == 0 || rec.nanos >= nanos {
			return number
		}
	}
	return hi
}

// walk yields the records from number first on until end, upwards without end itself;
// downwards, where end is less than first, without first itself. One that is damaged,
// or was cut off meanwhile, comes as a record of no stream, and is the last.
func (x *indexReader) walk(first, end int64) iter.Seq2[int64, record] {
	return func(yield func(int64, record) bool) {
		block := blocks.Get().(*[indexBlock]byte)
		defer blocks.Put(block)
		for first != end {
			n := min(max(end-first, first-end), blockRecords)
			begin, step, number := first, int64(1), first
			if end < first {
				begin, step, number = first-n, -1, first-1
			}
			have := block[:n*recordSize]
			got, _ := x.f.ReadAt(have, begin*recordSize) // got says it all
			for range n {
				var rec record
				if at := int(number-begin) * recordSize; at+recordSize <= got {
					rec, _ = parseRecord(have[at:])
				}
				if !yield(number, rec) || rec.stream == 0 {
					return
				}
				number += step
			}
			first += n * step
		}
	}
}

// covered returns where the last record of each stream ends, within the sizes of
// the streams. It is 0 where one is damaged that it meets, and the size where there
// is none among the last ones that it looks at.
func (x *indexReader) covered(sizes [2]uint64) [2]uint64 {
	number, err := x.count()
	if err != nil {
		return [2]uint64{}
	}
	ends, sought := sizes, [2]bool{sizes[0] > 0, sizes[1] > 0}
	last := max(0, number-scanned)
	for _, rec := range x.walk(number, last) {
		if rec.stream == 0 {
			return [2]uint64{}
		}
		if i := rec.stream - Stdout; sought[i] {
			ends[i], sought[i] = min(rec.end(), sizes[i]), false
		}
		if sought == [2]bool{} {
			break
		}
	}
	for i := range ends {
		if last == 0 && sought[i] {
			ends[i] = 0
		}
	}
	return ends
}

// seek goes to a record by its number.
func (x *indexReader) seek(number int64) {
	x.release()
	x.at, x.ends = number*recordSize, [2]uint64{}
	x.unsure = [2]bool{number > 0, number > 0}
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
