package logs

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"pgregory.net/rapid"
)

func TestALogThatIsNotThereYetIsNotFound(t *testing.T) {
	d, path := openDir(t)
	if _, err := d.Open("e1", Cursor{}); !errors.Is(err, ErrNotExist) || !errdefs.IsNotFound(err) {
		t.Errorf("Open: %v, want ErrNotExist", err)
	}
	writeFile(t, path, IndexName("e1"), nil) // as if Create had been interrupted here
	writeFile(t, path, StderrName("e1"), nil)
	if _, err := d.Open("e1", Cursor{}); !errors.Is(err, ErrNotExist) {
		t.Errorf("Open: %v, want ErrNotExist", err)
	}
}

func TestTheSameReaderGoesOnWhenMoreIsWritten(t *testing.T) {
	d, _ := openDir(t)
	w := create(t, d, "e1", testOptions)
	r := open(t, d, "e1", Cursor{})
	for i := range 3 {
		if got := drain(t, r, 100); len(got) > 0 {
			t.Fatalf("read %v before it was written", got)
		}
		writeAll(w, piece{Stderr, fmt.Sprint(i)}, piece{Stdout, "x"})
		if got, want := drain(t, r, 100), []piece{{Stderr, fmt.Sprint(i)}, {Stdout, "x"}}; !slices.Equal(got, want) {
			t.Fatalf("read %v, want %v", got, want)
		}
	}
	if got := r.Cursor(); got != (Cursor{3, 3}) || r.Notice() != "" {
		t.Errorf("Cursor() = %v, notice %q", got, r.Notice())
	}
	must(t, r.Close())
	must(t, w.Close())
}

func TestACursorBeyondTheOutputIsSeenBySize(t *testing.T) {
	d, _ := openDir(t)
	writeLog(t, d, piece{Stdout, "abc"}, piece{Stderr, "d"})
	for at, beyond := range map[Cursor]bool{{}: false, {3, 1}: false, {4, 1}: true, {3, 2}: true, {1 << 63, 0}: true} {
		r := open(t, d, "e1", at)
		size, err := r.Size()
		must(t, err)
		if at.Beyond(size) != beyond {
			t.Errorf("%v beyond %v: %v", at, size, !beyond)
		}
		must(t, r.Close())
	}
}

func TestAChunkHasTheTimeOfItsFirstByte(t *testing.T) {
	d, _ := openDir(t)
	w := create(t, d, "e1", testOptions)
	at := func(ms int) time.Time { return testTime.Add(time.Duration(ms) * time.Millisecond) }
	w.Write(Stdout, at(0), []byte("a"))
	w.Write(Stdout, at(10), []byte("b")) // close enough to come with "a"
	w.Write(Stdout, at(11), []byte("c"))
	w.Write(Stdout, at(5), []byte("d")) // the clock was set back
	must(t, w.Close())
	r := open(t, d, "e1", Cursor{})
	buf := make([]byte, 100)
	for _, want := range []Chunk{
		{Offset: 0, Data: []byte("ab"), Time: at(0)}, {Offset: 2, Data: []byte("c"), Time: at(11)}, {Offset: 3, Data: []byte("d"), Time: at(5)},
	} {
		got, err := r.Next(buf)
		must(t, err)
		if string(got.Data) != string(want.Data) || got.Offset != want.Offset || !got.Time.Equal(want.Time) {
			t.Errorf("chunk %q at %d, %v; want %q at %d, %v",
				got.Data, got.Offset, got.Time, want.Data, want.Offset, want.Time)
		}
	}
}

func TestAnEmptyBufferIsRefused(t *testing.T) {
	d, _ := openDir(t)
	writeLog(t, d)
	if _, err := open(t, d, "e1", Cursor{}).Next(nil); !errdefs.IsInvalidArgument(err) {
		t.Errorf("Next(nil): %v, want InvalidArgument", err)
	}
}

func TestBytesThatWereChangedAreGivenWithANotice(t *testing.T) {
	for _, bufSize := range []int{1, 3, 100} {
		d, path := openDir(t)
		writeLog(t, d, piece{Stdout, "first"}, piece{Stdout, "second"}, piece{Stdout, "third"})
		writeFile(t, path, StdoutName("e1"), []byte("firstsecXndthird"))
		r := open(t, d, "e1", Cursor{})
		if got := drain(t, r, bufSize); len(got) != 1 || got[0].data != "firstsecXndthird" {
			t.Errorf("read %v", got)
		}
		if !strings.Contains(r.Notice(), "stdout bytes 5 to 10 ") {
			t.Errorf("notice %q", r.Notice())
		}
		// From the middle of a record, its checksum cannot be checked.
		r = open(t, d, "e1", Cursor{Stdout: 6})
		if drain(t, r, bufSize); r.Notice() != "" {
			t.Errorf("notice %q", r.Notice())
		}
	}
}

// A record that is torn or out of order is waited for. It is returned as it is only when
// nobody writes any more.
func TestTheEndOfAnIndexIsWaitedForUntilFinish(t *testing.T) {
	d, path := openDir(t)
	writeLog(t, d, piece{Stdout, "abc"}, piece{Stderr, "def"})
	index := readFile(t, path, IndexName("e1"))
	broken := slices.Clone(index)
	broken[len(broken)-1] ^= 1
	for name, test := range map[string]struct {
		index  []byte
		stderr string
	}{
		"no record":                 {index[:recordSize], "def"},
		"half a record":             {index[:recordSize+7], "def"},
		"a record partly written":   {broken, "def"},
		"a record before its bytes": {index, ""},
	} {
		writeFile(t, path, IndexName("e1"), test.index)
		writeFile(t, path, StderrName("e1"), []byte(test.stderr))
		waiting, ended := open(t, d, "e1", Cursor{}), open(t, d, "e1", Cursor{})
		if got, want := drain(t, waiting, 100), []piece{{Stdout, "abc"}}; !slices.Equal(got, want) {
			t.Errorf("%s: read %v, want %v", name, got, want)
		}
		ended.Finish()
		if _, got := streams(drain(t, ended, 100)); got != test.stderr || ended.Notice() == "" {
			t.Errorf("%s, at the end: read %q, notice %q", name, got, ended.Notice())
		}
		writeFile(t, path, StderrName("e1"), []byte("def"))
		writeFile(t, path, IndexName("e1"), index)
		waiting.Finish()
		if got, want := drain(t, waiting, 100), []piece{{Stderr, "def"}}; !slices.Equal(got, want) || waiting.Notice() != "" {
			t.Errorf("%s, written later: read %v, want %v, notice %q", name, got, want, waiting.Notice())
		}
	}
}

// A lying index must not starve a live follower.
func TestALieInTheMiddleOfAnIndexEndsTheOrderAtOnce(t *testing.T) {
	lies := map[string]func(rec record) record{
		"gap":             func(rec record) record { rec.offset++; return rec },
		"overlap":         func(rec record) record { rec.offset--; return rec },
		"far offset":      func(rec record) record { rec.offset = 1 << 60; return rec },
		"beyond the end":  func(rec record) record { rec.length = 1000; return rec },
		"huge length":     func(rec record) record { rec.length = 1<<32 - 1; return rec },
		"no length":       func(rec record) record { rec.length = 0; return rec },
		"stream 0":        func(rec record) record { rec.stream = 0; return rec },
		"stream 200":      func(rec record) record { rec.stream = 200; return rec },
		"the other":       func(rec record) record { rec.stream = Stderr; return rec },
		"smaller than is": func(rec record) record { rec.length--; return rec },
	}
	for name, lie := range lies {
		d, path := openDir(t)
		writeLog(t, d, piece{Stdout, "abc"}, piece{Stdout, "def"}, piece{Stderr, "ghi"}, piece{Stdout, "jkl"})
		index := readFile(t, path, IndexName("e1"))
		rec, _ := parseRecord(index[recordSize:])
		lie(rec).put((*[recordSize]byte)(index[recordSize:]))
		writeFile(t, path, IndexName("e1"), index)
		r := open(t, d, "e1", Cursor{})
		stdout, stderr := streams(drain(t, r, 100))
		if stdout != "abcdefjkl" || stderr != "ghi" || r.Notice() == "" {
			t.Errorf("%s: read %q and %q, notice %q", name, stdout, stderr, r.Notice())
		}
	}
}

// drawLog writes a random log and returns its pieces.
func drawLog(t *rapid.T, w *Writer) []piece {
	pieces := rapid.SliceOfN(rapid.Custom(drawPiece), 0, 40).Draw(t, "log")
	now := testTime
	for _, p := range pieces {
		now = now.Add(time.Duration(rapid.IntRange(-1, 12).Draw(t, "pause")) * time.Millisecond)
		w.Write(p.stream, now, []byte(p.data))
	}
	return pieces
}

// after returns the pieces after a cursor.
func after(pieces []piece, at Cursor) []piece {
	var left []piece
	pos := map[Stream]uint64{Stdout: at.Stdout, Stderr: at.Stderr}
	for _, p := range pieces {
		skip := min(uint64(len(p.data)), pos[p.stream])
		pos[p.stream] -= skip
		left = join(left, piece{p.stream, p.data[skip:]})
	}
	return left
}

func TestEveryByteComesOnceInTrueOrderFromAnyCursor(t *testing.T) {
	d, _ := openDir(t)
	run := 0
	rapid.Check(t, func(t *rapid.T) {
		run++
		id := fmt.Sprintf("e%d", run)
		w := create(t, d, id, testOptions)
		var follower *Reader
		var all, followed []piece
		for range rapid.IntRange(1, 4).Draw(t, "rounds") {
			if follower == nil && rapid.Bool().Draw(t, "follow") {
				follower = open(t, d, id, Cursor{})
			}
			all = append(all, drawLog(t, w)...)
			if follower != nil {
				followed = join(followed, drain(t, follower, rapid.IntRange(1, 100).Draw(t, "buf"))...)
			}
		}
		must(t, w.Close())
		if follower != nil {
			if want := join(nil, all...); !slices.Equal(followed, want) || follower.Notice() != "" {
				t.Fatalf("followed %v, want %v; notice %q", followed, want, follower.Notice())
			}
			must(t, follower.Close())
		}
		c := w.Counts()
		at := Cursor{
			rapid.Uint64Range(0, c.Stdout+1).Draw(t, "stdout"), rapid.Uint64Range(0, c.Stderr+1).Draw(t, "stderr"),
		}
		r := open(t, d, id, at)
		defer func() { _ = r.Close() }()
		r.Finish()
		got := drain(t, r, rapid.IntRange(1, 100).Draw(t, "buf"))
		if want := after(all, at); !slices.Equal(got, want) || r.Notice() != "" {
			t.Fatalf("from %v read %v, want %v; notice %q", at, got, want, r.Notice())
		}
	})
}

func TestNoDamageToTheIndexLosesOrRepeatsAByte(t *testing.T) {
	d, path := openDir(t)
	run, degraded := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		run++
		id := fmt.Sprintf("e%d", run)
		w := create(t, d, id, testOptions)
		all := drawLog(t, w)
		must(t, w.Close())
		c := w.Counts()
		at := Cursor{
			rapid.Uint64Range(0, c.Stdout).Draw(t, "stdout"), rapid.Uint64Range(0, c.Stderr).Draw(t, "stderr"),
		}
		forged := false
		damage := func() {
			name := filepath.Join(path, IndexName(id))
			index, err := os.ReadFile(name)
			must(t, err)
			index, forged = drawDamage(t, index)
			must(t, os.WriteFile(name, index, 0o600))
		}
		early := rapid.Bool().Draw(t, "before the reader")
		if early {
			damage()
		}
		r := open(t, d, id, at)
		defer func() { _ = r.Close() }()
		var got []piece
		buf := make([]byte, rapid.IntRange(1, 50).Draw(t, "buf"))
		for range rapid.IntRange(0, 10).Draw(t, "chunks before") {
			chunk, err := r.Next(buf)
			if errors.Is(err, io.EOF) {
				break
			}
			must(t, err)
			got = append(got, piece{chunk.Stream, string(chunk.Data)})
		}
		if !early {
			damage()
		}
		r.Finish()
		got = append(got, drain(t, r, len(buf))...)

		stdout, stderr := streams(got)
		wantOut, wantErr := streams(after(all, at))
		if stdout != wantOut || stderr != wantErr {
			t.Fatalf("read %q and %q, want %q and %q; notice %q", stdout, stderr, wantOut, wantErr, r.Notice())
		}
		if r.Notice() != "" {
			degraded++
		} else if want := after(all, at); !forged && !slices.Equal(join(nil, got...), want) {
			t.Fatalf("read %v, want %v, and there was no notice", got, want)
		}
	})
	if degraded == 0 {
		t.Error("no damage was ever noticed")
	}
}

// drawDamage changes an index as a disk or a container might. A forged index can have
// another order without a notice: the checksums detect accidents only.
func drawDamage(t *rapid.T, index []byte) (damaged []byte, forged bool) {
	at := func(label string) int { return rapid.IntRange(0, len(index)).Draw(t, label) }
	switch rapid.IntRange(0, 6).Draw(t, "damage") {
	case 0:
		return index[:at("cut")], false
	case 1:
		if len(index) > 0 {
			index[at("flip")%len(index)] ^= byte(rapid.IntRange(1, 255).Draw(t, "bits"))
		}
		return index, false
	case 2:
		return append(index, rapid.SliceOfN(rapid.Byte(), 1, 100).Draw(t, "garbage")...), false
	case 3:
		i := at("insert")
		return slices.Insert(index, i, make([]byte, rapid.IntRange(1, 100).Draw(t, "zeros"))...), false
	case 4:
		i := at("delete")
		return slices.Delete(index, i, min(len(index), i+rapid.IntRange(1, 100).Draw(t, "bytes"))), false
	case 5:
		return swapRecords(index, at("a"), at("b")), true
	}
	if n := len(index) / recordSize; n > 0 {
		record{
			nanos: 1, offset: rapid.Uint64().Draw(t, "offset"), length: rapid.Uint32().Draw(t, "length"),
			stream: Stream(rapid.IntRange(0, 3).Draw(t, "forged stream")), dropped: rapid.Uint64Range(0, 3).Draw(t, "gap"),
		}.put((*[recordSize]byte)(index[at("forge")%n*recordSize:]))
	}
	return index, true
}

func swapRecords(index []byte, a, b int) []byte {
	n := len(index) / recordSize
	if n == 0 {
		return index
	}
	a, b = a%n*recordSize, b%n*recordSize
	first := slices.Clone(index[a : a+recordSize])
	copy(index[a:], index[b:b+recordSize])
	copy(index[b:], first)
	return index
}
