package incarnations

import (
	"errors"
	"io"
	"strings"
	"unicode"

	"github.com/agbox/agbox/logs"
)

// tailBytes is how much of the standard error is read for the line of its error, behind which a
// stack may be. maxLine is how much of that line is kept, and maxStack how much of the lines
// around it.
const (
	tailBytes = 64 << 10
	maxLine   = 512
	maxStack  = 2 << 10
)

// lastWords returns the line of what an exec wrote to its standard error that names the error, or
// the last one that is not blank, and stack: whole lines of at most maxStack bytes, from that
// line on if a stack follows it, else the last ones. They are empty if there are none.
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
	line, stack = words(string(tail))
	return line, stack, nil
}

// words is lastWords of a text, without characters that steer a terminal.
func words(text string) (line, stack string) {
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		lines[i] = strings.TrimRight(strings.Map(func(c rune) rune {
			if unicode.IsPrint(c) || c == '\t' {
				return c
			}
			return ' '
		}, strings.ToValidUTF8(line, "")), " ")
	}
	line, at := errorLine(lines)
	line = strings.ReplaceAll(line, "\t", " ")
	line = strings.ToValidUTF8(line[:min(len(line), maxLine)], "")
	if at < 0 {
		return line, wholeLines(lines)
	}
	stack = strings.Join(lines[at:], "\n")
	if len(stack) > maxStack {
		stack = stack[:max(0, strings.LastIndexByte(stack[:maxStack+1], '\n'))]
	}
	return line, strings.TrimSpace(stack)
}

// wholeLines returns the last ones that fit into maxStack.
func wholeLines(lines []string) string {
	text := strings.Join(lines, "\n")
	if cut := len(text) - maxStack; cut > 0 {
		_, text, _ = strings.Cut(text[cut-1:], "\n")
	}
	return strings.TrimSpace(text)
}
