package logs

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"iter"
	"os"
	"sync"
	"time"
)

// indexBlock is the size of one read of an index, in bytes.
const (
	indexBlock   = 32 << 10
	blockRecords = indexBlock / recordSize
)

// blocks pools the read buffers. A reader at the end of its index holds none, so a
// thousand waiting followers need no buffers.
var blocks = sync.Pool{New: func() any { return new([indexBlock]byte) }}

// errUnsound means that no Writer can have written this index.
var errUnsound = errors.New("unsound index")

// indexReader walks through the records of an index and checks their consistency.
type indexReader struct {
	f *os.File
	// at is the offset of the next record in the file.
	at int64
	// ends is the end of the preceding records in each stream.
	ends [2]uint64
	// unsure marks a stream whose entry in ends is unknown: reading did not start at the
	// first record, and no record of the stream has been read since.
	unsure [2]bool
	// block holds the records of the file from at on, in block[used:have]. It is nil if
	// no records are loaded.
	block      *[indexBlock]byte
	used, have int
}

// peek returns the next record and does not advance. It returns io.EOF if the record is
// not complete yet, and errUnsound if it never will be. finished means that nobody writes
// to the log any more.
func (x *indexReader) peek(finished bool) (record, error) {
	if x.used == x.have {
		if err := x.fill(); err != nil {
			return record{}, err
		}
	}
	rec, whole := parseRecord(x.block[x.used:])
	if !whole {
		// It may have been read while it was being written: read it again.
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

// fits reports whether a Writer can have written rec at this position.
func (x *indexReader) fits(rec record) bool {
	ends := x.ends
	if x.unsure[rec.stream-Stdout] {
		ends[rec.stream-Stdout] = rec.offset
	}
	return rec.continues(ends)
}

// fill reads a block of complete records from at on. It returns io.EOF if there is none.
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

// advance moves past rec, the record that peek returned.
func (x *indexReader) advance(rec record) {
	x.ends[rec.stream-Stdout] = rec.end()
	x.unsure[rec.stream-Stdout] = false
	x.at += recordSize
	x.used += recordSize
}

// runEnd returns the end offset of the run of bytes that starts with first, the record
// that peek returned. The run continues with the following records of the block that
// belong to the same stream and lie within coalesceWindow. It ends at limit, and before a
// record that is not wanted.
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

// hasAnother reports whether a sound record follows first, the record that peek returned.
func (x *indexReader) hasAnother(first record) bool {
	if x.fill() != nil || x.have < 2*recordSize {
		return false
	}
	next, whole := parseRecord(x.block[recordSize:])
	after := *x
	after.ends[first.stream-Stdout], after.unsure[first.stream-Stdout] = first.end(), false
	return whole && after.fits(next)
}

// count returns the number of complete records that the file holds now.
func (x *indexReader) count() (int64, error) {
	info, err := x.f.Stat()
	if err != nil {
		return 0, errUnsound
	}
	return info.Size() / recordSize, nil
}

// search returns the number of the first record in [lo, hi) for which before is false, or
// hi. Records for which before is true must come first, as in sort.Search. before counts
// as false for a damaged record.
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

// scanned is the maximum number of records that a search by time reads one by one: 32 MB
// of index.
const scanned = 1 << 20

// firstAt returns the number of the first record in [lo, hi) that is damaged or not
// before a time, or hi. The records are in the order of writing. That is the order of
// time unless somebody sets the clock back. So firstAt reads all records, and uses a
// binary search only if there are more than scanned.
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

// walk yields the records from first to end. Upwards it includes first and excludes end.
// Downwards, if end is less than first, it excludes first and includes end. A record that
// is damaged, or was truncated meanwhile, is yielded with stream 0 and ends the walk.
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
			got, _ := x.f.ReadAt(have, begin*recordSize) // got suffices; the error adds nothing
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

// covered returns the end of the last record of each stream, at most the size of the
// stream. If it meets a damaged record, it returns 0 for both. For a stream without a
// record it returns 0 if it has read the whole index, and the stream's size if it has
// read only the last scanned records.
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

// seek goes to the record with this number.
func (x *indexReader) seek(number int64) {
	x.release()
	x.at, x.ends = number*recordSize, [2]uint64{}
	x.unsure = [2]bool{number > 0, number > 0}
}

// release returns the block to the pool.
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

// The index is a sequence of records of 32 bytes. Integers are big-endian, like every
// integer that agbox keeps on disk.
//
//	 0  i64  when the bytes were read from the exec, nanoseconds since 1970
//	 8  u64  offset of the first byte in the stream's file
//	16  u32  number of bytes, 1 to 16777216
//	20  u8   stream: 1 stdout, 2 stderr
//	21  u8   0; 1 marks a gap
//	22  2    zero
//	24  u32  CRC-32C of the bytes
//	28  u32  CRC-32C of the 28 bytes above
//
// In each stream the first record starts at offset 0, and every other one where the
// record before it ends. The writer writes the bytes before their record.
//
// A gap stands for bytes that the exec wrote and that were not kept because the disk or a
// limit was full. It has the offset at which they are missing and covers no bytes of the
// file. The fields at 16 and 24 hold the lower and upper half of their number, which is
// not 0. Several gaps may have the same offset. An agboxd that does not know gaps treats
// the index as damaged from the first gap on: it returns all bytes, and a notice.
const (
	recordSize = 32
	// maxRecord is the maximum number of bytes that one record covers. Longer writes are
	// split. A greater length means that the index is damaged.
	maxRecord = 16 << 20
	// gapMark marks the record of a gap.
	gapMark = 1
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// record is one entry of the index.
type record struct {
	nanos  int64
	offset uint64
	length uint32
	stream Stream
	crc    uint32
	// dropped is the number of missing bytes of a gap. It is 0 in all other records.
	dropped uint64
}

func (r record) end() uint64 { return r.offset + uint64(r.length) }

func (r record) time() time.Time { return time.Unix(0, r.nanos) }

// put encodes the record.
func (r record) put(b *[recordSize]byte) {
	low, high := r.length, r.crc
	b[20], b[21], b[22], b[23] = byte(r.stream), 0, 0, 0
	if r.dropped > 0 {
		low, high = uint32(r.dropped), uint32(r.dropped>>32)
		b[21] = gapMark
	}
	binary.BigEndian.PutUint64(b[0:], uint64(r.nanos))
	binary.BigEndian.PutUint64(b[8:], r.offset)
	binary.BigEndian.PutUint32(b[16:], low)
	binary.BigEndian.PutUint32(b[24:], high)
	binary.BigEndian.PutUint32(b[28:], crc32.Checksum(b[:28], castagnoli))
}

// parseRecord decodes the first 32 bytes of b, which must have at least 32. If no Writer
// can have written them, it returns a record with stream 0, and false.
func parseRecord(b []byte) (record, bool) {
	b = b[:recordSize]
	r := record{
		nanos:  int64(binary.BigEndian.Uint64(b[0:])),
		offset: binary.BigEndian.Uint64(b[8:]),
		length: binary.BigEndian.Uint32(b[16:]),
		stream: Stream(b[20]),
		crc:    binary.BigEndian.Uint32(b[24:]),
	}
	if crc32.Checksum(b[:28], castagnoli) != binary.BigEndian.Uint32(b[28:]) ||
		r.stream != Stdout && r.stream != Stderr || b[21] > gapMark || b[22]|b[23] != 0 {
		return record{}, false
	}
	if b[21] == gapMark {
		r.dropped = uint64(r.crc)<<32 | uint64(r.length)
		r.length, r.crc = 0, 0
	}
	if r.dropped == 0 && (r.length < 1 || r.length > maxRecord) {
		return record{}, false
	}
	return r, true
}

// continues reports whether a Writer can have written r after records that end at ends in
// the two streams.
func (r record) continues(ends [2]uint64) bool { return r.offset == ends[r.stream-Stdout] }

// coalesceWindow is the maximum time between the first and the last write of one chunk.
// So the time of a chunk is accurate to this for each of its bytes.
const coalesceWindow = 10 * time.Millisecond
