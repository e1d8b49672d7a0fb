package main

import (
	"bytes"
	"context"
	"slices"
	"strings"

	"github.com/agbox/agbox/client"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

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

// past is one output of a command that ran before agbox attached to it. Its history is shown
// without what asks the terminal something: the program would read the answer as typed
// input, since it no longer waits for it. What comes later passes as it is.
type past struct {
	// end is the offset of the first byte that is no history.
	end     uint64
	queries queryFilter
}

// pastOf returns the two outputs of a command. Only those that go to a terminal have a
// history: a file gets the output as it is.
func (a *app) pastOf(ctx context.Context, c *client.Client, exec string) (stdout, stderr past, err error) {
	onStdout, onStderr := a.onTerminals()
	if !onStdout && !onStderr {
		return stdout, stderr, nil
	}
	var end *agboxv1.LogCursor
	for item, err := range c.FollowLogs(ctx, exec, client.LogOptions{TailLines: new(uint64)}) {
		if err != nil {
			return stdout, stderr, err
		}
		end = item.End.GetCursor()
	}
	if onStdout {
		stdout.end = end.GetStdoutOffset()
	}
	if onStderr {
		stderr.end = end.GetStderrOffset()
	}
	return stdout, stderr, nil
}

// onTerminals reports whether stdout and stderr are terminals.
func (a *app) onTerminals() (stdout, stderr bool) {
	return a.outputSize() != nil, a.width() > 0
}

// shown returns what to show of a piece of output.
func (p *past) shown(item client.LogItem) []byte {
	data, f := item.Data, &p.queries
	if item.Offset >= p.end && len(f.held) == 0 && !f.c1 && f.long != dropLong {
		return data
	}
	old := min(uint64(len(data)), p.end-min(p.end, item.Offset))
	out, live := f.filter(data[:old]), data[old:]
	for len(live) > 0 && f.long == dropLong { // without its beginning, the rest would be shown as text
		out, live = append(out, f.filter(live[:1])...), live[1:]
	}
	if len(live) > 0 { // a sequence that ends here is asked now
		if out = append(out, f.held...); f.c1 {
			out = append(out, beforeC1)
		}
		out = append(out, live...)
		p.queries = queryFilter{}
	}
	return out
}

// queryFilter removes the sequences that a terminal answers from a stream that comes in
// pieces. It knows sequences in their 7-bit form, as ansiFilter does. The characters of their 8-bit
// form in UTF-8, U+0080 to U+009F, are removed, which leaves the rest of a sequence as text.
type queryFilter struct {
	state ansiState
	// c1 is set after the first byte of what may be such a character.
	c1 bool
	// held is the beginning of a sequence whose end has not come, or if long says what
	// happens to the sequence, an ESC that may end it.
	held []byte
	long longSequence
}

// longSequence is what happens to a sequence that is longer than longestQuery.
type longSequence byte

const (
	undecided longSequence = iota
	passLong
	dropLong
)

const (
	// longestQuery is how much of a sequence is held to see what it is, in bytes. The longest
	// queries ask for all colours of a palette and have 2 KB; what is longer is a picture or
	// a clipboard.
	longestQuery = 4 << 10
	// beforeC1 is the first byte of U+0080 to U+00BF in UTF-8, and st8 the second one of U+009C (ST),
	// which ends strings.
	beforeC1, st8 = 0xc2, 0x9c
	// enq makes a terminal send its answerback message.
	enq = 0x05
	// tmuxPassthrough begins a string that has sequences for the terminal around tmux, with
	// each ESC doubled.
	tmuxPassthrough = "\x1bPtmux;"
)

// filter returns what is left of data, which it does not change. A sequence without its end
// stays in held.
func (f *queryFilter) filter(data []byte) []byte {
	out := make([]byte, 0, len(f.held)+len(data))
	for _, b := range data {
		if f.c1 {
			f.c1 = false
			if b >= 0x80 && b <= 0x9f {
				if b == st8 && f.state == ansiString {
					out = f.add(f.add(out, esc), '\\')
				}
				continue
			}
			out = f.add(out, beforeC1)
		}
		if f.c1 = b == beforeC1; !f.c1 {
			out = f.add(out, b)
		}
	}
	return out
}

// add appends what is left after a byte.
func (f *queryFilter) add(out []byte, b byte) []byte {
	if f.state == ansiText && b != esc {
		if b != enq {
			out = append(out, b)
		}
		return out
	}
	after, keep := f.state.next(b)
	if f.state == ansiStringEscape && b != '\\' {
		if b == esc && (f.long == dropLong || bytes.HasPrefix(f.held, []byte(tmuxPassthrough))) {
			after = ansiString
		} else { // the ESC before begins another sequence, which cuts the string off
			f.held = f.held[:len(f.held)-1]
			out = f.settle(out)
			f.held = append(f.held, esc)
		}
	}
	if after == ansiEscape {
		out = f.settle(out)
	}
	if !keep {
		out = f.hold(out, b, after)
	}
	if f.state = after; after == ansiText {
		out = f.settle(out)
	}
	if keep && b != enq {
		out = append(out, b)
	}
	return out
}

// hold takes a byte of a sequence, and decides about one that is too long to be held.
func (f *queryFilter) hold(out []byte, b byte, after ansiState) []byte {
	f.held = append(f.held, b)
	if after == ansiStringEscape || f.long == undecided && len(f.held) <= longestQuery {
		return out
	}
	if f.long == undecided {
		if f.long = passLong; asksTerminal(f.held) {
			f.long = dropLong
		}
	}
	if f.long == passLong {
		out = append(out, f.held...)
	}
	f.held = f.held[:0]
	return out
}

// settle ends a sequence.
func (f *queryFilter) settle(out []byte) []byte {
	if f.long == passLong || f.long == undecided && !asksTerminal(f.held) {
		out = append(out, f.held...)
	}
	f.held, f.long = f.held[:0], undecided
	return out
}

// controlQueries are the control sequences that terminals answer, without their numbers: what
// is before and after these. Sources: ctlseqs of xterm, VT510, kitty.
var controlQueries = map[string]string{
	"c": "DA1", ">c": "DA2", "=c": "DA3",
	"n": "DSR", "?n": "DSR of DEC, such as DECXCPR",
	"$p": "DECRQM", "?$p": "DECRQM of a private mode",
	">q": "XTVERSION", "x": "DECREQTPARM", "*y": "DECRQCRA", "$u": "DECRQTSR", "&u": "DECRQUPSS",
	"$w": "DECRQPSR", "\"v": "DECRQDE", "'|": "DECRQLP", "+x": "DECRQPKFM",
	"?u": "keyboard of kitty", "?m": "XTQMODKEYS", "?g": "XTQFMTKEYS", "?S": "XTSMGRAPHICS",
	"#S": "XTTITLEPOS", "#R": "XTREPORTCOLORS", "#|": "XTREPORTSGR",
}

// windowReports are the numbers of XTWINOPS (CSI t) that terminals answer.
var windowReports = []string{"11", "13", "14", "15", "16", "18", "19", "20", "21"}

// commandQueries are the operating system commands (OSC) that terminals answer if there is a
// question mark in them: colours, the X property, the pointer, the font, the clipboard and
// the notifications of kitty.
var commandQueries = strings.Fields("3 4 5 10 11 12 13 14 15 16 17 18 19 21 22 50 52 99 5522")

// stringQueries are the beginnings of other strings that terminals answer, with what comes
// before their first letter.
var stringQueries = []string{
	"P$q",                                              // DECRQSS
	"P+q",                                              // XTGETTCAP
	"P+Q",                                              // XTGETXRES
	"Ptmux;",                                           // any sequence
	"_G",                                               // graphics of kitty, which are acknowledged
	"]60\x07", "]60\x1b", "]61\x07", "]61\x1b", "]61;", // features that xterm allows
	"]1337;Report", "]1337;Capabilities", "]1337;RequestUpload", // iTerm2
}

// asksTerminal reports whether a terminal answers a sequence, which begins with ESC and may
// lack its end.
func asksTerminal(sequence []byte) bool {
	if len(sequence) < 2 {
		return false
	}
	kind, body := sequence[1], string(sequence[2:])
	switch kind {
	case 'Z': // DECID
		return true
	case '[':
		if last := len(body) - 1; last > 0 && body[last] == 't' {
			first, _, _ := strings.Cut(body[:last], ";")
			return slices.Contains(windowReports, strings.TrimLeft(first, "0"))
		}
		numberless := strings.Map(func(r rune) rune {
			if r >= '0' && r <= ';' { // digits, colon and semicolon
				return -1
			}
			return r
		}, body)
		return controlQueries[numberless] != ""
	case ']':
		if number, rest, _ := strings.Cut(body, ";"); slices.Contains(commandQueries, number) {
			return strings.Contains(rest, "?")
		}
	case 'P':
		body = strings.TrimLeft(body, "0123456789;")
	}
	body = string(kind) + body
	return slices.ContainsFunc(stringQueries, func(begin string) bool { return strings.HasPrefix(body, begin) })
}
