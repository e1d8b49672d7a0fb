package logs

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"os"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// Chunk is a run of bytes of one stream.
type Chunk struct {
	Stream Stream
	// Offset of the first byte of Data in the stream.
	Offset uint64
	// Data is a slice of the buffer that was passed to Next.
	Data []byte
	// Time is when the first byte was read from the exec, or zero if the index does not
	// say.
	Time time.Time
	// Dropped is not 0 in a gap: the exec wrote this many bytes at Offset, before Time,
	// that were not kept. Data is empty then.
	Dropped uint64
}

// Reader returns the output of an exec from a cursor on, each byte once, in the order of
// writing. While the index is sound, that order covers both streams. From the first
// unsound record on, it returns the rest of stdout and then the rest of stderr, and
// Notice says so. It is for one goroutine.
//
// A gap is returned at its position. A Reader that starts at a cursor returns all gaps at
// the cursor, because it does not know which of them were returned before.
//
// A follower reads until io.EOF, waits for a change of the files, and continues with the
// same Reader. When nobody writes any more it calls Finish and reads until io.EOF once
// more.
type Reader struct {
	execID string
	// data has the files of the streams. They are nil while the reader is suspended.
	data [2]*os.File
	// pos is the position in each stream. Every byte that is returned comes from pos and
	// advances it, so no index can make the reader skip or repeat a byte.
	pos      [2]uint64
	index    indexReader
	ordered  bool // whether the index is used
	finished bool
	notice   string

	part part
	// fromFloor means that reading of the index started at the first record of the part.
	fromFloor bool
	// over means that everything from part.until on is left out.
	over bool

	// crc is the checksum of the bytes of the current record that were returned so far.
	// It is valid if they were returned from the start of the record.
	crc      uint32
	crcWhole bool
}

// Open opens the log of an exec at a cursor. It fails with ErrNotExist if the files do
// not exist; they may appear a moment later. It fails with ErrTampered if an output file
// is not a regular file with one link. A missing index is not an error.
func (d *Dir) Open(execID string, at Cursor) (*Reader, error) {
	if err := checkID(execID); err != nil {
		return nil, err
	}
	r := &Reader{
		execID:  execID,
		pos:     [2]uint64{at.Stdout, at.Stderr},
		ordered: true,
		part:    whole,
	}
	if err := r.open(d); err != nil {
		return nil, err
	}
	r.seekCursor(0)
	return r, nil
}

// open opens the files. On an error it leaves no output file open.
func (r *Reader) open(d *Dir) error {
	stdout, err := d.openFile(StdoutName(r.execID), unix.O_RDONLY)
	if err != nil {
		return err
	}
	stderr, err := d.openFile(StderrName(r.execID), unix.O_RDONLY)
	if err != nil {
		return errors.Join(err, stdout.Close())
	}
	r.data = [2]*os.File{stdout, stderr}
	if !r.ordered {
		return nil
	}
	if r.index.f, err = d.openFile(IndexName(r.execID), unix.O_RDONLY); err != nil {
		why := "cannot be opened"
		if errors.Is(err, ErrNotExist) {
			why = "is missing"
		} else if errors.Is(err, ErrTampered) {
			why = "was tampered with"
		}
		r.degrade(why, r.Cursor())
	}
	return nil
}

// Suspend closes the files and keeps the position, for a reader that waits a long time.
// Until Resume, only Cursor, Notice, Over and Close may be called.
func (r *Reader) Suspend() error {
	err := r.Close()
	r.data = [2]*os.File{}
	return err
}

// Suspended reports whether the reader must be resumed.
func (r *Reader) Suspended() bool { return r.data[0] == nil }

// Resume opens the files again, in the directory from which they were opened. It fails as
// Open does; the reader then stays suspended.
func (r *Reader) Resume(d *Dir) error { return r.open(d) }

// Next returns the next run of bytes, at most len(buf). It returns io.EOF if there are no
// more bytes now, and may be called again later.
func (r *Reader) Next(buf []byte) (Chunk, error) {
	if len(buf) == 0 {
		return Chunk{}, fmt.Errorf("reading a log into an empty buffer: %w", errdefs.ErrInvalidArgument)
	}
	if r.ordered && !r.over {
		chunk, err := r.nextOrdered(buf)
		if r.ordered && (err == nil || !r.finished || !errors.Is(err, io.EOF)) {
			return chunk, err
		}
	}
	if r.over {
		return Chunk{}, io.EOF
	}
	r.passUnindexed()
	from := r.Cursor()
	chunk, err := r.nextRaw(buf)
	if err == nil && r.ordered {
		r.degrade("is shorter than the output", from)
	}
	return chunk, err
}

// Finish says that nobody writes to the log any more. The reader then returns bytes that
// the index does not cover, instead of waiting for their records.
func (r *Reader) Finish() { r.finished = true }

// Cursor returns the position after the last chunk.
func (r *Reader) Cursor() Cursor { return Cursor{Stdout: r.pos[0], Stderr: r.pos[1]} }

// Notice returns a sentence for the user if something is wrong with the log, else an
// empty string. Any call of Next may set it.
func (r *Reader) Notice() string { return r.notice }

// Ordered reports whether the index is used, so that chunks come in the order of writing.
func (r *Reader) Ordered() bool { return r.ordered }

// Size returns the current sizes of the files. A cursor beyond them points to output that
// does not exist, or does not exist yet.
func (r *Reader) Size() (Cursor, error) {
	var size [2]uint64
	for i, f := range r.data {
		info, err := f.Stat()
		if err != nil {
			return Cursor{}, fmt.Errorf("size of log file %s: %w", f.Name(), err)
		}
		size[i] = uint64(info.Size())
	}
	return Cursor{Stdout: size[0], Stderr: size[1]}, nil
}

// Indexed returns the position up to which records cover the output now. Only a finished
// Reader returns the bytes beyond it, without a time. The position may be too low if the
// index is damaged, and too high if a stream had no output during the last million
// records. If the index is not used, it is the end of the output.
func (r *Reader) Indexed() Cursor {
	size, err := r.Size()
	if err != nil || !r.ordered {
		return size
	}
	ends := r.index.covered([2]uint64{size.Stdout, size.Stderr})
	return Cursor{Stdout: ends[0], Stderr: ends[1]}
}

// Close closes the files.
func (r *Reader) Close() error {
	if r.Suspended() {
		return nil
	}
	return errors.Join(r.data[0].Close(), r.data[1].Close(), r.index.close())
}

// degrade stops using the index. from is the position up to which it was sound.
func (r *Reader) degrade(why string, from Cursor) {
	r.ordered = false
	r.note("The index of this log %s: from stdout byte %d and stderr byte %d on, "+
		"stdout is given before stderr and without times.", why, from.Stdout, from.Stderr)
	_ = r.index.close()
}

// note keeps the first problem only, because it explains the later ones.
func (r *Reader) note(format string, args ...any) {
	if r.notice == "" {
		r.notice = fmt.Sprintf(format, args...)
	}
}

// nextRaw returns the rest of stdout, then the rest of stderr.
func (r *Reader) nextRaw(buf []byte) (Chunk, error) {
	for i, stream := range [2]Stream{Stdout, Stderr} {
		if r.part.skip[i] {
			continue
		}
		n, err := r.readData(i, buf)
		if err != nil || n > 0 {
			return r.give(stream, buf[:n]), err
		}
	}
	return Chunk{}, io.EOF
}

// nextOrdered returns bytes in the order of the index. It returns io.EOF at the current
// end of the index, and also if the index turned out to be unsound.
func (r *Reader) nextOrdered(buf []byte) (Chunk, error) {
	rec, err := r.firstAhead()
	if err != nil {
		return Chunk{}, err
	}
	if rec.dropped > 0 {
		return r.giveGap(rec), nil
	}
	i := int(rec.stream - Stdout)
	want := min(uint64(len(buf)), r.index.runEnd(rec, r.pos[i]+uint64(len(buf)), r.part.times)-r.pos[i])
	n, err := r.readData(i, buf[:want])
	if err != nil {
		return Chunk{}, err
	}
	if n == 0 {
		// The writer writes bytes before records. Some shared file systems show them in
		// the opposite order for a moment, but not for several records.
		if r.finished || r.index.hasAnother(rec) {
			r.degrade("speaks of bytes that are not there", r.Cursor())
		}
		return Chunk{}, io.EOF
	}
	chunk := r.give(rec.stream, buf[:n])
	chunk.Time = rec.time()
	r.consume(chunk)
	return chunk, nil
}

// Gap returns a gap if that is next, so that a gap after the last byte is not left out.
func (r *Reader) Gap() (Chunk, bool) {
	if !r.ordered || r.over {
		return Chunk{}, false
	}
	rec, err := r.firstAhead()
	if err != nil || rec.dropped == 0 {
		return Chunk{}, false
	}
	return r.giveGap(rec), true
}

func (r *Reader) giveGap(rec record) Chunk {
	r.index.advance(rec)
	return Chunk{Stream: rec.stream, Offset: rec.offset, Time: rec.time(), Dropped: rec.dropped}
}

// firstAhead returns the first record that was not returned yet: a gap, or one with
// bytes.
func (r *Reader) firstAhead() (record, error) {
	for {
		rec, err := r.index.peek(r.finished)
		if errors.Is(err, errUnsound) {
			r.degrade("is damaged", r.Cursor())
			return record{}, io.EOF
		}
		if errors.Is(err, io.EOF) && r.missed() {
			r.startAnew()
			continue
		}
		if err != nil {
			return record{}, err
		}
		if again := r.meet(rec); again {
			continue
		}
		if rec.nanos >= r.part.until {
			r.over = true
			return record{}, io.EOF
		}
		if r.ahead(rec) {
			return rec, nil
		}
		r.index.advance(rec)
	}
}

// consume advances the index past the records whose bytes are in the chunk, and checks
// these bytes.
func (r *Reader) consume(chunk Chunk) {
	from, data := chunk.Offset, chunk.Data
	for len(data) > 0 {
		rec, err := r.index.peek(r.finished)
		if err != nil { // cannot happen: runEnd has seen the same records in the same block
			return
		}
		if from == rec.offset {
			r.crc, r.crcWhole = 0, true
		}
		part := data[:min(uint64(len(data)), rec.end()-from)]
		if r.crcWhole {
			r.crc = crc32.Update(r.crc, castagnoli, part)
		}
		from += uint64(len(part))
		data = data[len(part):]
		if from < rec.end() {
			return
		}
		if r.crcWhole && r.crc != rec.crc {
			r.note("%s bytes %d to %d do not match their checksum: the log was changed after it was written.",
				rec.stream, rec.offset, rec.end()-1)
		}
		r.crcWhole = false
		r.index.advance(rec)
	}
}

// readData reads bytes of a stream at its position. 0 means that there are none now.
func (r *Reader) readData(i int, buf []byte) (int, error) {
	if r.pos[i] > math.MaxInt64 {
		return 0, nil
	}
	n, err := r.data[i].ReadAt(buf, int64(r.pos[i]))
	if n > 0 || err == nil || errors.Is(err, io.EOF) {
		return n, nil
	}
	return 0, fmt.Errorf("reading log file %s: %w", r.data[i].Name(), err)
}

// give makes a chunk of the bytes at the position of a stream and advances the position.
func (r *Reader) give(stream Stream, data []byte) Chunk {
	i := stream - Stdout
	chunk := Chunk{Stream: stream, Offset: r.pos[i], Data: data}
	r.pos[i] += uint64(len(data))
	return chunk
}

// part is a Part in the form that the reader needs.
type part struct {
	since, until int64 // nanoseconds since 1970
	skip         [2]bool
	// floor is the number of the first record of the part. Records before it are skipped
	// without being read.
	floor int64
	// guessed means that the position in a stream is taken from the size of its file. The
	// first record of the stream from number guessedAt on corrects it.
	guessed   [2]bool
	guessedAt int64
}

// seekBlocks is the maximum number of index blocks that a seek reads to find the position
// of a record in both streams.
const seekBlocks = 128

// whole selects the whole log.
var whole = part{since: math.MinInt64, until: math.MaxInt64}

// times reports whether the time of a record lies in the part.
func (p *part) times(rec record) bool { return rec.nanos >= p.since && rec.nanos < p.until }

// seekCursor goes to the first record, from number floor on, that is ahead of the cursor.
// If a Reader returned the cursor, all records before that one lie behind the cursor. For
// any other cursor that may be false; then reading starts at the floor.
func (r *Reader) seekCursor(floor int64) {
	if !r.ordered || floor == 0 && r.pos == [2]uint64{} {
		return
	}
	number, err := r.index.count()
	if err != nil {
		return // the next read of the index reports it
	}
	first := r.index.search(floor, max(number, floor), func(rec record) bool { return !r.isAhead(rec) })
	r.index.seek(first)
	r.fromFloor = first == floor
	if !r.fromFloor && !r.behind(first, floor) {
		r.startAnew()
	}
}

// behind looks for the last record of each stream before number first, and reports
// whether the cursor has reached its end. It reads at most seekBlocks of the index. If
// that is not enough, meet decides at the first later record of the stream.
func (r *Reader) behind(first, floor int64) bool {
	x := &r.index
	last := max(floor, first-seekBlocks*blockRecords)
	for _, rec := range x.walk(first, last) {
		if rec.stream == 0 {
			return false
		}
		if i := rec.stream - Stdout; x.unsure[i] {
			if rec.end() > r.pos[i] {
				return false
			}
			x.ends[i], x.unsure[i] = rec.end(), false
		}
		if x.unsure == [2]bool{} {
			return true
		}
	}
	if last == 0 {
		x.unsure = [2]bool{}
	}
	return true
}

// startAnew starts reading the index at the floor. Records behind the cursor are skipped
// one by one.
func (r *Reader) startAnew() {
	r.index.seek(r.part.floor)
	r.fromFloor = true
}

// missed reports, at the end of the index, whether the seek has skipped bytes of a stream
// that has had no record since. That is possible if no Reader returned the cursor. It
// reports this once.
func (r *Reader) missed() bool {
	if r.fromFloor || r.index.unsure == [2]bool{} {
		return false
	}
	size, err := r.Size()
	if err != nil {
		return false // the read of the data reports it
	}
	for i, end := range [2]uint64{size.Stdout, size.Stderr} {
		if r.index.unsure[i] && !r.part.skip[i] && r.pos[i] < end {
			return true
		}
	}
	return false
}

// meet checks the next record. The first record of a stream after a seek shows whether
// the position in the stream is right. again is true if reading had to start anew.
func (r *Reader) meet(rec record) (again bool) {
	i := rec.stream - Stdout
	if !r.index.unsure[i] {
		return false
	}
	number := r.index.at / recordSize
	if r.part.guessed[i] && number >= r.part.guessedAt {
		r.pos[i] = rec.offset // include what was being written when the position was guessed
	}
	r.part.guessed[i] = false
	switch {
	case rec.offset <= r.pos[i]:
		return false
	case r.fromFloor && r.part.floor > 0:
		r.pos[i] = rec.offset // earlier bytes are before the floor
		return false
	}
	r.startAnew()
	return true
}

// isAhead reports whether a record has bytes, or is a gap, that the cursor has not
// passed.
func (r *Reader) isAhead(rec record) bool {
	at := r.pos[rec.stream-Stdout]
	return rec.end() > at || rec.dropped > 0 && rec.end() == at
}

// ahead reports whether the reader must return bytes of rec, or a gap.
func (r *Reader) ahead(rec record) bool {
	i := rec.stream - Stdout
	if !r.isAhead(rec) {
		return false
	}
	if r.part.skip[i] || rec.nanos < r.part.since {
		r.pos[i] = rec.end()
		return false
	}
	return true
}

// passUnindexed skips bytes that no record covers and that are not in the part.
func (r *Reader) passUnindexed() {
	if r.part == whole {
		return
	}
	size, err := r.Size()
	if err != nil {
		return // the read of the data reports it
	}
	known := size
	if r.ordered && r.part.floor > 0 && r.index.unsure != [2]bool{} {
		known = r.Indexed()
	}
	for i, end := range [2]struct{ all, known uint64 }{{size.Stdout, known.Stdout}, {size.Stderr, known.Stderr}} {
		switch {
		case r.part.skip[i]:
			r.pos[i] = max(r.pos[i], end.all)
		case r.ordered && r.part.floor > 0 && r.index.unsure[i]:
			// No record since the floor: everything that records cover is before the
			// floor.
			r.pos[i] = max(r.pos[i], end.known)
		}
	}
}
