package logs

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestAnIndexIsWalkedBothWaysUpToWhatIsDamaged(t *testing.T) {
	const records, bad = 3*blockRecords + 7, blockRecords + 5
	raw := make([]byte, 0, records*recordSize)
	for i := range records {
		var b [recordSize]byte
		record{nanos: int64(i), offset: uint64(i), length: 1, stream: Stdout}.put(&b)
		raw = append(raw, b[:]...)
	}
	open := func(raw []byte) *indexReader {
		path := filepath.Join(t.TempDir(), "index")
		if err := os.WriteFile(path, raw, 0o600); err != nil {
			t.Fatal(err)
		}
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = f.Close() })
		return &indexReader{f: f}
	}
	whole, damaged := open(raw), slices.Clone(raw)
	damaged[bad*recordSize] ^= 1
	for _, c := range []struct {
		name       string
		x          *indexReader
		first, end int64
		last       int64 // the last number, and whether its record is one
		sound      bool
	}{
		{"upwards", whole, 0, records, records - 1, true},
		{"downwards", whole, records, 0, 0, true},
		{"a part upwards", whole, 5, 2*blockRecords + 5, 2*blockRecords + 4, true},
		{"a part downwards", whole, 2*blockRecords + 5, 5, 5, true},
		{"upwards to a damage", open(damaged), 0, records, bad, false},
		{"downwards to a damage", open(damaged), records, 0, bad, false},
		{"beyond the end", whole, records - 3, records + 3, records, false},
		{"down from beyond the end", whole, records + 3, 0, records + 2, false},
	} {
		step, want := int64(1), c.first
		if c.end < c.first {
			step, want = -1, c.first-1
		}
		var last int64
		sound := true
		for number, rec := range c.x.walk(c.first, c.end) {
			if number != want || !sound || rec.stream != 0 && rec.nanos != number {
				t.Fatalf("%s: record %d came as number %d, want %d", c.name, rec.nanos, number, want)
			}
			last, sound, want = number, rec.stream != 0, want+step
		}
		if last != c.last || sound != c.sound {
			t.Errorf("%s: it ended at %d, sound %v; want %d, %v", c.name, last, sound, c.last, c.sound)
		}
	}
	for range whole.walk(4, 4) {
		t.Error("nothing to walk, and a record came")
	}
}
