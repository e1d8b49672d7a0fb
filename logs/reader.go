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

// coalesceWindow is how far apart in time the writes may be that are given as one
// chunk: the time of a chunk is right to this for each of its bytes.
const coalesceWindow = 10 * time.Millisecond

// Chunk is a run of bytes of one stream.
type Chunk struct {
	Stream Stream
	// Offset of the first byte of Data in the stream.
	Offset uint64
	// Data is a part of the buffer that Next was given.
	Data []byte
	// Time is when the first byte was read from the exec; zero where the index
	// does not tell.
	Time time.Time
	// Dropped is not 0 in a gap: so many bytes that the exec wrote at Offset, before
	// Time, were not kept. Data is empty then.
	Dropped uint64
}

// Reader gives the output of an exec in the order in which it was written, from
// a cursor on, each byte once. As long as the index is sound that is the order
// across both streams; from the first unsound record on, the streams are given
// one after the other, and Notice says so. It is for one goroutine.
//
// A gap comes at its place. A Reader that begins at a cursor gives all gaps at the
// cursor, because it does not know which of them were given before.
//
// A follower reads until io.EOF, waits for a change of the files, and goes on
// with the same Reader. When nobody writes any more it calls Finish and reads
// until io.EOF once more.
type Reader struct {
	execID string
	// data are the files of the streams; nil while the reader is suspended.
	data [2]*os.File
	// pos counts the bytes of each stream that were given or were before the
	// cursor. Every byte that is given comes from pos and moves it: therefore no
	// index can make the reader skip or repeat one.
	pos      [2]uint64
	index    indexReader
	ordered  bool // the index is believed
	finished bool
	notice   string

	part part
	// fromFloor tells that the reading of the index began at the first record of
	// the part.
	fromFloor bool
	// over says that everything from part.until on is left out.
	over bool

	// crc is the checksum so far of the record that was given in part; it counts
	// if the record was given from its beginning.
	crc      uint32
	crcWhole bool
}

// Open opens the log of an exec at a cursor. It fails with ErrNotExist if the
// files are not there, which they may be a moment later, and with ErrTampered if
// a file of the output is not one. A missing index is no failure.
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

// open opens the files, those of the output or none.
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

// Suspend closes the files and keeps the place, for a reader that waits long. It
// must be resumed before anything is asked of it but Cursor, Notice, Over and Close.
func (r *Reader) Suspend() error {
	err := r.Close()
	r.data = [2]*os.File{}
	return err
}

// Suspended tells whether the reader has to be resumed.
func (r *Reader) Suspended() bool { return r.data[0] == nil }

// Resume opens the files again, in the directory from which they were opened. It
// fails as Open does, and the reader is suspended then.
func (r *Reader) Resume(d *Dir) error { return r.open(d) }

// Next gives the next run of bytes, at most as many as buf holds. It returns
// io.EOF when there is nothing more for now; it may be called again later.
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

// Finish says that nobody writes the log any more. What the index does not cover
// is then not awaited but given as it is.
func (r *Reader) Finish() { r.finished = true }

// Cursor returns the place after the last chunk.
func (r *Reader) Cursor() Cursor { return Cursor{Stdout: r.pos[0], Stderr: r.pos[1]} }

// Notice is a sentence for the reader of the log if something is wrong with it,
// else empty. It can appear with any call of Next.
func (r *Reader) Notice() string { return r.notice }

// Ordered tells whether the index is believed: chunks come in the order in which
// they were written.
func (r *Reader) Ordered() bool { return r.ordered }

// Size returns how many bytes the files hold now. A cursor beyond it points to
// output that does not exist, or does not exist yet.
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

// Indexed returns up to where records tell of the output now; what is beyond comes
// without a time, and only to a Reader that is finished. Where the index is damaged
// that may be too little, and where a stream was not written for a million records,
// too much. Where the index is not believed it is all.
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

// degrade ends the belief in the index; from is the place up to which it held.
func (r *Reader) degrade(why string, from Cursor) {
	r.ordered = false
	r.note("The index of this log %s: from stdout byte %d and stderr byte %d on, "+
		"stdout is given before stderr and without times.", why, from.Stdout, from.Stderr)
	_ = r.index.close()
}

// note keeps the first thing that is wrong: it explains the ones after it.
func (r *Reader) note(format string, args ...any) {
	if r.notice == "" {
		r.notice = fmt.Sprintf(format, args...)
	}
}

// nextRaw gives what is left of stdout, then of stderr.
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

// nextOrdered gives bytes in the order of the index. It returns io.EOF where the
// index ends for now, and also where it turned out to be unsound.
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
		// The writer writes bytes before records. Some shared file systems show
		// them the other way round for a moment, but not many records long.
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

// Gap gives a gap if that is next, so that a gap behind the last byte is not left out.
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

// firstAhead returns the first record that was not given yet, a gap or one with bytes.
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

// consume moves the index past the records whose bytes are in the chunk and checks
// these bytes.
func (r *Reader) consume(chunk Chunk) {
	from, data := chunk.Offset, chunk.Data
	for len(data) > 0 {
		rec, err := r.index.peek(r.finished)
		if err != nil { // cannot be: runEnd has seen the same records in the same block
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

// readData reads bytes of a stream at its place; 0 means that there are none now.
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

// give makes a chunk of the bytes at the place of a stream and moves the place.
func (r *Reader) give(stream Stream, data []byte) Chunk {
	i := stream - Stdout
	chunk := Chunk{Stream: stream, Offset: r.pos[i], Data: data}
	r.pos[i] += uint64(len(data))
	return chunk
}
