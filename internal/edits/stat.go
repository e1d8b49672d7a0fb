package edits

import (
	"bytes"
	"strings"

	"github.com/aymanbagabas/go-udiff"
)

// maxLines is the size of a file in bytes up to which its changed lines are counted exactly.
const maxLines = 4 << 20

// Stat counts what a change changes.
type Stat struct {
	// Added and Removed are lines.
	Added, Removed int
	// Binary is true if there are no lines to count.
	Binary bool
}

// Stat counts the lines that a change adds and removes.
func (c Change) Stat() (Stat, error) {
	before, err := read(c.BeforeFile(), c.Before)
	if err != nil {
		return Stat{}, err
	}
	after, err := read(c.AfterFile(), c.After)
	if err != nil {
		return Stat{}, err
	}
	if binary(before) || binary(after) {
		return Stat{Binary: true}, nil
	}
	if bytes.Equal(before, after) {
		return Stat{}, nil
	}
	if len(before) > maxLines || len(after) > maxLines || len(before) == 0 || len(after) == 0 {
		return Stat{Added: lines(string(after)), Removed: lines(string(before))}, nil
	}
	var s Stat
	text := string(before)
	for _, e := range udiff.Lines(text, string(after)) {
		s.Removed += lines(text[e.Start:e.End])
		s.Added += lines(e.New)
	}
	return s, nil
}

func lines(text string) int {
	n := strings.Count(text, "\n")
	if text != "" && !strings.HasSuffix(text, "\n") {
		n++
	}
	return n
}
