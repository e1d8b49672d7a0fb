package agents

import (
	"bytes"
	"encoding/json"
	"io"
	"slices"
	"strconv"
	"testing"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/internal/journal"
	"github.com/agbox/agbox/logs"
)

// TestTheNewestResultsAreHandedOn has calls of two incarnations: all of them are in the tail, and
// the results of the oldest are dropped.
func TestTheNewestResultsAreHandedOn(t *testing.T) {
	var all []journal.Row
	var older, newer tailRows
	room := 3 * journal.MaxResult
	end := func(n int) journal.Row {
		size := uint64(journal.MaxResult)
		return journal.Row{Op: journal.Call, Phase: journal.End, Kind: journal.Tool, Invocation: strconv.Itoa(n), Result: make([]byte, size), ResultBytes: &size}
	}
	for n := range 2 {
		newer.add(end(4+n), room)
	}
	for n := range 4 {
		older.add(end(n), room-newer.results)
	}
	for line := range bytes.Lines(append(older.encode(), newer.encode()...)) {
		var row journal.Row
		if err := json.Unmarshal(line, &row); err != nil {
			t.Fatal(err)
		}
		all = append(all, row)
	}
	var with []string
	for i, row := range all {
		if row.Invocation != strconv.Itoa(i) || row.ResultBytes == nil {
			t.Errorf("row %d is %+v", i, row)
		}
		if len(row.Result) > 0 {
			with = append(with, row.Invocation)
		}
	}
	if want := []string{"3", "4", "5"}; len(all) != 6 || !slices.Equal(with, want) {
		t.Errorf("of %d rows %q have a result; want %q", len(all), with, want)
	}
}

// TestTheNewestLongResultsAreHandedOn in a file, in which the rows of two incarnations find them.
// What is not there any more is zeros, so that the others stay at their places.
func TestTheNewestLongResultsAreHandedOn(t *testing.T) {
	b := newBench(t, &agboxv1.AgentSpec{})
	dir, err := logs.OpenDir(b.Install.SandboxLogs("a"))
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	parts := []tailRows{{execID: "new"}, {execID: "old"}}
	content := func(part, n int) []byte { return bytes.Repeat([]byte{byte('a' + 4*part + n)}, maxLong/4) }
	for i := range parts {
		file, err := dir.CreateResults(parts[i].execID, nil, logs.KeepOwner)
		if err != nil {
			t.Fatal(err)
		}
		for n := range 3 {
			at, size := int64(n*maxLong/4), uint64(maxLong/4)
			if i == 1 && n == 2 { // only the beginning is there
				_, err = file.WriteAt(content(i, n)[:10], at)
			} else {
				_, err = file.WriteAt(content(i, n), at)
			}
			if err != nil {
				t.Fatal(err)
			}
			parts[i].rows = append(parts[i].rows, journal.Row{
				Op: journal.Call, Invocation: strconv.Itoa(4*i + n), ResultBytes: &size, ResultFile: &journal.ResultFile{At: uint64(at), CRC32: uint32(n)},
			}, journal.Row{Op: journal.Call})
		}
		if err := file.Close(); err != nil {
			t.Fatal(err)
		}
	}
	long := placeLong(parts)
	from, done, err := b.readLong("a", long)
	if err != nil {
		t.Fatal(err)
	}
	defer done()
	all, err := io.ReadAll(from)
	if err != nil || len(all) != maxLong {
		t.Fatalf("the file has %d bytes, %v", len(all), err)
	}
	for i := range parts {
		for n := range 3 {
			row := parts[i].rows[2*n]
			if i == 1 && n < 2 { // of four, these are the oldest
				if row.ResultFile != nil {
					t.Errorf("an old result is at %+v", row.ResultFile)
				}
				continue
			}
			want := content(i, n)
			if i == 1 {
				clear(want[10:])
			}
			if row.ResultFile == nil || row.ResultFile.CRC32 != uint32(n) || !bytes.Equal(all[row.ResultFile.At:][:maxLong/4], want) {
				t.Errorf("result %d of part %d is at %+v", n, i, row.ResultFile)
			}
		}
	}
}
