package logs

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
)

const (
	// maxLine is the longest line that a tail looks for, in bytes.
	maxLine = 1 << 20
	// tailBlock is how much of a file is read at a time when it is read backwards.
	tailBlock = 64 << 10
	// tailPatience is how many records further back the beginning of a line is
	// looked for that is still open when all lines are counted.
	tailPatience = 1 << 17
)

// backward reads a file towards its beginning.
type backward struct {
	f *os.File
	// block holds the bytes of the file from place on.
	block []byte
	place uint64
}

// before returns at least one and at most tailBlock bytes that end at end, and
// none before from, which must be less. It returns io.EOF where the file is shorter.
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

// counter counts the lines of both streams from the end towards the beginning.
type counter struct {
	// left is how many lines are still wanted.
	left uint64
	// from is where the first line counted of each stream begins, as far as seen.
	from [2]uint64
	// seen tells that from is set, open that its line may begin further ahead, and
	// end where that line ends.
	seen, open [2]bool
	end        [2]uint64
}

// full tells whether nothing further back can matter.
func (c *counter) full() bool { return c.left == 0 && !c.open[0] && !c.open[1] }

// count takes the bytes of stream i that end at end, where those it was given
// before began. It returns false when there is nothing more to count in it.
func (c *counter) count(i int, data []byte, end uint64) bool {
	if !c.seen[i] {
		c.seen[i], c.from[i] = true, end
	}
	for len(data) > 0 {
		if !c.open[i] {
			if c.left == 0 {
				return false
			}
			// The byte ends a line, be it the line break or not.
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

// seekTail goes to where the last lines before record number until begin, but not
// before record number floor; number is how many records there are. It returns
// false when the index is not sound.
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
			r.pos[i] = 0 // no record tells of it, so it has none
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
	// begins is where the record begins that was seen last of each stream, known
	// tells whether one was.
	begins [2]uint64
	known  [2]bool
}

// run walks from the record before until towards floor and returns the number of
// the first record that the tail needs.
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

// fits tells whether a Writer can have written rec before the records seen.
func (w *tailWalk) fits(rec record) bool {
	i := rec.stream - Stdout
	fits := rec.end() == w.begins[i]
	if !w.known[i] {
		fits = rec.end() <= w.size[i]
	}
	w.begins[i], w.known[i] = rec.offset, true
	return fits
}

// take counts the lines of a record; false means that its bytes are not there.
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

// seekTailRaw goes to where the last lines of each stream begin, as the files are.
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
				break // it was cut just now: what is there is given
			}
			more = c.count(i, data, end)
			end -= uint64(len(data))
			r.pos[i] = c.from[i]
		}
	}
	return nil
}
