package logs

import (
	"encoding/binary"
	"hash/crc32"
	"time"
)

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
