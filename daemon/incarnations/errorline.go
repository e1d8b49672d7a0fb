package incarnations

import (
	"regexp"
	"strings"
)

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
