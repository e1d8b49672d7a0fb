package logs

import (
	"context"
	"math"
	"time"
)

// Part says which part of a log a Reader gives.
type Part struct {
	// Since and Until bound when output was read from the exec: from Since on, and
	// before Until; zero is no bound. They go by the clock of that moment. Bytes of
	// which the time is not known are given.
	Since, Until time.Time
	// Streams are the ones to give; none means both.
	Streams []Stream
	// Tail has the reader start with the last Lines lines of the part, and not at
	// its cursor, which must be zero.
	Tail  bool
	Lines uint64
}

// part is a Part as the reader needs it.
type part struct {
	since, until int64 // nanoseconds since 1970
	skip         [2]bool
	// floor is the number of the first record of the part; the ones before it are
	// left out unread.
	floor int64
	// guessed tells of a stream that its place is taken from the size of the file.
	// It is set right by its first record from number guessedAt on.
	guessed   [2]bool
	guessedAt int64
}

// seekBlocks is how many blocks of an index are looked at to learn where in both
// streams a record is.
const seekBlocks = 128

// whole is all of a log.
var whole = part{since: math.MinInt64, until: math.MaxInt64}

// times tells whether a record is of the time of the part.
func (p *part) times(rec record) bool { return rec.nanos >= p.since && rec.nanos < p.until }

// nanos is t as the index counts it, or the nearest that it can count.
func nanos(t time.Time) int64 {
	switch sec := t.Unix(); {
	case sec > math.MaxInt64/int64(time.Second)-1:
		return math.MaxInt64
	case sec < math.MinInt64/int64(time.Second)+1:
		return math.MinInt64
	}
	return t.UnixNano()
}

// Select restricts a Reader that has given nothing yet. It finds the beginning of
// the part by searching the index, and that of a tail by reading backwards, in
// bounded memory. ctx ends a long search.
//
// What a line is, where both streams are given: they are counted in the order of
// their ends. A run of 1 MiB without a line break counts as a line. Where the index
// is not sound, or ends before the output of a Reader that is finished, the order is
// not known, and Lines of each stream are given, whatever their time.
func (r *Reader) Select(ctx context.Context, p Part) error {
	if !p.Since.IsZero() {
		r.part.since = nanos(p.Since)
	}
	if !p.Until.IsZero() {
		r.part.until = nanos(p.Until)
	}
	if len(p.Streams) > 0 {
		r.part.skip = [2]bool{true, true}
		for _, s := range p.Streams {
			r.part.skip[s-Stdout] = false
		}
	}
	if !r.ordered {
		return r.selectRaw(ctx, p)
	}
	number, err := r.index.count()
	if err != nil {
		r.degrade("cannot be read", r.Cursor())
		return r.selectRaw(ctx, p)
	}
	if !p.Since.IsZero() {
		r.part.floor = r.index.firstAt(0, number, r.part.since)
	}
	if !p.Tail {
		r.seekCursor(r.part.floor)
		return nil
	}
	until := number
	if !p.Until.IsZero() {
		until = r.index.firstAt(r.part.floor, number, r.part.until)
	}
	if size, err := r.Size(); r.finished && until == number && (err != nil || r.Indexed() != size) {
		r.degrade("is shorter than the output", r.Cursor())
		return r.selectRaw(ctx, p)
	}
	sound, err := r.seekTail(ctx, p.Lines, r.part.floor, until, number)
	if err != nil || sound {
		return err
	}
	r.degrade("is damaged", r.Cursor())
	return r.selectRaw(ctx, p)
}

func (r *Reader) selectRaw(ctx context.Context, p Part) error {
	if !p.Tail {
		return nil
	}
	return r.seekTailRaw(ctx, p.Lines)
}

// Over tells whether the reader has met the end of its part: it gives nothing
// more, however much is written.
func (r *Reader) Over() bool { return r.over }

// seekCursor goes to the first record, not before number floor, that is ahead of
// the cursor. A cursor that once came from a Reader has all records before that
// one behind it. Any other one may not: then the reading begins at the floor.
func (r *Reader) seekCursor(floor int64) {
	if !r.ordered || floor == 0 && r.pos == [2]uint64{} {
		return
	}
	number, err := r.index.count()
	if err != nil {
		return // the next reading of it tells
	}
	first := r.index.search(floor, max(number, floor), func(rec record) bool { return !r.isAhead(rec) })
	r.index.seek(first)
	r.fromFloor = first == floor
	if !r.fromFloor && !r.behind(first, floor) {
		r.startAnew()
	}
}

// behind looks for the last record of each stream before number first and tells
// whether the cursor is not before its end. It looks at seekBlocks of the index;
// where that does not do, the first record from there on tells, in meet.
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

// startAnew begins the reading of the index at the floor: what is behind the
// cursor is passed over record by record.
func (r *Reader) startAnew() {
	r.index.seek(r.part.floor)
	r.fromFloor = true
}

// missed tells, at the end of the index, whether a cursor that no Reader gave has
// left out bytes of a stream that was not written since. That is seen once.
func (r *Reader) missed() bool {
	if r.fromFloor || r.index.unsure == [2]bool{} {
		return false
	}
	size, err := r.Size()
	if err != nil {
		return false // the reading of the data tells
	}
	for i, end := range [2]uint64{size.Stdout, size.Stderr} {
		if r.index.unsure[i] && !r.part.skip[i] && r.pos[i] < end {
			return true
		}
	}
	return false
}

// meet looks at the next record. If it is the first one of its stream since a
// seek, that decides where in the stream the reading is; again is true when it
// had to be started anew.
func (r *Reader) meet(rec record) (again bool) {
	i := rec.stream - Stdout
	if !r.index.unsure[i] {
		return false
	}
	number := r.index.at / recordSize
	if r.part.guessed[i] && number >= r.part.guessedAt {
		r.pos[i] = rec.offset // what was being written when it was guessed is given
	}
	r.part.guessed[i] = false
	switch {
	case rec.offset <= r.pos[i]:
		return false
	case r.fromFloor && r.part.floor > 0:
		r.pos[i] = rec.offset // what is before lies before the floor
		return false
	}
	r.startAnew()
	return true
}

// isAhead tells whether a record has bytes that are not behind the cursor, or is a
// gap that is not.
func (r *Reader) isAhead(rec record) bool {
	at := r.pos[rec.stream-Stdout]
	return rec.end() > at || rec.dropped > 0 && rec.end() == at
}

// ahead tells whether the reader is to give bytes of rec, or a gap.
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

// passUnindexed moves past what the part leaves out when no record tells of it
// any more.
func (r *Reader) passUnindexed() {
	if r.part == whole {
		return
	}
	size, err := r.Size()
	if err != nil {
		return // the reading of the data tells
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
			// No record since the floor: all that records tell of lies before it.
			r.pos[i] = max(r.pos[i], end.known)
		}
	}
}
