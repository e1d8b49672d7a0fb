package logs

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestAGapHoldsAnyNumberOfBytes(t *testing.T) {
	for _, n := range []uint64{1, math.MaxUint32, math.MaxUint32 + 1, math.MaxUint64} {
		var b [recordSize]byte
		want := record{nanos: 7, offset: 9, stream: Stderr, dropped: n}
		want.put(&b)
		if got, ok := parseRecord(b[:]); !ok || got != want {
			t.Errorf("%+v was read as %+v, %v", want, got, ok)
		}
	}
}

// An index without gaps has the same bytes as before gaps existed.
func TestARecordWithoutAGapIsAsItAlwaysWas(t *testing.T) {
	const old = "17979cfe362a007b" + "0000000000000004" + "00000003" + "02000000" + "364b3fb7" + "54dca9b5"
	var b [recordSize]byte
	want := record{nanos: testTime.UnixNano(), offset: 4, length: 3, stream: Stderr, crc: 0x364b3fb7}
	want.put(&b)
	if got := fmt.Sprintf("%x", b); got != old {
		t.Errorf("the record is %s, want %s", got, old)
	}
	if got, ok := parseRecord(b[:]); !ok || got != want {
		t.Errorf("%+v was read as %+v, %v", want, got, ok)
	}
}

func TestOutputThatIsCutAtItsLimitEndsWithAGap(t *testing.T) {
	d, _ := openDir(t)
	opt := testOptions
	opt.MaxBytes = 4
	w := create(t, d, "e1", opt)
	writeAll(w, piece{Stdout, "abcdef"}, piece{Stderr, "x"}, piece{Stdout, "ghi"})
	follower := open(t, d, "e1", Cursor{})
	if got, want := drainAll(t, follower, 100), []piece{{Stdout, "abcd"}, {Stderr, "x"}}; !slices.Equal(got, want) {
		t.Errorf("while it runs read %v, want %v", got, want)
	}
	must(t, w.Sync()) // the exec has ended
	if got, want := drainAll(t, follower, 100), []piece{gap(Stdout, 5)}; !slices.Equal(got, want) {
		t.Errorf("behind its end read %v, want %v", got, want)
	}
	writeAll(w, piece{Stdout, "jk"}) // a process in the background
	must(t, w.Close())
	want := []piece{{Stdout, "abcd"}, {Stderr, "x"}, gap(Stdout, 5), gap(Stdout, 2)}
	if got := drainAll(t, open(t, d, "e1", Cursor{}), 100); !slices.Equal(got, want) {
		t.Errorf("read %v, want %v", got, want)
	}
}

func TestAGapThatIsNextIsGivenWithoutABuffer(t *testing.T) {
	d, _ := openDir(t)
	opt := testOptions
	opt.MaxBytes = 1
	w := create(t, d, "e1", opt)
	writeAll(w, piece{Stdout, "ab"})
	must(t, w.Close())
	r := open(t, d, "e1", Cursor{})
	if c, ok := r.Gap(); ok {
		t.Errorf("before the first byte: %+v", c)
	}
	if c, err := r.Next(make([]byte, 10)); err != nil || string(c.Data) != "a" {
		t.Fatalf("%+v, %v", c, err)
	}
	if c, ok := r.Gap(); !ok || c.Dropped != 1 || c.Offset != 1 || c.Stream != Stdout || !c.Time.Equal(testTime) {
		t.Errorf("behind the last byte: %+v, %v", c, ok)
	}
	if c, ok := r.Gap(); ok {
		t.Errorf("a second time: %+v", c)
	}
}

func TestAPartOfALogHasItsOwnGaps(t *testing.T) {
	d, _ := openDir(t)
	w := create(t, d, "e1", testOptions)
	broken := &brokenFile{file: w.outputs[0].file}
	w.outputs[0].file = broken
	at := func(i int) time.Time { return testTime.Add(time.Duration(i) * retryAfter) }
	for i, s := range []string{"a\n", "!", "b\n", "!", "c\n"} {
		broken.next = always(map[bool]int{true: 0, false: -1}[s == "!"])
		w.Write(Stdout, at(i), []byte(s))
		if s != "!" {
			w.Write(Stderr, at(i), []byte(s))
		}
	}
	must(t, w.Close())
	for name, c := range map[string]struct {
		part Part
		want []piece
	}{
		"all":     {Part{}, []piece{{Stdout, "a\n"}, {Stderr, "a\n"}, gap(Stdout, 1), {Stdout, "b\n"}, {Stderr, "b\n"}, gap(Stdout, 1), {Stdout, "c\n"}, {Stderr, "c\n"}}},
		"since":   {Part{Since: at(2)}, []piece{gap(Stdout, 1), {Stdout, "b\n"}, {Stderr, "b\n"}, gap(Stdout, 1), {Stdout, "c\n"}, {Stderr, "c\n"}}},
		"until":   {Part{Until: at(4)}, []piece{{Stdout, "a\n"}, {Stderr, "a\n"}, gap(Stdout, 1), {Stdout, "b\n"}, {Stderr, "b\n"}}},
		"stderr":  {Part{Streams: []Stream{Stderr}}, []piece{{Stderr, "a\nb\nc\n"}}},
		"stdout":  {Part{Streams: []Stream{Stdout}}, []piece{{Stdout, "a\n"}, gap(Stdout, 1), {Stdout, "b\n"}, gap(Stdout, 1), {Stdout, "c\n"}}},
		"no tail": {Part{Tail: true}, nil},
		"tail":    {Part{Tail: true, Lines: 3}, []piece{{Stderr, "b\n"}, gap(Stdout, 1), {Stdout, "c\n"}, {Stderr, "c\n"}}},
	} {
		r := open(t, d, "e1", Cursor{})
		must(t, r.Select(t.Context(), c.part))
		if got := gather(t, r, 100); !slices.Equal(got, c.want) || r.Notice() != "" {
			t.Errorf("%s: read %v, want %v; notice %q", name, got, c.want, r.Notice())
		}
		must(t, r.Close())
	}
}

// Output written within a moment is returned as one chunk, unless there is a gap.
func TestAGapBetweenTwoQuickWritesIsGiven(t *testing.T) {
	d, _ := openDir(t)
	w := create(t, d, "e1", testOptions)
	broken := &brokenFile{file: w.outputs[0].file}
	w.outputs[0].file = broken
	// The clock goes back, so the next write is tried at once.
	for i, room := range []int{-1, 0, -1} {
		broken.next = always(room)
		w.Write(Stdout, testTime.Add([]time.Duration{0, 2, 1}[i]), []byte("ab"))
	}
	must(t, w.Close())
	want := []piece{{Stdout, "ab"}, gap(Stdout, 2), {Stdout, "ab"}}
	if got := drainAll(t, open(t, d, "e1", Cursor{}), 100); !slices.Equal(got, want) {
		t.Errorf("read %v, want %v", got, want)
	}
}

// missing sums up the dropped bytes at each offset of each stream.
type missing map[Stream]map[uint64]uint64

func (m missing) add(s Stream, offset, n uint64) {
	if n > 0 {
		m[s][offset] += n
	}
}

func newMissing() missing {
	return missing{Stdout: map[uint64]uint64{}, Stderr: map[uint64]uint64{}}
}

// However the disk fails, every gap is returned where its bytes are missing, from every
// cursor that a Reader can return.
func TestEveryGapComesAtItsPlaceFromAnyCursor(t *testing.T) {
	d, _ := openDir(t)
	run := 0
	rapid.Check(t, func(t *rapid.T) {
		run++
		id := fmt.Sprintf("e%d", run)
		w := create(t, d, id, testOptions)
		next := func() int { return rapid.SampledFrom([]int{-1, -1, -1, 0, 3, 35}).Draw(t, "room") }
		disk := []*brokenFile{{file: w.outputs[0].file, next: next}, {file: w.outputs[1].file, next: next}, {file: w.index, next: next}}
		w.outputs[0].file, w.outputs[1].file, w.index = disk[0], disk[1], disk[2]
		now, want := testTime, newMissing()
		for range rapid.IntRange(0, 30).Draw(t, "writes") {
			p := drawPiece(t)
			now = now.Add(time.Duration(rapid.Int64Range(0, int64(2*retryAfter)).Draw(t, "pause")))
			w.Write(p.stream, now, []byte(p.data))
			c := w.Counts()
			lost := c.StdoutDropped + c.StderrDropped
			for _, m := range want {
				for _, n := range m {
					lost -= n
				}
			}
			want.add(p.stream, map[Stream]uint64{Stdout: c.Stdout, Stderr: c.Stderr}[p.stream], lost)
			if rapid.IntRange(0, 5).Draw(t, "sync") == 0 {
				must(t, w.Sync())
			}
		}
		disk[2].next = always(-1) // otherwise the gaps after the last bytes may be missing
		must(t, w.Close())

		first := open(t, d, id, Cursor{})
		defer func() { _ = first.Close() }()
		first.Finish()
		got, buf := newMissing(), make([]byte, rapid.IntRange(1, 30).Draw(t, "buf"))
		for {
			told, at := newMissing(), first.Cursor()
			r := open(t, d, id, at)
			r.Finish()
			for {
				c, err := r.Next(buf)
				if err != nil {
					break
				}
				told.add(c.Stream, c.Offset, c.Dropped)
			}
			must(t, r.Close())
			for s, m := range want {
				for offset, n := range m {
					here := map[Stream]uint64{Stdout: at.Stdout, Stderr: at.Stderr}[s]
					left := n - got[s][offset]
					if n := told[s][offset]; offset > here && n != left || offset < here && n != 0 || offset == here && n < left {
						t.Fatalf("from %+v, %d bytes are said to be missing at %v byte %d, want %d", at, n, s, offset, left)
					}
				}
			}
			c, err := first.Next(buf)
			if err != nil {
				break
			}
			got.add(c.Stream, c.Offset, c.Dropped)
		}
		for s, m := range want {
			for offset, n := range m {
				if got[s][offset] != n {
					t.Fatalf("%d bytes are said to be missing at %v byte %d, want %d", got[s][offset], s, offset, n)
				}
			}
		}
	})
}
