package logs

import (
	"bytes"
	"fmt"
	"slices"
	"testing"
)

// layOut returns the pieces as arguments of WriteRuns.
func layOut(pieces []piece) (stdout, stderr []byte, runs []Run) {
	for _, p := range pieces {
		runs = append(runs, Run{Stream: p.stream, Length: len(p.data)})
		if p.stream == Stdout {
			stdout = append(stdout, p.data...)
		} else {
			stderr = append(stderr, p.data...)
		}
	}
	return stdout, stderr, runs
}

func manyPieces(n int) (pieces []piece) {
	for i := range n {
		pieces = append(pieces, piece{Stdout + Stream(i%2), fmt.Sprintf("%d\n", i)})
	}
	return pieces
}

func TestRunsAreWrittenAsSingleWritesAre(t *testing.T) {
	for _, n := range []int{0, 1, 2, runsAtOnce, runsAtOnce + 1, 3*runsAtOnce + 7} {
		for _, limit := range []uint64{0, 100, 1 << 20} {
			d, path := openDir(t)
			opt := testOptions
			opt.MaxBytes = limit
			one, many := create(t, d, "one", opt), create(t, d, "many", opt)
			pieces := manyPieces(n)
			for range 2 { // the second time after existing output
				writeAll(one, pieces...)
				stdout, stderr, runs := layOut(pieces)
				many.WriteRuns(testTime, stdout, stderr, runs)
			}
			for _, name := range []func(string) string{StdoutName, StderrName, IndexName} {
				if !bytes.Equal(readFile(t, path, name("one")), readFile(t, path, name("many"))) {
					t.Errorf("%d runs with limit %d: %s differs", n, limit, name("many"))
				}
			}
			if one.Counts() != many.Counts() {
				t.Errorf("%d runs with limit %d: counted %+v, not %+v", n, limit, many.Counts(), one.Counts())
			}
			must(t, one.Close())
			must(t, many.Close())
		}
	}
}

// halfFile fails in the chosen call, after it has written a part.
type halfFile struct {
	file
	broken bool
}

func (f *halfFile) WriteAt(p []byte, off int64) (int, error) {
	if f.broken {
		n, _ := f.file.WriteAt(p[:len(p)/2], off)
		return n, fmt.Errorf("no room")
	}
	return f.file.WriteAt(p, off)
}

func TestRunsThatCannotBeWrittenAreDroppedAndCounted(t *testing.T) {
	for broken := range 3 {
		d, _ := openDir(t)
		w := create(t, d, "e", testOptions)
		files := [3]*halfFile{{file: w.outputs[0].file}, {file: w.outputs[1].file}, {file: w.index}}
		w.outputs[0].file, w.outputs[1].file, w.index = files[0], files[1], files[2]
		pieces := manyPieces(20)
		stdout, stderr, runs := layOut(pieces)
		w.WriteRuns(testTime, stdout, stderr, runs)
		files[broken].broken = true
		w.WriteRuns(testTime, stdout, stderr, runs)
		files[broken].broken = false
		w.WriteRuns(testTime.Add(2*retryAfter), stdout, stderr, runs)
		c := w.Counts()
		if c.Stdout+c.StdoutDropped != uint64(3*len(stdout)) || c.Stderr+c.StderrDropped != uint64(3*len(stderr)) {
			t.Errorf("file %d: counted %+v of %d and %d bytes", broken, c, 3*len(stdout), 3*len(stderr))
		}
		must(t, w.Close())
		r := open(t, d, "e", Cursor{})
		gotOut, gotErr := streams(drain(t, r, 4096))
		if uint64(len(gotOut)) != c.Stdout || uint64(len(gotErr)) != c.Stderr {
			t.Errorf("file %d: read %d and %d bytes, counted %+v", broken, len(gotOut), len(gotErr), c)
		}
		if !bytes.HasPrefix([]byte(gotOut), stdout) || !bytes.HasSuffix([]byte(gotOut), stdout) {
			t.Errorf("file %d: what could be written is not there: %q", broken, gotOut)
		}
		must(t, r.Close())
	}
}

// If the disk is full in the middle of many records, some of them are complete.
func TestADiskThatIsFullAmongTheRecordsOfRunsLeavesASoundLog(t *testing.T) {
	for kept := range 8 {
		d, _ := openDir(t)
		w := create(t, d, "e", testOptions)
		pieces := manyPieces(6)
		stdout, stderr, runs := layOut(pieces)
		w.WriteRuns(testTime, stdout, stderr, runs)
		room := kept*recordSize + 7
		w.index = &brokenFile{file: w.index, next: func() int { defer func() { room = 0 }(); return room }}
		w.WriteRuns(testTime, stdout, stderr, runs)
		want := join(nil, append(slices.Clone(pieces), pieces[:min(kept, 6)]...)...)
		c := w.Counts()
		if c.Stdout+c.StdoutDropped != uint64(2*len(stdout)) || c.Stderr+c.StderrDropped != uint64(2*len(stderr)) {
			t.Errorf("%d records: counted %+v of %d and %d bytes", kept, c, 2*len(stdout), 2*len(stderr))
		}
		must(t, w.Close())
		r := open(t, d, "e", Cursor{})
		r.Finish()
		if got := drain(t, r, 100); !slices.Equal(got, want) || r.Notice() != "" {
			t.Errorf("%d records: read %v, want %v; notice %q", kept, got, want, r.Notice())
		}
		must(t, r.Close())
	}
}

// begunFile notes what the disk was told to begin with.
type begunFile struct {
	file
	begun int64
	gap   bool
}

func (f *begunFile) Begin(off, n int64) {
	f.gap = f.gap || off != f.begun
	f.begun = off + n
	f.file.Begin(off, n)
}

// TestTheDiskBeginsBeforeTheEnd: what Sync has still to write is bounded, so the exit of a command with much
// output is reported soon after it.
func TestTheDiskBeginsBeforeTheEnd(t *testing.T) {
	d, _ := openDir(t)
	w := create(t, d, "e", WriterOptions{})
	out := &begunFile{file: w.outputs[0].file}
	w.outputs[0].file = out
	piece := make([]byte, 100_000)
	for written := int64(0); written < 4*beginEvery; {
		w.Write(Stdout, testTime, piece)
		w.WriteRuns(testTime, piece, nil, []Run{{Stream: Stdout, Length: 40_000}, {Stream: Stdout, Length: 60_000}})
		written += 2 * int64(len(piece))
		if left := written - out.begun; left >= beginEvery || left < 0 || out.gap {
			t.Fatalf("of %d bytes the disk was told about %d (with a gap: %v)", written, out.begun, out.gap)
		}
	}
	must(t, w.Sync())
	must(t, w.Close())
}
