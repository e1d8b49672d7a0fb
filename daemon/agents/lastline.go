package agents

import (
	"errors"
	"io"
	"strings"
	"unicode"

	"github.com/agbox/agbox/logs"
)

// tailBytes is how much of the standard error is read for its last line. maxLine is how
// much of that line is kept, and maxStack how much of what is before it.
const (
	tailBytes = 4 << 10
	maxLine   = 512
	maxStack  = 2 << 10
)

// lastWords returns the last line that an exec wrote to its standard error and that is not
// blank, and stack, the whole lines of the last maxStack bytes. They are empty if there are none.
func lastWords(dir, execID string) (line, stack string, err error) {
	d, err := logs.OpenDir(dir)
	if err != nil {
		return "", "", err
	}
	defer d.Close()
	r, err := d.Open(execID, logs.Cursor{})
	if err != nil {
		return "", "", err
	}
	end, err := r.Size()
	if err = errors.Join(err, r.Close()); err != nil {
		return "", "", err
	}
	from := logs.Cursor{Stdout: end.Stdout, Stderr: end.Stderr - min(end.Stderr, tailBytes)}
	if r, err = d.Open(execID, from); err != nil {
		return "", "", err
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
			return "", "", err
		}
		if chunk.Stream == logs.Stderr {
			tail = append(tail, chunk.Data...)
		}
	}
	return lastOf(string(tail)), wholeLines(string(tail)), nil
}

// wholeLines returns the last lines of a text as they can be shown.
func wholeLines(text string) string {
	if cut := len(text) - maxStack; cut > 0 {
		_, text, _ = strings.Cut(text[cut-1:], "\n")
	}
	return strings.TrimSpace(strings.ToValidUTF8(strings.Map(func(c rune) rune {
		if unicode.IsPrint(c) || c == '\n' || c == '\t' {
			return c
		}
		return ' '
	}, text), ""))
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
