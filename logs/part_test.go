package logs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// timed is a write and its time.
type timed struct {
	piece
	at time.Time
}

// drawTimed writes a random log with a clock that goes forward.
func drawTimed(t *rapid.T, w *Writer, from time.Time) []timed {
	var all []timed
	for _, p := range rapid.SliceOfN(rapid.Custom(drawLines), 0, 40).Draw(t, "log") {
		from = from.Add(time.Duration(rapid.IntRange(0, 12).Draw(t, "pause")) * time.Millisecond)
		w.Write(p.stream, from, []byte(p.data))
		all = append(all, timed{p, from})
	}
	return all
}

func drawLines(t *rapid.T) piece {
	return piece{
		stream: Stream(rapid.IntRange(1, 2).Draw(t, "stream")),
		data:   rapid.StringOfN(rapid.RuneFrom([]rune("ab\n\n")), 1, 6, -1).Draw(t, "data"),
	}
}

// chosen returns the bytes of a part of a log, one by one.
func chosen(all []timed, p Part) []piece {
	var bytes []piece
	for _, one := range all {
		if !p.Since.IsZero() && one.at.Before(p.Since) || !p.Until.IsZero() && !one.at.Before(p.Until) ||
			len(p.Streams) > 0 && !slices.Contains(p.Streams, one.stream) {
			continue
		}
		for _, b := range []byte(one.data) {
			bytes = append(bytes, piece{one.stream, string(b)})
		}
	}
	if p.Tail {
		bytes = lastLines(bytes, p.Lines)
	}
	return join(nil, bytes...)
}

// lastLines counts lines by their ends.
func lastLines(bytes []piece, lines uint64) []piece {
	keep := make([]bool, len(bytes))
	ended := make(map[Stream]bool) // the next byte belongs to another line
	taking := make(map[Stream]bool)
	for i, b := range slices.Backward(bytes) {
		if _, seen := ended[b.stream]; !seen || b.data == "\n" {
			taking[b.stream] = lines > 0
			lines -= min(lines, 1)
			ended[b.stream] = true
		}
		keep[i] = taking[b.stream]
	}
	var left []piece
	for i, b := range bytes {
		if keep[i] {
			left = append(left, b)
		}
	}
	return left
}

func drawPart(t *rapid.T, all []timed) Part {
	var p Part
	span := time.Duration(0)
	if n := len(all); n > 0 {
		span = all[n-1].at.Sub(testTime)
	}
	at := func(label string) time.Time {
		if rapid.Bool().Draw(t, label+" given") {
			return testTime.Add(time.Duration(rapid.Int64Range(-1, int64(span)+1).Draw(t, label)))
		}
		return time.Time{}
	}
	p.Since, p.Until = at("since"), at("until")
	p.Streams = rapid.SampledFrom([][]Stream{nil, {Stdout}, {Stderr}, {Stderr, Stdout}}).Draw(t, "streams")
	p.Tail = rapid.Bool().Draw(t, "tail")
	p.Lines = rapid.Uint64Range(0, 8).Draw(t, "lines")
	return p
}

// Every part is returned exactly, and so is what is written later.
func TestAPartOfALogIsGivenByteByByte(t *testing.T) {
	d, _ := openDir(t)
	run := 0
	rapid.Check(t, func(t *rapid.T) {
		run++
		id := fmt.Sprintf("e%d", run)
		w := create(t, d, id, testOptions)
		all := drawTimed(t, w, testTime)
		p := drawPart(t, all)
		r := open(t, d, id, Cursor{})
		defer func() { _ = r.Close() }()
		must(t, r.Select(context.Background(), p))
		want := chosen(all, p)
		size := rapid.IntRange(1, 40).Draw(t, "buf")
		got := gather(t, r, size)
		if rapid.Bool().Draw(t, "rest") {
			must(t, r.Suspend())
			must(t, r.Resume(d))
		}
		if p.Until.IsZero() {
			later := testTime.Add(time.Hour)
			more := drawTimed(t, w, later)
			p.Tail, p.Since = false, time.Time{}
			want = join(want, chosen(more, p)...)
			got = join(got, gather(t, r, size)...)
		}
		must(t, w.Close())
		r.Finish()
		got = join(got, gather(t, r, size)...)
		if !slices.Equal(got, want) || r.Notice() != "" {
			t.Fatalf("%+v of %v is %v, want %v; notice %q", p, all, got, want, r.Notice())
		}
	})
}

// gather reads to io.EOF. Unlike drain it lets offsets jump forward, but never back.
func gather(t fataler, r *Reader, size int) []piece {
	t.Helper()
	var got []piece
	buf := make([]byte, size)
	var ends [2]uint64
	for {
		c, err := r.Next(buf)
		if errors.Is(err, io.EOF) {
			return got
		}
		must(t, err)
		if c.Offset < ends[c.Stream-Stdout] {
			t.Fatalf("%v byte %d was given twice", c.Stream, c.Offset)
		}
		ends[c.Stream-Stdout] = c.Offset + uint64(len(c.Data))
		got = join(got, asPiece(c))
	}
}

// A client that lost its connection continues with the cursor of its last chunk and the
// same bounds.
func TestAPartGoesOnFromItsCursor(t *testing.T) {
	d, _ := openDir(t)
	run := 0
	rapid.Check(t, func(t *rapid.T) {
		run++
		id := fmt.Sprintf("e%d", run)
		w := create(t, d, id, testOptions)
		all := drawTimed(t, w, testTime)
		must(t, w.Close())
		p := drawPart(t, all)
		want := chosen(all, p)
		var got []piece
		var at Cursor
		buf := make([]byte, rapid.IntRange(1, 9).Draw(t, "buf"))
		for {
			r := open(t, d, id, at)
			must(t, r.Select(context.Background(), p))
			r.Finish()
			c, err := r.Next(buf)
			at = r.Cursor()
			p.Tail = false
			must(t, r.Close())
			if errors.Is(err, io.EOF) {
				break
			}
			must(t, err)
			got = join(got, piece{c.Stream, string(c.Data)})
		}
		if !slices.Equal(got, want) {
			t.Fatalf("%+v of %v is %v, want %v", p, all, got, want)
		}
	})
}

func TestNoDamageToTheIndexMakesATailFailOrRepeatAByte(t *testing.T) {
	d, path := openDir(t)
	run := 0
	rapid.Check(t, func(t *rapid.T) {
		run++
		id := fmt.Sprintf("e%d", run)
		w := create(t, d, id, testOptions)
		all := drawTimed(t, w, testTime)
		must(t, w.Close())
		name := filepath.Join(path, IndexName(id))
		index, err := os.ReadFile(name)
		must(t, err)
		index, _ = drawDamage(t, index)
		must(t, os.WriteFile(name, index, 0o600))
		r := open(t, d, id, Cursor{})
		defer func() { _ = r.Close() }()
		must(t, r.Select(context.Background(), drawPart(t, all)))
		r.Finish()
		gather(t, r, 10)
	})
}

// hugeLog makes a log of lines that takes no disk space: its data are holes, and its
// index says that they are lines of text.
func hugeLog(t *testing.T, d *Dir, path string, records int) {
	t.Helper()
	const line = 100 << 10
	for _, name := range []string{StdoutName("e1"), StderrName("e1")} {
		writeFile(t, path, name, nil)
		must(t, os.Truncate(filepath.Join(path, name), int64(records/2)*line))
	}
	f, err := os.Create(filepath.Join(path, IndexName("e1")))
	must(t, err)
	block := make([]byte, 0, 1<<20)
	for i := range records {
		var one [recordSize]byte
		record{
			nanos: testTime.Add(time.Duration(i) * time.Millisecond).UnixNano(), offset: uint64(i/2) * line, length: line,
			stream: Stream(1 + i%2),
		}.put(&one)
		if block = append(block, one[:]...); len(block)+recordSize > cap(block) {
			_, err = f.Write(block)
			must(t, err)
			block = block[:0]
		}
	}
	_, err = f.Write(block)
	must(t, errors.Join(err, f.Close()))
}

// allocated returns how many bytes fn allocates.
func allocated(fn func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	fn()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

func TestAPartOfTwentyGigabytesIsFoundInLittleMemoryAndFewReads(t *testing.T) {
	d, path := openDir(t)
	const records = 200_000
	hugeLog(t, d, path, records)
	for name, p := range map[string]Part{
		"tail":         {Tail: true, Lines: 10},
		"since":        {Since: testTime.Add((records - 5) * time.Millisecond)},
		"one of since": {Since: testTime.Add(records / 2 * time.Millisecond), Streams: []Stream{Stderr}, Tail: true, Lines: 3},
	} {
		r := open(t, d, "e1", Cursor{})
		reads := readCalls(t)
		used := allocated(func() { must(t, r.Select(t.Context(), p)) })
		if used > 1<<20 {
			t.Errorf("%s allocated %d bytes", name, used)
		}
		if n := readCalls(t) - reads; n > 1000 {
			t.Errorf("%s took %d reads", name, n)
		}
		if c, err := r.Next(make([]byte, 10)); err != nil || c.Offset == 0 || r.Notice() != "" {
			t.Errorf("%s begins at %d, %v, notice %q", name, c.Offset, err, r.Notice())
		}
		must(t, r.Close())
	}
}

// readCalls returns how many read system calls this process has made.
func readCalls(t *testing.T) (n int) {
	t.Helper()
	raw, err := os.ReadFile("/proc/self/io")
	must(t, err)
	for line := range strings.Lines(string(raw)) {
		if _, err := fmt.Sscanf(line, "syscr: %d", &n); err == nil {
			return n
		}
	}
	t.Fatal("the kernel does not count reads")
	return 0
}

// FAULTS 38: the index makes the reader jump through a file of holes.
func TestALyingIndexOfEightTebibytesBoundsATail(t *testing.T) {
	lies := map[string]func(path string){
		"holes": func(path string) { must(t, os.Truncate(path, 8<<40)) },
		"one line": func(path string) {
			var all []byte
			for i := range 1000 {
				var one [recordSize]byte
				record{offset: uint64(i) * maxRecord, length: maxRecord, stream: Stdout}.put(&one)
				all = append(all, one[:]...)
			}
			must(t, os.WriteFile(path, all, 0o600))
		},
		"beyond": func(path string) {
			var one [recordSize]byte
			record{offset: math.MaxUint64 - 3, length: 4, stream: Stdout}.put(&one)
			must(t, os.WriteFile(path, one[:], 0o600))
		},
		"overflow": func(path string) {
			var all []byte
			for _, rec := range []record{{offset: math.MaxUint64, length: 2, stream: Stdout}, {offset: 1, length: 9, stream: Stdout}} {
				var one [recordSize]byte
				rec.put(&one)
				all = append(all, one[:]...)
			}
			must(t, os.WriteFile(path, all, 0o600))
		},
	}
	for name, lie := range lies {
		t.Run(name, func(t *testing.T) {
			d, path := openDir(t)
			writeLog(t, d, piece{Stdout, "abc"}, piece{Stderr, "def\n"})
			must(t, os.Truncate(filepath.Join(path, StdoutName("e1")), 8<<40))
			lie(filepath.Join(path, IndexName("e1")))
			r := open(t, d, "e1", Cursor{})
			defer func() { _ = r.Close() }()
			reads := readCalls(t)
			used := allocated(func() { must(t, r.Select(t.Context(), Part{Tail: true, Lines: 10})) })
			if n := readCalls(t) - reads; used > 1<<20 || n > 1000 {
				t.Errorf("%d bytes were allocated in %d reads", used, n)
			}
			if c, err := r.Next(make([]byte, 64)); err != nil || len(c.Data) == 0 {
				t.Errorf("nothing comes: %v", err)
			}
		})
	}
}

func TestATailOfAnUnsoundLogHasTheLastLinesOfEachStream(t *testing.T) {
	d, path := openDir(t)
	writeLog(t, d, piece{Stdout, "a\nb\n"}, piece{Stderr, "c\nd"}, piece{Stdout, "e\n"})
	must(t, os.Remove(filepath.Join(path, IndexName("e1"))))
	r := open(t, d, "e1", Cursor{})
	defer func() { _ = r.Close() }()
	must(t, r.Select(t.Context(), Part{Tail: true, Lines: 1}))
	if got, want := gather(t, r, 10), []piece{{Stdout, "e\n"}, {Stderr, "d"}}; !slices.Equal(got, want) || r.Notice() == "" {
		t.Errorf("read %v, want %v; notice %q", got, want, r.Notice())
	}
}

func TestALongSearchEndsWithItsContext(t *testing.T) {
	d, path := openDir(t)
	hugeLog(t, d, path, 4000)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	r := open(t, d, "e1", Cursor{})
	defer func() { _ = r.Close() }()
	if err := r.Select(ctx, Part{Tail: true, Lines: 1 << 40}); !errors.Is(err, context.Canceled) {
		t.Errorf("Select: %v, want Canceled", err)
	}
}

// A file that replaces the log while the reader is suspended is not followed.
func TestASuspendedReaderChecksItsFilesAgain(t *testing.T) {
	againstHostile(t, StdoutName("e2"), func(t *testing.T, d *Dir, path string) {
		writeLog(t, d, piece{Stdout, "abc"})
		r := open(t, d, "e1", Cursor{})
		drain(t, r, 10)
		must(t, r.Suspend())
		must(t, os.Remove(filepath.Join(path, StdoutName("e1"))))
		must(t, os.Rename(filepath.Join(path, StdoutName("e2")), filepath.Join(path, StdoutName("e1"))))
		if err := r.Resume(d); !errors.Is(err, ErrTampered) {
			t.Errorf("Resume: %v, want ErrTampered", err)
		}
		must(t, r.Close())
	})
}

// Bytes are written before their record. Bytes that are being written when a tail starts
// belong to the output that follows.
func TestATailLeavesOutNothingThatIsJustBeingWritten(t *testing.T) {
	d, path := openDir(t)
	writeLog(t, d, piece{Stderr, "e\n"}, piece{Stdout, "a\n"}, piece{Stdout, "b\n"}, piece{Stderr, "new\n"})
	index := readFile(t, path, IndexName("e1"))
	writeFile(t, path, IndexName("e1"), index[:3*recordSize])
	r := open(t, d, "e1", Cursor{})
	defer func() { _ = r.Close() }()
	must(t, r.Select(t.Context(), Part{Tail: true, Lines: 1}))
	writeFile(t, path, IndexName("e1"), index)
	if got, want := gather(t, r, 10), []piece{{Stdout, "b\n"}, {Stderr, "new\n"}}; !slices.Equal(got, want) || r.Notice() != "" {
		t.Errorf("read %v, want %v; notice %q", got, want, r.Notice())
	}
}

func TestAStreamThatWasQuietSinceIsLeftOutAtTheEndToo(t *testing.T) {
	d, _ := openDir(t)
	w := create(t, d, "e1", testOptions)
	w.Write(Stderr, testTime, []byte("old\n"))
	w.Write(Stdout, testTime.Add(time.Hour), []byte("new\n"))
	must(t, w.Close())
	r := open(t, d, "e1", Cursor{})
	defer func() { _ = r.Close() }()
	must(t, r.Select(t.Context(), Part{Since: testTime.Add(time.Minute)}))
	r.Finish()
	if got, want := gather(t, r, 10), []piece{{Stdout, "new\n"}}; !slices.Equal(got, want) || r.Notice() != "" {
		t.Errorf("read %v, want %v; notice %q", got, want, r.Notice())
	}
}

// In such a stream too, bytes without a record may be new.
func TestOfAQuietStreamWhatNoRecordTellsOfIsGivenAtTheEnd(t *testing.T) {
	d, path := openDir(t)
	w := create(t, d, "e1", testOptions)
	w.Write(Stderr, testTime, []byte("old\n"))
	w.Write(Stdout, testTime.Add(time.Hour), []byte("new\n"))
	must(t, w.Close())
	writeFile(t, path, StderrName("e1"), []byte("old\nrest\n"))
	for name, c := range map[string]struct {
		part Part
		want []piece
	}{
		"since": {Part{Since: testTime.Add(time.Minute)}, []piece{{Stdout, "new\n"}, {Stderr, "rest\n"}}},
		"tail":  {Part{Tail: true, Lines: 1}, []piece{{Stdout, "new\n"}, {Stderr, "rest\n"}}},
		"until": {Part{Tail: true, Lines: 1, Until: testTime.Add(time.Minute)}, []piece{{Stderr, "old\n"}}},
	} {
		r := open(t, d, "e1", Cursor{})
		r.Finish()
		must(t, r.Select(t.Context(), c.part))
		if got := gather(t, r, 10); !slices.Equal(got, c.want) || (r.Notice() == "") != (name == "until") {
			t.Errorf("%s: read %v, want %v; notice %q", name, got, c.want, r.Notice())
		}
		must(t, r.Close())
	}
}

// The clock was set back after the third line and has not caught up.
func TestAClockThatWasSetBackHidesNothingOfAPart(t *testing.T) {
	d, _ := openDir(t)
	w := create(t, d, "e", testOptions)
	at := func(s int) time.Time { return testTime.Add(time.Duration(s) * time.Second) }
	for _, s := range []int{100, 101, 102, 50, 51, 52, 53} {
		w.Write(Stdout, at(s), fmt.Appendf(nil, "%d\n", s))
	}
	must(t, w.Close())
	for name, c := range map[string]struct {
		part Part
		want string
	}{
		"from before the step": {Part{Since: at(101)}, "101\n102\n"},
		"from after the step":  {Part{Since: at(51)}, "100\n101\n102\n51\n52\n53\n"},
		"up to the step":       {Part{Until: at(102)}, "100\n101\n"},
		"a tail up to there":   {Part{Until: at(102), Tail: true, Lines: 1}, "101\n"},
		"a tail from there":    {Part{Since: at(101), Tail: true, Lines: 6}, "101\n102\n"},
		"a line from there":    {Part{Since: at(101), Tail: true, Lines: 1}, "102\n"},
	} {
		r := open(t, d, "e", Cursor{})
		must(t, r.Select(t.Context(), c.part))
		if got, _ := streams(gather(t, r, 100)); got != c.want || r.Notice() != "" {
			t.Errorf("%s: %q, want %q; notice %q", name, got, c.want, r.Notice())
		}
		must(t, r.Close())
	}
}
