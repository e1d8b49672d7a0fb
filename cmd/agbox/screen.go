package main

import (
	"bytes"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// screen tracks the terminal modes that a program sets in its output. Another terminal
// can then be set to the same modes, and ours can be restored.
type screen struct {
	// mu guards the fields below.
	mu sync.Mutex
	// changed holds the private modes that differ from their defaults.
	changed map[int]bool
	// keypad means that the keypad is in application mode.
	keypad bool
	// entered is the offset in the output where the alternate screen began.
	entered uint64
	// midLine means that the cursor of the ordinary screen is behind text. line is that
	// text, with its colours.
	midLine bool
	line    []byte

	// at is the offset of the next byte; sequence is an incomplete escape sequence and
	// began its offset.
	at       uint64
	began    uint64
	sequence []byte
	// command means that a text for the terminal itself follows, such as a title.
	command bool
}

// screenModes are the private modes that are tracked, and their defaults.
var screenModes = map[int]bool{
	1: false, 7: true, 25: true, 47: false,
	1000: false, 1002: false, 1003: false, 1004: false, 1005: false, 1006: false, 1015: false,
	1047: false, 1049: false, 2004: false,
}

// alternateModes switch to the alternate screen, which has no history.
var alternateModes = []int{47, 1047, 1049}

// longestSequence is the longest sequence that is recognized, in bytes. None of the
// tracked ones is longer.
const longestSequence = 64

// Write takes output; it never fails.
func (s *screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, b := range p {
		s.take(b)
		s.at++
	}
	return len(p), nil
}

func (s *screen) take(b byte) {
	switch {
	case b == 0x1b:
		s.began, s.sequence, s.command = s.at, append(s.sequence[:0], b), false
		return
	case s.command:
		s.command = b != '\a'
		return
	case len(s.sequence) == 0:
		if !s.alternateLocked() {
			s.shown(b)
		}
		return
	}
	s.sequence = append(s.sequence, b)
	switch n := len(s.sequence); {
	case n == 2 && b == '[':
		return
	case n == 2 && strings.IndexByte("]P_^X", b) >= 0:
		s.command = true
	case n == 2 && b == 'c': // reset
		s.changed, s.keypad = nil, false
	case n == 2 && (b == '=' || b == '>'):
		s.keypad = b == '='
	case n > 2 && (b < 0x40 || b > 0x7e) && n < longestSequence:
		return // incomplete
	case n > 3 && s.sequence[2] == '?' && (b == 'h' || b == 'l'):
		for word := range strings.SplitSeq(string(s.sequence[3:n-1]), ";") {
			if mode, err := strconv.Atoi(word); err == nil {
				s.set(mode, b == 'h')
			}
		}
	case n > 2 && s.sequence[1] == '[' && !s.alternateLocked():
		s.moved()
	}
	s.sequence = s.sequence[:0]
}

func (s *screen) set(mode int, on bool) {
	first, known := screenModes[mode]
	switch {
	case !known:
		return
	case on == first:
		delete(s.changed, mode)
		return
	case slices.Contains(alternateModes, mode) && !s.alternateLocked():
		s.entered = s.began
	}
	if s.changed == nil {
		s.changed = make(map[int]bool)
	}
	s.changed[mode] = on
}

// alternate reports whether the program uses the alternate screen, as editors and pagers
// do.
func (s *screen) alternate() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.alternateLocked()
}

func (s *screen) alternateLocked() bool {
	return slices.ContainsFunc(alternateModes, func(mode int) bool { return s.changed[mode] })
}

// draws reports whether the program seems to draw its own screen, on the ordinary one too:
// it hides the cursor, or takes the mouse. Shells only change other modes.
func (s *screen) draws() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	const cursor, firstMouse, lastMouse = 25, 1000, 1015
	for mode := range s.changed {
		if mode == cursor || mode >= firstMouse && mode <= lastMouse {
			return true
		}
	}
	return s.alternateLocked()
}

// longestLine is how much of an incomplete line is kept, in bytes.
const longestLine = 4 << 10

// shown takes a character of the ordinary screen.
func (s *screen) shown(b byte) {
	if b != '\r' {
		s.midLine = b != '\n' && (s.midLine || b >= ' ')
	}
	switch {
	case b == '\n':
		s.line = s.line[:0]
		return
	case b < ' ' && b != '\r' && b != '\b' && b != '\t':
		return
	case len(s.line) >= longestLine: // keep what overwrites its beginning, as progress does
		last := max(0, bytes.LastIndexByte(s.line, '\r'))
		if last == 0 {
			last = len(s.line)
		}
		s.line = append(s.line[:0], s.line[last:]...)
	}
	s.line = append(s.line, b)
}

// moved takes a complete sequence of the ordinary screen. What acts within the line belongs
// to it. Others are left out: a terminal would answer some of them with input.
func (s *screen) moved() {
	switch last := s.sequence[len(s.sequence)-1]; {
	case s.sequence[2] >= '<' && s.sequence[2] <= '?':
	case strings.IndexByte("mKCDGPX@", last) >= 0, last == 'J' && strings.Trim(string(s.sequence[2:]), "0") == "J":
		if len(s.line)+len(s.sequence) <= longestLine {
			s.line = append(s.line, s.sequence...)
		}
	case strings.IndexByte("ABEFHJdf", last) >= 0:
		s.line = s.line[:0]
	}
}

// lineAgain is the output that shows the incomplete line again on an empty line, with the beginning
// of a sequence that a message has cut: its end comes next.
func (s *screen) lineAgain() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.midLine = len(s.line) > 0
	return string(s.line) + string(s.sequence)
}

// endLine reports whether the cursor is behind text, and takes it that the caller begins a
// new line.
func (s *screen) endLine() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	mid := s.midLine
	s.midLine = false
	return mid
}

// again is the output that sets a fresh terminal to the same modes.
func (s *screen) again() string { return s.sequences(func(on bool) bool { return on }, "\x1b=") }

// undo is the output that sets the terminal back to its defaults.
func (s *screen) undo() string {
	text := s.sequences(func(on bool) bool { return !on }, "\x1b>")
	if text != "" {
		text += "\x1b[0m"
	}
	return text
}

func (s *screen) sequences(value func(bool) bool, keypad string) string {
	s.mu.Lock()
	changed, changedKeypad := maps.Clone(s.changed), s.keypad
	s.mu.Unlock()
	var b strings.Builder
	for _, mode := range slices.Sorted(maps.Keys(changed)) {
		letter := "l"
		if value(changed[mode]) {
			letter = "h"
		}
		b.WriteString("\x1b[?" + strconv.Itoa(mode) + letter)
	}
	if changedKeypad {
		b.WriteString(keypad)
	}
	return b.String()
}
