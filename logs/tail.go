package logs

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
)

const (
	// maxLine is the maximum length of a line that a tail recognizes, in bytes.
	maxLine = 1 << 20
	// tailBlock is the size of one read when a file is read backwards, in bytes.
	tailBlock = 64 << 10
	// tailPatience is the maximum number of further records in which the start of an
	// unfinished line is searched once all lines are counted.
	tailPatience = 1 << 17
)

// backward reads a file from its end to its start.
type backward struct {
	f *os.File
	// block holds the bytes of the file from offset place on.
	block []byte
	place uint64
}

// before returns the bytes that end at end: at least one, at most tailBlock, and none
// before from, which must be less than end. It returns io.EOF if the file is shorter.
func (b *backward) before(from, end uint64) ([]byte, error) {
	if end <= b.place || end > b.place+uint64(len(b.block)) {
		b.place = end - min(end, tailBlock)
		if cap(b.block) == 0 {
			b.block = make([]byte, tailBlock)
		}
		b.block = b.block[:end-b.place]
		if n, err := b.f.ReadAt(b.block, int64(b.place)); n < len(b.block) {
			b.block = b.block[:0]
			return nil, errors.Join(io.EOF, err)
		}
	}
	return b.block[max(from, b.place)-b.place : end-b.place], nil
}

// counter counts the lines of both streams from the end to the start.
type counter struct {
	// left is how many lines are still needed.
	left uint64
	// from is the start of the first line counted in each stream, as far as read.
	from [2]uint64
	// seen means that from is set. open means that the line at from may start earlier.
	// end is where that line ends.
	seen, open [2]bool
	end        [2]uint64
}

// full reports whether nothing further back can matter.
func (c *counter) full() bool { return c.left == 0 && !c.open[0] && !c.open[1] }

// count counts lines in data, the bytes of stream i that end at end. Each call continues
// where the data of the call before started. It returns false if the stream needs no more
// counting.
func (c *counter) count(i int, data []byte, end uint64) bool {
	if !c.seen[i] {
		c.seen[i], c.from[i] = true, end
	}
	for len(data) > 0 {
		if !c.open[i] {
			if c.left == 0 {
				return false
			}
			// This byte ends a line, whether it is a line break or not.
			c.left--
			c.open[i], c.end[i] = true, end
			data, end = data[:len(data)-1], end-1
			c.from[i] = end
			continue
		}
		next := bytes.LastIndexByte(data, '\n') + 1
		if long := int(end + maxLine - c.end[i]); len(data)-next >= long {
			next = len(data) - long
			c.open[i] = false
		} else if next > 0 {
			c.open[i] = false
		}
		end -= uint64(len(data) - next)
		data = data[:next]
		c.from[i] = end
	}
	return c.left > 0 || c.open[i]
}

// seekTail goes to the start of the last lines before record number until, but not before
// record number floor. number is the number of records. sound is false if the index is
// not sound.
func (r *Reader) seekTail(ctx context.Context, lines uint64, floor, until, number int64) (sound bool, err error) {
	size, err := r.Size()
	if err != nil {
		return false, err
	}
	w := tailWalk{r: r, count: counter{left: lines}, size: [2]uint64{size.Stdout, size.Stderr}}
	for i := range w.files {
		w.files[i].f = r.data[i]
	}
	first, sound, err := w.run(ctx, floor, until)
	if err != nil || !sound {
		return sound, err
	}
	r.part.floor, r.part.guessedAt, r.fromFloor = first, until, true
	for i := range r.pos {
		switch {
		case w.count.seen[i]:
			r.pos[i] = w.count.from[i]
		case first == 0 && number == 0, first == 0 && until == number:
			r.pos[i] = 0 // no record of this stream, so the tail starts at its first byte
		default:
			r.pos[i], r.part.guessed[i] = w.size[i], true
		}
	}
	r.index.seek(first)
	return true, nil
}

// tailWalk reads an index and the output backwards.
type tailWalk struct {
	r     *Reader
	count counter
	size  [2]uint64
	files [2]backward
	// begins is the start of the earliest record seen of each stream. known means that
	// one was seen.
	begins [2]uint64
	known  [2]bool
}

// run walks from the record before until down to floor, and returns the number of the
// first record that the tail needs.
func (w *tailWalk) run(ctx context.Context, floor, until int64) (first int64, sound bool, err error) {
	if w.count.full() {
		return until, true, nil
	}
	spent := 0
	for number, rec := range w.r.index.walk(until, floor) {
		if number%blockRecords == 0 && ctx.Err() != nil {
			return 0, false, ctx.Err()
		}
		if rec.stream == 0 || !w.fits(rec) || !w.take(rec) {
			return 0, false, nil
		}
		if w.count.left == 0 {
			spent++
		}
		if w.count.full() || spent > tailPatience {
			return number, true, nil
		}
	}
	return floor, true, nil
}

// fits reports whether a Writer can have written rec before the records seen.
func (w *tailWalk) fits(rec record) bool {
	i := rec.stream - Stdout
	fits := rec.end() == w.begins[i]
	if !w.known[i] {
		fits = rec.end() <= w.size[i]
	}
	w.begins[i], w.known[i] = rec.offset, true
	return fits
}

// take counts the lines of a record. It returns false if the bytes of the record are
// missing.
func (w *tailWalk) take(rec record) bool {
	i := int(rec.stream - Stdout)
	if rec.dropped > 0 || w.r.part.skip[i] || !w.r.part.times(rec) || w.count.left == 0 && !w.count.open[i] {
		if !w.count.seen[i] {
			w.count.seen[i], w.count.from[i] = true, rec.end()
		}
		return true
	}
	for end := rec.end(); end > rec.offset; {
		data, err := w.files[i].before(rec.offset, end)
		if err != nil {
			return false
		}
		if !w.count.count(i, data, end) {
			return true
		}
		end -= uint64(len(data))
	}
	return true
}

// seekTailRaw goes to the start of the last lines of each stream, without the index.
func (r *Reader) seekTailRaw(ctx context.Context, lines uint64) error {
	size, err := r.Size()
	if err != nil {
		return err
	}
	for i, end := range [2]uint64{size.Stdout, size.Stderr} {
		c := counter{left: lines}
		file := backward{f: r.data[i]}
		r.pos[i] = end
		for more := lines > 0; more && end > 0 && !r.part.skip[i]; {
			if err := ctx.Err(); err != nil {
				return err
			}
			data, err := file.before(0, end)
			if err != nil {
				break // it was truncated just now: return what is left
			}
			more = c.count(i, data, end)
			end -= uint64(len(data))
			r.pos[i] = c.from[i]
		}
	}
	return nil
}
