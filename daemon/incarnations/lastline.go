package incarnations

import (
	"errors"
	"io"
	"regexp"
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

// maxAfter is how many lines may follow an error and its stack, for example what a shell or a
// runtime says about the exit. Behind more, the program went on.
const maxAfter = 3

// marker finds the error in what a runtime prints when a program dies. Where several fit, the
// one in the latest line counts.
type marker struct {
	// begins fits the line that names the error or, if the error is below, leads to it.
	begins *regexp.Regexp
	// below says that the error is the first line after that which does not fit stack.
	below bool
	// stack fits the lines of the stack, of which there is at least one.
	stack *regexp.Regexp
}

var markers = []marker{
	// Go prints all goroutines, and registers after a signal.
	{
		begins: regexp.MustCompile(`^\s*(panic|fatal error|SIG[A-Z]+): `),
		stack:  regexp.MustCompile(`^(goroutine \d+|\t\S.*:\d+|created by |\[signal |\S+\(.*\)$|[a-z]\w{1,5}\s+0x[0-9a-f]+$)`),
	},
	{begins: regexp.MustCompile(`^Traceback \(most recent call last\):$`), below: true, stack: regexp.MustCompile(`^\s`)},
	// JavaScript and Java.
	{begins: regexp.MustCompile(`^(Uncaught |Exception in thread ".*" |Caused by: )?[\w$.]*(Error|Exception)\b`), stack: regexp.MustCompile(`^\s+(at |\.\.\. \d+ more)`)},
	{begins: regexp.MustCompile(`^thread '.*' (\(\d+\) )?panicked at .*:$`), below: true, stack: regexp.MustCompile(`^(stack backtrace:|note: |\s+(\d+: |at ))`)},
}

// errorLine returns the line that names the error of which a program died, and at, the index of
// the line that marks it. If it printed no stack, that is the last line that is not blank, and at
// is -1.
func errorLine(lines []string) (line string, at int) {
	at = -1
	for _, m := range markers {
		if found, i := m.find(lines); i > at {
			line, at = found, i
		}
	}
	if at >= 0 {
		return line, at
	}
	for i := len(lines) - 1; i >= 0; i-- {
		if line := strings.TrimSpace(lines[i]); line != "" {
			return line, -1
		}
	}
	return "", -1
}

// find returns the error and the index of the line that marks it; -1 if there is none, or if the
// program went on after it.
func (m marker) find(lines []string) (string, int) {
	at := -1
	for i, line := range lines {
		if m.begins.MatchString(line) {
			at = i
		}
	}
	if at < 0 {
		return "", -1
	}
	named := at
	if m.below {
		for named++; named < len(lines) && (lines[named] == "" || m.stack.MatchString(lines[named])); named++ {
		}
		if named == len(lines) {
			return "", -1
		}
	}
	end, stacked := named, m.below
	for i := named + 1; i < len(lines); i++ {
		if m.stack.MatchString(lines[i]) {
			end, stacked = i, true
		}
	}
	after := 0
	for _, line := range lines[end+1:] {
		if strings.TrimSpace(line) != "" {
			after++
		}
	}
	if !stacked || after > maxAfter {
		return "", -1
	}
	return strings.TrimSpace(lines[named]), at
}
