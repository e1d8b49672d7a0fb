package logs

import (
	"errors"
	"fmt"
	"hash/crc32"
	"sync"
	"sync/atomic"
	"time"
)

// retryAfter is how long output is dropped without a write after a failed write. Writes
// to a full file system are slow, and must not slow down the exec each time.
const retryAfter = time.Second

// beginEvery is after how many bytes the disk begins to write them. Otherwise nearly all output of a fast
// command is still in memory when it ends, and its exit is reported only when the log is on disk.
const beginEvery = 4 << 20

// WriterOptions are the options of Create.
type WriterOptions struct {
	// MaxBytes is the maximum number of bytes kept of each stream. 0 means no limit.
	MaxBytes uint64
	// Quota is a limit that the files share with others. nil means no limit.
	Quota *Quota
	// Owner of the files. The zero value is root. KeepOwner leaves the owner as it is.
	Owner Owner
	// Redactor finds values that the log has Mask for. nil means that there are none.
	Redactor *Redactor
	// Gate runs what the Writer writes by itself: the end of the output, which it holds back
	// for a moment where a value may begin. nil means a plain call.
	Gate func(fn func())
}

// Counts are numbers of bytes of an exec's output: kept in the files, and dropped because
// of a limit or a failed write.
type Counts struct {
	Stdout, Stderr               uint64
	StdoutDropped, StderrDropped uint64
}

// output is the file of one stream.
type output struct {
	file file
	// size counts the bytes that are in the file and in the index.
	size uint64
	// begun is how far the disk was told to write.
	begun   uint64
	dropped uint64
	// gap counts the dropped bytes that no record mentions yet.
	gap   uint64
	dirty bool
}

// Writer writes the output of one exec. Its methods may be called from several
// goroutines.
type Writer struct {
	dir   *Dir
	max   uint64
	quota *Quota

	redactor *Redactor
	gate     func(fn func())
	// redactMu guards held, and keeps the order of what is redacted.
	// Held across I/O: what is held back is written before what follows it.
	redactMu sync.Mutex
	held     held

	// made is the reference time of last.
	made time.Time
	// last is when the last output was read, in nanoseconds since made. It is negative if
	// there was none.
	last atomic.Int64

	// mu guards the fields below.
	// Held across I/O: the bytes of a write are written before its record, and the
	// records of both streams in the order of the calls.
	mu      sync.Mutex
	outputs [2]output
	index   file
	records uint64
	// recs has room for a record and a gap before it.
	recs [2 * recordSize]byte
	// now is when the newest output was read, kept or not.
	now time.Time
	// failedAt is when a write last failed. It is zero after a write that succeeded.
	failedAt time.Time
	closed   bool

	// syncMu guards syncErr and synced.
	// Held across I/O: a second caller must not return before the first one's bytes
	// are on disk.
	syncMu  sync.Mutex
	syncErr error
	synced  bool // the names of the files are durable
}

// Create makes the log files of an exec. It fails with errdefs.ErrAlreadyExists if one of
// them exists. The directory must stay open until the Writer is closed.
func (d *Dir) Create(execID string, opt WriterOptions) (*Writer, error) {
	if err := checkID(execID); err != nil {
		return nil, err
	}
	// Make stdout last: if it exists, the others exist.
	names := [3]string{IndexName(execID), StderrName(execID), StdoutName(execID)}
	var files [3]file
	for i, name := range names {
		f, err := d.createFile(name, opt.Owner)
		if err != nil {
			for j := range i {
				err = errors.Join(err, files[j].Close(), d.unlink(names[j]))
			}
			return nil, err
		}
		files[i] = diskFile{f}
	}
	return newWriter(d, opt, files[2], files[1], files[0]), nil
}

func newWriter(d *Dir, opt WriterOptions, stdout, stderr, index file) *Writer {
	w := &Writer{
		dir: d, max: opt.MaxBytes, quota: opt.Quota, index: index, made: time.Now(),
		redactor: opt.Redactor, gate: opt.Gate,
		outputs: [2]output{{file: stdout}, {file: stderr}},
	}
	w.last.Store(-1)
	if w.gate == nil {
		w.gate = func(fn func()) { fn() }
	}
	return w
}

func (w *Writer) write(stream Stream, now time.Time, p []byte) {
	if len(p) > 0 {
		w.last.Store(max(int64(now.Sub(w.made)), 0))
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.now = now
	out := &w.outputs[stream-Stdout]
	for len(p) > 0 {
		part := p[:min(len(p), maxRecord)]
		kept := w.appendLocked(stream, now, part)
		if kept < len(part) {
			out.dropped += uint64(len(p) - kept)
			out.gap += uint64(len(p) - kept)
			return
		}
		p = p[kept:]
	}
}

// appendLocked writes as much of p as it can and returns how many bytes that is.
func (w *Writer) appendLocked(stream Stream, now time.Time, p []byte) int {
	out := &w.outputs[stream-Stdout]
	if w.max > 0 {
		p = p[:min(uint64(len(p)), w.max-out.size)]
	}
	if len(p) == 0 || w.closed || w.restingLocked(now) {
		return 0
	}
	index := recordSize
	if out.gap > 0 {
		index += recordSize
	}
	granted := w.quota.take(now, len(p)+index)
	kept := w.putLocked(stream, now, p[:max(granted-index, 0)])
	written := 0
	if kept > 0 {
		written = kept + index
	}
	w.quota.commit(granted, written)
	return kept
}

// putLocked writes p and its record and returns how many bytes of p are kept.
func (w *Writer) putLocked(stream Stream, now time.Time, p []byte) int {
	if len(p) == 0 {
		return 0
	}
	out := &w.outputs[stream-Stdout]
	n, err := out.file.WriteAt(p, int64(out.size))
	if err != nil {
		w.failedAt = now
	}
	if n == 0 {
		return 0
	}
	if !w.indexLocked(record{
		nanos: now.UnixNano(), offset: out.size, length: uint32(n), stream: stream,
		crc: crc32.Checksum(p[:n], castagnoli),
	}) {
		// Readers would wait for the record of these bytes. If truncating fails too, the
		// next write overwrites them.
		w.failedAt = now
		_ = out.file.Truncate(int64(out.size))
		return 0
	}
	out.grow(n)
	return n
}

// grow adds bytes that are in the file and in the index.
func (o *output) grow(n int) {
	o.size += uint64(n)
	o.dirty = true
	if fresh := o.size - o.begun; fresh >= beginEvery {
		o.file.Begin(int64(o.begun), int64(fresh))
		o.begun = o.size
	}
}

// indexLocked writes a record, after the pending gap of its stream if there is one. It
// returns false if the record is not in the index; the gap may be.
func (w *Writer) indexLocked(rec record) bool {
	out := &w.outputs[rec.stream-Stdout]
	b := w.recs[recordSize:]
	rec.put((*[recordSize]byte)(b))
	if out.gap > 0 {
		b = w.recs[:]
		record{nanos: rec.nanos, offset: rec.offset, stream: rec.stream, dropped: out.gap}.put((*[recordSize]byte)(b))
	}
	n, _ := w.index.WriteAt(b, int64(w.records*recordSize)) // n suffices; the error adds nothing
	w.records += uint64(n / recordSize)
	if len(b) > recordSize && n >= recordSize {
		out.gap, out.dirty = 0, true
	}
	return n == len(b)
}

// markGapsLocked writes the gaps at the end of the streams, which no later record will
// carry. If there is no room for them either, only the counts have the dropped bytes.
func (w *Writer) markGapsLocked() {
	for i := range w.outputs {
		out := &w.outputs[i]
		if out.gap == 0 || w.closed {
			continue
		}
		b := (*[recordSize]byte)(w.recs[:])
		record{nanos: w.now.UnixNano(), offset: out.size, stream: Stdout + Stream(i), dropped: out.gap}.put(b)
		if n, _ := w.index.WriteAt(b[:], int64(w.records*recordSize)); n == recordSize {
			w.records++
			out.gap, out.dirty = 0, true
		}
	}
}

// restingLocked reports whether a write failed less than retryAfter ago. Setting the
// clock back ends the pause.
func (w *Writer) restingLocked(now time.Time) bool {
	if w.failedAt.IsZero() {
		return false
	}
	if since := now.Sub(w.failedAt); since >= 0 && since < retryAfter {
		return true
	}
	w.failedAt = time.Time{}
	return false
}

// LastWrite returns when the last output was read, kept or not, or the zero time if there
// was none. It never waits for the disk.
func (w *Writer) LastWrite() time.Time {
	since := w.last.Load()
	if since < 0 {
		return time.Time{}
	}
	return w.made.Add(time.Duration(since))
}

// Counts returns how many bytes were kept and dropped so far.
func (w *Writer) Counts() Counts {
	w.mu.Lock()
	defer w.mu.Unlock()
	return Counts{
		Stdout: w.outputs[0].size, StdoutDropped: w.outputs[0].dropped,
		Stderr: w.outputs[1].size, StderrDropped: w.outputs[1].dropped,
	}
}

// Sync returns when everything written before the call is on disk, gaps included. Writes
// continue meanwhile. After a failure it always returns the same error, because the
// kernel may have discarded what it could not write.
func (w *Writer) Sync() error {
	w.syncMu.Lock()
	defer w.syncMu.Unlock()
	if w.syncErr != nil {
		return w.syncErr
	}
	if err := w.syncFiles(w.takeDirty()); err != nil {
		w.syncErr = fmt.Errorf("sync of the log files in %s: %w", w.dir.path, err)
	}
	return w.syncErr
}

// takeDirty returns the files that have changed since the last call. It leaves out empty
// ones: the sync of the directory saves their names.
func (w *Writer) takeDirty() []file {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.markGapsLocked()
	var dirty []file
	for i := range w.outputs {
		if out := &w.outputs[i]; out.dirty {
			dirty = append(dirty, out.file)
			out.dirty = false
		}
	}
	if dirty != nil {
		dirty = append(dirty, w.index)
	}
	return dirty
}

func (w *Writer) syncFiles(files []file) error {
	for _, f := range files {
		if err := f.Sync(); err != nil {
			return err
		}
	}
	if w.synced {
		return nil
	}
	if err := w.dir.f.Sync(); err != nil {
		return err
	}
	w.synced = true
	return nil
}

// held is the end of the output of each stream that is not written yet, because it may be the
// beginning of a value.
type held struct {
	data [2][]byte
	// now is when the newest output was read, of either stream.
	now time.Time
	// since is when the timer of a stream was started.
	since [2]time.Time
	timer [2]*time.Timer
}

// Run is consecutive output of one stream, with none of the other in between.
type Run struct {
	Stream Stream
	// Length of the run in bytes, more than 0.
	Length int
}
