package main

// ansiFilter removes escape sequences from a stream that comes in pieces: those that
// ECMA-48 names (colours, cursor, titles, links) in their 7-bit form. Line breaks, tabs
// and all other bytes stay.
type ansiFilter struct {
	state ansiState
}

type ansiState byte

const (
	ansiText ansiState = iota
	// ansiEscape: ESC was seen.
	ansiEscape
	// ansiMiddle: ESC and an intermediate byte, as in ESC ( B.
	ansiMiddle
	// ansiControl: ESC [ and parameters, until a byte from @ to ~.
	ansiControl
	// ansiString: a title, a link or another string, until BEL or ESC \.
	ansiString
	// ansiStringEscape: ESC within a string.
	ansiStringEscape
)

const (
	bel = 0x07
	can = 0x18 // cancels a sequence
	sub = 0x1a // does the same
	esc = 0x1b
)

// filter returns what is left of data, which it does not change.
func (f *ansiFilter) filter(data []byte) []byte {
	out := make([]byte, 0, len(data))
	for _, b := range data {
		if f.state == ansiText && b != esc {
			out = append(out, b)
			continue
		}
		var keep bool
		f.state, keep = f.state.next(b)
		if keep {
			out = append(out, b)
		}
	}
	return out
}

// next returns the state after b. keep means that b belongs to no sequence.
func (s ansiState) next(b byte) (after ansiState, keep bool) {
	switch {
	case s == ansiString && b == bel:
		return ansiText, false
	case s == ansiString && b == esc:
		return ansiStringEscape, false
	case s == ansiStringEscape && b == '\\', b == can, b == sub:
		return ansiText, false
	case b == esc:
		return ansiEscape, false
	case s == ansiString && b != '\n':
		return ansiString, false
	case b < ' ' || b >= 0x7f: // a line break, for example, is carried out within a sequence
		if s == ansiControl && b < ' ' && b != '\n' {
			return ansiControl, true
		}
		return ansiText, true
	case s == ansiStringEscape:
		return ansiEscape.next(b)
	case s == ansiEscape:
		return afterEscape(b), false
	case s == ansiMiddle && b <= '/', s == ansiControl && b < '@':
		return s, false
	}
	return ansiText, false
}

func afterEscape(b byte) ansiState {
	switch {
	case b == '[':
		return ansiControl
	case b == ']' || b == 'P' || b == 'X' || b == '^' || b == '_':
		return ansiString
	case b <= '/':
		return ansiMiddle
	}
	return ansiText
}
