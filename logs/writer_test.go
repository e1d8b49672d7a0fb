package logs

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

func TestOutputIsRawInTheFilesAndInOrderInTheIndex(t *testing.T) {
	d, path := openDir(t)
	w := create(t, d, "e1", testOptions)
	writeAll(w, piece{Stdout, "one\n"}, piece{Stderr, "two\n"}, piece{Stdout, "three\n"})
	must(t, w.Sync())
	must(t, w.Close())

	if got := string(readFile(t, path, "e1.stdout.log")); got != "one\nthree\n" {
		t.Errorf("stdout file holds %q", got)
	}
	if got := string(readFile(t, path, "e1.stderr.log")); got != "two\n" {
		t.Errorf("stderr file holds %q", got)
	}
	index := readFile(t, path, "e1.index")
	if len(index) != 3*recordSize {
		t.Fatalf("index has %d bytes, want 3 records", len(index))
	}
	rec, ok := parseRecord(index[2*recordSize:])
	if !ok || rec.stream != Stdout || rec.offset != 4 || rec.length != 6 || !rec.time().Equal(testTime) {
		t.Errorf("third record is %+v, ok %v", rec, ok)
	}
	for _, name := range []string{StdoutName("e1"), StderrName("e1"), IndexName("e1")} {
		info, err := os.Stat(filepath.Join(path, name))
		must(t, err)
		if info.Mode() != 0o600 {
			t.Errorf("%s has mode %v", name, info.Mode())
		}
	}
}

func TestASecondWriterForTheSameExecIsRefusedAndHarmsNothing(t *testing.T) {
	d, path := openDir(t)
	w := create(t, d, "e1", testOptions)
	writeAll(w, piece{Stdout, "kept"})
	must(t, w.Close())
	must(t, os.Remove(filepath.Join(path, IndexName("e1")))) // the first file that Create makes

	if _, err := d.Create("e1", testOptions); !errdefs.IsAlreadyExists(err) {
		t.Fatalf("Create returned %v, want AlreadyExists", err)
	}
	if _, err := os.Stat(filepath.Join(path, IndexName("e1"))); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the failed Create left an index behind: %v", err)
	}
	if got := string(readFile(t, path, "e1.stdout.log")); got != "kept" {
		t.Errorf("stdout file holds %q", got)
	}
}

func TestNamesThatLeaveTheDirectoryAreRefused(t *testing.T) {
	d, path := openDir(t)
	for _, id := range []string{"", ".", "..", "../x", "a/b", "a\x00b", ".x"} {
		_, createErr := d.Create(id, testOptions)
		_, openErr := d.Open(id, Cursor{})
		_, statusErr := d.ReadStatus(id)
		for call, err := range map[string]error{
			"Create": createErr, "Open": openErr, "ReadStatus": statusErr,
			"WriteStatus": d.WriteStatus(id, nil, StatusOptions{Owner: KeepOwner}),
			"Remove":      d.Remove(t.Context(), id), "RemoveAll": RemoveAll(t.Context(), path, id),
		} {
			if !errdefs.IsInvalidArgument(err) {
				t.Errorf("%s(%q) = %v, want InvalidArgument", call, id, err)
			}
		}
	}
}

func TestOutputPastTheLimitIsCountedAndDropped(t *testing.T) {
	d, _ := openDir(t)
	w := create(t, d, "e1", WriterOptions{MaxBytes: 5, Owner: KeepOwner})
	writeAll(w, piece{Stdout, "abc"}, piece{Stdout, "defg"}, piece{Stdout, "h"}, piece{Stderr, "xyz"})
	if got, want := w.Counts(), (Counts{Stdout: 5, StdoutDropped: 3, Stderr: 3}); got != want {
		t.Errorf("Counts() = %+v, want %+v", got, want)
	}
	must(t, w.Close())
	got := drain(t, open(t, d, "e1", Cursor{}), 100)
	if want := []piece{{Stdout, "abcde"}, {Stderr, "xyz"}}; !slices.Equal(got, want) {
		t.Errorf("read %v, want %v", got, want)
	}
}

func TestOutputAfterCloseIsDropped(t *testing.T) {
	d, _ := openDir(t)
	w := create(t, d, "e1", testOptions)
	must(t, w.Close())
	must(t, w.Close())
	writeAll(w, piece{Stderr, "late"})
	if got := w.Counts(); got != (Counts{StderrDropped: 4}) {
		t.Errorf("Counts() = %+v", got)
	}
}

func TestOneWriteLongerThanARecordIsSplit(t *testing.T) {
	d, path := openDir(t)
	w := create(t, d, "e1", testOptions)
	w.Write(Stdout, testTime, make([]byte, maxRecord+1))
	must(t, w.Close())
	if got := len(readFile(t, path, "e1.index")); got != 2*recordSize {
		t.Errorf("index has %d bytes, want 2 records", got)
	}
	r := open(t, d, "e1", Cursor{})
	got := drain(t, r, 1<<20)
	if len(got) != 1 || len(got[0].data) != maxRecord+1 || r.Notice() != "" {
		t.Errorf("read %d pieces, notice %q", len(got), r.Notice())
	}
}

func TestWritersOfBothStreamsAtOnceKeepEveryByte(t *testing.T) {
	d, _ := openDir(t)
	w := create(t, d, "e1", testOptions)
	var wg sync.WaitGroup
	for _, s := range []Stream{Stdout, Stderr} {
		wg.Go(func() {
			for i := range 500 {
				w.Write(s, testTime, fmt.Appendf(nil, "%v line %d\n", s, i))
				if i%100 == 0 {
					_ = w.Sync()
				}
			}
		})
	}
	wg.Wait()
	must(t, w.Close())
	r := open(t, d, "e1", Cursor{})
	stdout, stderr := streams(drain(t, r, 4096))
	for i, lines := range [][]string{strings.SplitAfter(stdout, "\n"), strings.SplitAfter(stderr, "\n")} {
		if len(lines) != 501 || lines[499] != fmt.Sprintf("%v line 499\n", Stream(i+1)) {
			t.Errorf("%d lines, the last %q", len(lines)-1, lines[len(lines)-2])
		}
	}
	if r.Notice() != "" {
		t.Errorf("notice %q", r.Notice())
	}
}

// brokenFile fails when a test says so, after a part of the bytes.
type brokenFile struct {
	file
	// next returns how many bytes of the next write succeed; negative: all.
	next    func() int
	syncErr error
}

func (f *brokenFile) WriteAt(p []byte, off int64) (int, error) {
	n := f.next()
	if n < 0 || n >= len(p) {
		return f.file.WriteAt(p, off)
	}
	n, err := f.file.WriteAt(p[:n], off)
	return n, errors.Join(err, unix.ENOSPC)
}

func (f *brokenFile) Sync() error { return errors.Join(f.syncErr, f.file.Sync()) }

func always(n int) func() int { return func() int { return n } }

func TestAFullDiskCostsOnlyWhatWasWrittenMeanwhile(t *testing.T) {
	d, _ := openDir(t)
	w := create(t, d, "e1", testOptions)
	broken := &brokenFile{file: w.outputs[0].file, next: always(2)}
	w.outputs[0].file = broken

	w.Write(Stdout, testTime, []byte("abcd")) // "ab" is kept
	broken.next = always(math.MaxInt)
	w.Write(Stdout, testTime.Add(retryAfter/2), []byte("ef")) // not tried yet
	w.Write(Stderr, testTime.Add(retryAfter/2), []byte("x"))
	w.Write(Stdout, testTime.Add(retryAfter), []byte("gh"))
	w.Write(Stderr, testTime.Add(retryAfter), []byte("y"))
	if got, want := w.Counts(), (Counts{Stdout: 4, StdoutDropped: 4, Stderr: 1, StderrDropped: 1}); got != want {
		t.Errorf("Counts() = %+v, want %+v", got, want)
	}
	must(t, w.Close())
	r := open(t, d, "e1", Cursor{})
	got := drainAll(t, r, 100)
	if want := []piece{{Stdout, "ab"}, gap(Stdout, 4), {Stdout, "gh"}, gap(Stderr, 1), {Stderr, "y"}}; !slices.Equal(got, want) || r.Notice() != "" {
		t.Errorf("read %v, want %v; notice %q", got, want, r.Notice())
	}
}

func TestAClockThatIsSetBackDoesNotSilenceTheLog(t *testing.T) {
	d, _ := openDir(t)
	w := create(t, d, "e1", testOptions)
	broken := &brokenFile{file: w.outputs[0].file, next: always(0)}
	w.outputs[0].file = broken
	w.Write(Stdout, testTime, []byte("lost"))
	broken.next = always(-1)
	w.Write(Stdout, testTime.Add(-24*time.Hour), []byte("kept"))
	if got, want := w.Counts(), (Counts{Stdout: 4, StdoutDropped: 4}); got != want {
		t.Errorf("Counts() = %+v, want %+v", got, want)
	}
	must(t, w.Close())
}

func TestAFailedSyncIsNeverRetriedIntoSuccess(t *testing.T) {
	d, _ := openDir(t)
	w := create(t, d, "e1", testOptions)
	broken := &brokenFile{file: w.outputs[0].file, next: always(-1), syncErr: unix.EIO}
	w.outputs[0].file = broken
	w.Write(Stdout, testTime, []byte("x"))
	if err := w.Sync(); !errors.Is(err, unix.EIO) {
		t.Fatalf("Sync() = %v, want EIO", err)
	}
	broken.syncErr = nil
	if err := w.Sync(); !errors.Is(err, unix.EIO) {
		t.Errorf("second Sync() = %v, want EIO again", err)
	}
	must(t, w.Close())
}

// Whatever fails when, a reader finds what is counted as kept, in order.
func TestCountsMatchTheFilesWhateverFails(t *testing.T) {
	d, _ := openDir(t)
	run := 0
	rapid.Check(t, func(t *rapid.T) {
		run++
		id := fmt.Sprintf("e%d", run)
		w := create(t, d, id, WriterOptions{MaxBytes: rapid.Uint64Range(0, 60).Draw(t, "max"), Owner: KeepOwner})
		next := func() int {
			if rapid.IntRange(0, 3).Draw(t, "fails") > 0 {
				return -1
			}
			return rapid.IntRange(0, 40).Draw(t, "part")
		}
		w.outputs[0].file = &brokenFile{file: w.outputs[0].file, next: next}
		w.outputs[1].file = &brokenFile{file: w.outputs[1].file, next: next}
		w.index = &brokenFile{file: w.index, next: next}

		now := testTime
		var kept []piece
		var given [2]uint64
		for range rapid.IntRange(0, 20).Draw(t, "writes") {
			p := drawPiece(t)
			now = now.Add(time.Duration(rapid.Int64Range(0, int64(retryAfter)).Draw(t, "pause")))
			before := w.Counts()
			w.Write(p.stream, now, []byte(p.data))
			after := w.Counts()
			n := after.Stdout - before.Stdout + after.Stderr - before.Stderr
			kept = join(kept, piece{p.stream, p.data[:n]})
			given[p.stream-Stdout] += uint64(len(p.data))
		}
		c := w.Counts()
		if c.Stdout+c.StdoutDropped != given[0] || c.Stderr+c.StderrDropped != given[1] {
			t.Fatalf("%+v does not add up to %v", c, given)
		}
		must(t, w.Close())
		r := open(t, d, id, Cursor{})
		defer func() { _ = r.Close() }()
		r.Finish()
		if got := drain(t, r, 16); !slices.Equal(got, kept) || r.Notice() != "" {
			t.Fatalf("read %v, want %v; notice %q", got, kept, r.Notice())
		}
	})
}

func drawPiece(t *rapid.T) piece {
	return piece{
		stream: Stream(rapid.IntRange(1, 2).Draw(t, "stream")),
		data:   rapid.StringOfN(rapid.RuneFrom([]rune("abcdefgh\n")), 0, 40, -1).Draw(t, "data"),
	}
}
