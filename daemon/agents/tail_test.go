package agents

import (
	"bytes"
	"encoding/json"
	"slices"
	"strconv"
	"testing"

	"github.com/agbox/agbox/internal/journal"
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
