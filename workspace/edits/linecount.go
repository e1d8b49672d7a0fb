package edits

import (
	"bytes"
	"strings"

	"github.com/aymanbagabas/go-udiff"
)

const (
	// maxText is the size of a file in bytes up to which its changed lines are counted exactly.
	maxText = 4 << 20
	// head is how many bytes git looks at to tell whether a file is binary.
	head = 8000
)

// Lines counts the lines that a change of a file adds and removes, as git does, without
// keeping large files.
type Lines struct {
	Added, Removed int
	// Binary is true if there are no lines to count.
	Binary bool
}

// LineText is a version of a file. Its content is written to it. The zero value is an empty file.
type LineText struct {
	kept        []byte
	size, lines int
	cut, binary bool
}

// Write adds a piece of the content. It never fails.
func (t *LineText) Write(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	t.binary = t.binary || bytes.IndexByte(p[:min(len(p), max(0, head-t.size))], 0) >= 0
	t.lines += bytes.Count(p, []byte("\n"))
	t.cut = p[len(p)-1] != '\n'
	if t.size += len(p); t.size > maxText {
		t.kept = nil
	} else {
		t.kept = append(t.kept, p...)
	}
	return len(p), nil
}

func (t *LineText) all() int {
	if t.cut {
		return t.lines + 1
	}
	return t.lines
}

// CompareLines counts the lines of a change.
func CompareLines(before, after *LineText) Lines {
	switch {
	case before.binary || after.binary:
		return Lines{Binary: true}
	case before.size > maxText || after.size > maxText || before.size == 0 || after.size == 0:
		return Lines{Added: after.all(), Removed: before.all()}
	}
	var s Lines
	text := string(before.kept)
	for _, e := range udiff.Lines(text, string(after.kept)) {
		s.Removed += lines(text[e.Start:e.End])
		s.Added += lines(e.New)
	}
	return s
}

func lines(text string) int {
	n := strings.Count(text, "\n")
	if text != "" && !strings.HasSuffix(text, "\n") {
		n++
	}
	return n
}
