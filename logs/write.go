package logs

import (
	"hash/crc32"
	"sync"
	"time"
)

// Run is consecutive output of one stream, with none of the other in between.
type Run struct {
	Stream Stream
	// Length of the run in bytes, more than 0.
	Length int
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
			out.size += uint64(kept[s])
			out.dirty = out.dirty || kept[s] > 0
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
