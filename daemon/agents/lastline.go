package agents

import (
	"errors"
	"io"
	"strings"
	"unicode"

	"github.com/agbox/agbox/logs"
)

// tailBytes is how much of the standard error is read for its last line. maxLine is how
// much of that line is kept.
const (
	tailBytes = 4 << 10
	maxLine   = 512
)

// lastLine returns the last line that an exec wrote to its standard error and that is not
// blank. It is empty if there is none.
func lastLine(dir, execID string) (string, error) {
	d, err := logs.OpenDir(dir)
	if err != nil {
		return "", err
	}
	defer d.Close()
	r, err := d.Open(execID, logs.Cursor{})
	if err != nil {
		return "", err
	}
	end, err := r.Size()
	if err = errors.Join(err, r.Close()); err != nil {
		return "", err
	}
	from := logs.Cursor{Stdout: end.Stdout, Stderr: end.Stderr - min(end.Stderr, tailBytes)}
	if r, err = d.Open(execID, from); err != nil {
		return "", err
	}
	defer r.Close()
	var tail []byte
	buf := make([]byte, tailBytes)
	for len(tail) < 2*tailBytes { // one that still grows is not followed
		chunk, err := r.Next(buf)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return "", err
		}
		if chunk.Stream == logs.Stderr {
			tail = append(tail, chunk.Data...)
		}
	}
	return lastOf(string(tail)), nil
}

// lastOf returns the last line that is not blank, without characters that steer a
// terminal.
func lastOf(text string) string {
	lines := strings.Split(text, "\n")
	for i := len(lines) - 1; i >= 0; i-- {
		line := strings.TrimSpace(strings.Map(func(c rune) rune {
			if unicode.IsPrint(c) {
				return c
			}
			return ' '
		}, lines[i]))
		if line != "" {
			return strings.ToValidUTF8(line[:min(len(line), maxLine)], "")
		}
	}
	return ""
}
