package logs

import (
	"hash/crc32"
	"sync"
	"time"
)

// Run is output that one stream got without the other one in between.
type Run struct {
	Stream Stream
	// Length of the run in bytes, more than 0.
	Length int
}

// runsAtOnce is how many runs are written with one write for each file.
const runsAtOnce = 256

var runRecords = sync.Pool{New: func() any { return new([runsAtOnce * recordSize]byte) }}

// WriteRuns appends output of both streams, read at the time now, in the order of
// the runs. It is Write for each of them, with fewer writes to the files.
func (w *Writer) WriteRuns(now time.Time, stdout, stderr []byte, runs []Run) {
	data := [2][]byte{stdout, stderr}
	for len(runs) > 0 {
		some := runs[:min(len(runs), runsAtOnce)]
		runs = runs[len(some):]
		var part [2][]byte
		for _, r := range some {
			s := r.Stream - Stdout
			part[s] = data[s][:len(part[s])+r.Length]
		}
		if !w.putRuns(now, part, some) {
			rest := part
			for _, r := range some {
				s := r.Stream - Stdout
				w.Write(r.Stream, now, rest[s][:r.Length])
				rest[s] = rest[s][r.Length:]
			}
		}
		for s := range data {
			data[s] = data[s][len(part[s]):]
		}
	}
}

// putRuns writes all of the data. It returns false if it could not, and has then
// written nothing; Write keeps what can be kept.
func (w *Writer) putRuns(now time.Time, data [2][]byte, runs []Run) bool {
	total := len(data[0]) + len(data[1])
	if len(runs) < 2 || total > maxRecord {
		return false
	}
	w.last.Store(max(int64(now.Sub(w.made)), 0))
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed || w.restingLocked(now) {
		return false
	}
	for s := range w.outputs {
		if w.max > 0 && w.outputs[s].size+uint64(len(data[s])) > w.max {
			return false
		}
	}
	granted := w.quota.take(now, total)
	written := 0
	if granted == total && w.putRunsLocked(now, data, runs) {
		written = total
	}
	w.quota.settle(granted, written)
	return written > 0
}

func (w *Writer) putRunsLocked(now time.Time, data [2][]byte, runs []Run) bool {
	done := false
	defer func() {
		for s := range w.outputs {
			if out := &w.outputs[s]; !done && len(data[s]) > 0 {
				_ = out.file.Truncate(int64(out.size)) // or the next write goes over it
			}
		}
	}()
	for s := range w.outputs {
		if len(data[s]) == 0 {
			continue
		}
		if _, err := w.outputs[s].file.WriteAt(data[s], int64(w.outputs[s].size)); err != nil {
			return false
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
	if _, err := w.index.WriteAt(records[:len(runs)*recordSize], int64(w.records*recordSize)); err != nil {
		return false
	}
	for s := range w.outputs {
		if n := len(data[s]); n > 0 {
			w.outputs[s].size += uint64(n)
			w.outputs[s].dirty = true
		}
	}
	w.records += uint64(len(runs))
	done = true
	return true
}
