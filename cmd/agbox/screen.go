package main

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// screen follows in the output of a program how it has changed the terminal, so
// that somebody else's terminal can be made the same, and ours be made as it was.
type screen struct {
	// mu guards the fields below.
	mu sync.Mutex
	// changed holds the private modes that are not as they are at first.
	changed map[int]bool
	// keypad tells that the keypad sends its own codes.
	keypad bool
	// entered is the place in the output where the alternate screen began.
	entered uint64

	// at counts the bytes seen; sequence is an escape sequence that has begun there.
	at       uint64
	began    uint64
	sequence []byte
}

// The private modes that are followed, and whether they are set at first.
var screenModes = map[int]bool{
	1: false, 7: true, 25: true, 47: false,
	1000: false, 1002: false, 1003: false, 1004: false, 1005: false, 1006: false, 1015: false,
	1047: false, 1049: false, 2004: false,
}

// alternateModes are the ways to another screen without history.
var alternateModes = []int{47, 1047, 1049}

// longestSequence is the longest that is recognized; longer ones do not matter here.
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
		s.began, s.sequence = s.at, append(s.sequence[:0], b)
		return
	case len(s.sequence) == 0:
		return
	}
	s.sequence = append(s.sequence, b)
	switch n := len(s.sequence); {
	case n == 2 && b == '[':
		return
	case n == 2 && b == 'c': // reset
		s.changed, s.keypad = nil, false
	case n == 2 && (b == '=' || b == '>'):
		s.keypad = b == '='
	case n > 2 && (b < 0x40 || b > 0x7e) && n < longestSequence:
		return // not its end yet
	case n > 3 && s.sequence[2] == '?' && (b == 'h' || b == 'l'):
		for word := range strings.SplitSeq(string(s.sequence[3:n-1]), ";") {
			if mode, err := strconv.Atoi(word); err == nil {
				s.set(mode, b == 'h')
			}
		}
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

// alternate tells whether the program is on the screen without history, as
// editors and pagers are.
func (s *screen) alternate() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.alternateLocked()
}

func (s *screen) alternateLocked() bool {
	return slices.ContainsFunc(alternateModes, func(mode int) bool { return s.changed[mode] })
}

// again is what puts a fresh terminal into the same modes.
func (s *screen) again() string { return s.sequences(func(on bool) bool { return on }, "\x1b=") }

// undo is what puts the terminal back into its first modes.
func (s *screen) undo() string {
	text := s.sequences(func(on bool) bool { return !on }, "\x1b>")
	if text != "" {
		text += "\x1b[0m"
	}
	return text
}

func (s *screen) sequences(value func(bool) bool, keypad string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var b strings.Builder
	for _, mode := range slices.Sorted(maps.Keys(s.changed)) {
		letter := "l"
		if value(s.changed[mode]) {
			letter = "h"
		}
		b.WriteString("\x1b[?" + strconv.Itoa(mode) + letter)
	}
	if s.keypad {
		b.WriteString(keypad)
	}
	return b.String()
}
