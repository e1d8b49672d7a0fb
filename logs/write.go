package logs

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
	"sync"
	"time"

	"github.com/containerd/errdefs"
)

// Write appends output that was read at the time now. It does not fail: bytes that it
// cannot keep are counted as dropped. After a failed write it drops output for a second
// and then tries again. So a disk that was full for a while loses only what was written
// meanwhile, and the index has a gap there. It panics if the stream does not exist.
func (w *Writer) Write(stream Stream, now time.Time, p []byte) {
	if w.redactor == nil || len(p) == 0 {
		w.write(stream, now, p)
		return
	}
	var data [2][]byte
	data[stream-Stdout] = p
	w.WriteRuns(now, data[0], data[1], []Run{{Stream: stream, Length: len(p)}})
}

// runsAtOnce is the maximum number of runs in one write to each file.
const runsAtOnce = 256

var runRecords = sync.Pool{New: func() any { return new([runsAtOnce * recordSize]byte) }}

// WriteRuns appends output of both streams, read at the time now, in the order of the
// runs. It has the effect of a Write for each run, with fewer writes to the files.
func (w *Writer) WriteRuns(now time.Time, stdout, stderr []byte, runs []Run) {
	data := [2][]byte{stdout, stderr}
	if w.redactor == nil {
		w.writeRuns(now, data, runs)
	} else {
		w.writeRedacted(now, data, runs)
	}
}

func (w *Writer) writeRuns(now time.Time, data [2][]byte, runs []Run) {
	for len(runs) > 0 {
		some := runs[:min(len(runs), runsAtOnce)]
		runs = runs[len(some):]
		var part [2][]byte
		for _, r := range some {
			s := r.Stream - Stdout
			part[s] = data[s][:len(part[s])+r.Length]
		}
		rest, done := part, w.putRuns(now, part, some)
		for i, r := range some {
			s := r.Stream - Stdout
			if i >= done {
				w.write(r.Stream, now, rest[s][:r.Length])
			}
			rest[s] = rest[s][r.Length:]
		}
		for s := range data {
			data[s] = data[s][len(part[s]):]
		}
	}
}

// putRuns writes the data and returns how many of the runs are in the log: fewer than all
// if a write failed. Write then keeps what it can of the others.
func (w *Writer) putRuns(now time.Time, data [2][]byte, runs []Run) int {
	total := len(data[0]) + len(data[1])
	if len(runs) < 2 || total > maxRecord {
		return 0
	}
	w.last.Store(max(int64(now.Sub(w.made)), 0))
	w.mu.Lock()
	defer w.mu.Unlock()
	w.now = now
	if w.closed || w.restingLocked(now) {
		return 0
	}
	for s := range w.outputs {
		if w.max > 0 && w.outputs[s].size+uint64(len(data[s])) > w.max {
			return 0
		}
		if w.outputs[s].gap > 0 && len(data[s]) > 0 {
			return 0 // the record of the gap comes first
		}
	}
	granted := w.quota.take(now, total)
	done, written := 0, 0
	if granted == total {
		done, written = w.putRunsLocked(now, data, runs)
	}
	w.quota.commit(granted, written)
	return done
}

// putRunsLocked returns how many runs, and bytes in them, are in the log. A run is in the
// log once its record is in the index. Readers may have seen it then, so it stays even if
// the disk was full before the next record.
func (w *Writer) putRunsLocked(now time.Time, data [2][]byte, runs []Run) (done, written int) {
	var kept [2]int
	defer func() {
		for s := range w.outputs {
			out := &w.outputs[s]
			if kept[s] > 0 {
				out.grow(kept[s])
			}
			if kept[s] < len(data[s]) {
				_ = out.file.Truncate(int64(out.size)) // if it fails, the next write overwrites the bytes
			}
		}
	}()
	for s := range w.outputs {
		if len(data[s]) == 0 {
			continue
		}
		if _, err := w.outputs[s].file.WriteAt(data[s], int64(w.outputs[s].size)); err != nil {
			return 0, 0
		}
	}
	records := runRecords.Get().(*[runsAtOnce * recordSize]byte)
	defer runRecords.Put(records)
	var offset [2]int
	for i, r := range runs {
		s := r.Stream - Stdout
		record{
			nanos: now.UnixNano(), offset: w.outputs[s].size + uint64(offset[s]), length: uint32(r.Length), stream: r.Stream,
			crc: crc32.Checksum(data[s][offset[s]:offset[s]+r.Length], castagnoli),
		}.put((*[recordSize]byte)(records[i*recordSize:]))
		offset[s] += r.Length
	}
	n, _ := w.index.WriteAt(records[:len(runs)*recordSize], int64(w.records*recordSize)) // n suffices; the error adds nothing
	done = n / recordSize
	for _, r := range runs[:done] {
		kept[r.Stream-Stdout] += r.Length
	}
	w.records += uint64(done)
	return done, kept[0] + kept[1]
}

// redactLocked returns output without values and without what is held back, which is added to
// the next. Of the streams in last, nothing is held back. The bytes that it got stay as they are.
func (w *Writer) redactLocked(data [2][]byte, runs []Run, last [2]bool) ([2][]byte, []Run) {
	var edits [2]edit
	same := true
	for i := range data {
		e := &edits[i]
		if len(data[i]) == 0 && !last[i] {
			continue
		}
		e.whole = data[i]
		if len(w.held.data[i]) > 0 {
			e.whole = slices.Concat(w.held.data[i], data[i])
		}
		e.found, e.rest = w.redactor.find(e.whole, last[i])
		same = same && len(e.whole) == len(data[i]) && len(e.found) == 0 && e.rest == len(e.whole)
		e.read = len(e.whole) - len(data[i])
	}
	if same {
		return data, runs
	}
	for i := range data {
		if e := &edits[i]; e.whole != nil {
			w.held.data[i] = bytes.Clone(e.whole[e.rest:])
			data[i] = e.output()
		}
	}
	var kept []Run
	for _, run := range runs {
		if run.Length = edits[run.Stream-Stdout].pass(run.Length); run.Length > 0 {
			kept = append(kept, run)
		}
	}
	return data, kept
}

// writeRedacted is WriteRuns without the values.
func (w *Writer) writeRedacted(now time.Time, data [2][]byte, runs []Run) {
	if len(runs) == 0 {
		return
	}
	w.redactMu.Lock()
	defer w.redactMu.Unlock()
	w.last.Store(max(int64(now.Sub(w.made)), 0))
	w.held.now = now
	out, kept := w.redactLocked(data, runs, [2]bool{})
	w.writeRuns(now, out, kept)
	for i := range data {
		if len(data[i]) > 0 && len(w.held.data[i]) > 0 {
			w.holdLocked(i)
		}
	}
}

// holdLocked sees to it that what is held back of a stream is written after a pause of that
// stream: what the other one has meanwhile does not delay it.
func (w *Writer) holdLocked(i int) {
	w.held.since[i] = time.Now()
	if w.held.timer[i] == nil {
		w.held.timer[i] = time.AfterFunc(holdTime, func() { w.gate(func() { w.flushOld(i) }) })
	} else {
		w.held.timer[i].Reset(holdTime)
	}
}

// flushOld flushes a stream unless it had output meanwhile, for which the timer runs again.
func (w *Writer) flushOld(i int) {
	w.redactMu.Lock()
	defer w.redactMu.Unlock()
	if time.Since(w.held.since[i]) >= holdTime {
		w.flushLocked(i)
	}
}

// Flush writes what is held back because it may be the beginning of a value, first what is
// older.
func (w *Writer) Flush() {
	w.redactMu.Lock()
	defer w.redactMu.Unlock()
	if w.held.since[1].Before(w.held.since[0]) {
		w.flushLocked(1)
	}
	w.flushLocked(0)
	w.flushLocked(1)
}

func (w *Writer) flushLocked(i int) {
	if len(w.held.data[i]) == 0 {
		return
	}
	w.held.timer[i].Stop()
	var last [2]bool
	last[i] = true
	data, runs := w.redactLocked([2][]byte{}, []Run{{Stream: Stdout + Stream(i)}}, last)
	w.writeRuns(w.held.now, data, runs)
}

// Close closes the files without a sync. Output written afterwards counts as dropped. A
// second call does nothing.
func (w *Writer) Close() error {
	w.Flush()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return nil
	}
	w.markGapsLocked()
	w.closed = true
	err := errors.Join(w.outputs[0].file.Close(), w.outputs[1].file.Close(), w.index.Close())
	if err != nil {
		return fmt.Errorf("closing log files: %w: %w", errdefs.ErrInternal, err)
	}
	return nil
}
