package view

import (
	"strconv"
	"strings"
	"unicode"

	"github.com/rivo/uniseg"
	"golang.org/x/text/width"
)

const ellipsis = "…"

// Printable makes control characters and other characters that are not printable visible,
// as in "\x1b", so that a text cannot control the terminal.
func Printable(s string) string {
	if strings.IndexFunc(s, unprintable) < 0 {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		if unprintable(r) {
			b.WriteString(strings.Trim(strconv.QuoteRune(r), "'"))
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}

// PrintableLines is like Printable, but keeps line breaks and tabs.
func PrintableLines(s string) string {
	lines := strings.Split(s, "\n")
	for i, line := range lines {
		cells := strings.Split(line, "\t")
		for j, cell := range cells {
			cells[j] = Printable(cell)
		}
		lines[i] = strings.Join(cells, "\t")
	}
	return strings.Join(lines, "\n")
}

func unprintable(r rune) bool { return !unicode.IsPrint(r) }

// Width is the number of columns that a printable text takes on a terminal. Terminals
// disagree about characters that are made of several code points. Of the width of the whole
// and the sum of the parts, it counts the larger one, so that no line is longer than said.
func Width(s string) int {
	sum := 0
	for state := -1; s != ""; {
		var w int
		_, s, w, state = next(s, state)
		sum += w
	}
	return sum
}

// next splits the first character off a text that is not empty.
func next(s string, state int) (character, rest string, width, newState int) {
	character, rest, width, newState = uniseg.FirstGraphemeClusterInString(s, state)
	parts := 0
	for _, r := range character {
		parts += partWidth(r)
	}
	return character, rest, max(width, parts), newState
}

// partWidth is the width of a code point on a terminal that does not combine it with others.
func partWidth(r rune) int {
	switch width.LookupRune(r).Kind() {
	case width.EastAsianWide, width.EastAsianFullwidth:
		return 2
	}
	return uniseg.StringWidth(string(r))
}

// Cut shortens a printable text to at most that many columns of the terminal. A text that was cut ends with
// an ellipsis.
func Cut(s string, columns int) string {
	if len(s) <= columns || Width(s) <= columns { // no byte is wider than a column
		return s
	}
	if columns < 1 {
		return ""
	}
	head, _ := split(s, columns-1)
	return head + ellipsis
}

// split returns as many whole characters as fit into the columns, and the rest.
func split(s string, columns int) (head, rest string) {
	used := 0
	rest = s
	for state := -1; rest != ""; {
		character, after, w, newState := next(rest, state)
		if used+w > columns {
			break
		}
		used, rest, state = used+w, after, newState
		head += character
	}
	return head, rest
}

// Wrap breaks a printable text into lines of at most that many columns: at spaces, and inside a word only
// if it is longer than a line.
func Wrap(s string, columns int) []string {
	var lines []string
	line := ""
	for word := range strings.FieldsSeq(s) {
		if line != "" && Width(line)+1+Width(word) <= columns {
			line += " " + word
			continue
		}
		if line != "" {
			lines = append(lines, line)
		}
		for Width(word) > columns {
			head, rest := split(word, columns)
			if head == "" { // a character that is wider than the line
				rest = ""
				head = Cut(word, columns)
			}
			lines = append(lines, head)
			word = rest
		}
		line = word
	}
	return append(lines, line)
}

// Fold breaks a printable text into lines that make the text again when they are joined. The
// first line has at most first columns, the others at most rest. A line ends after a space if
// it has one, also before its last column; a character that is wider than a line is a line of
// its own. The first line is empty if the first word fits into the second one only.
func Fold(s string, first, rest int) []string {
	var lines []string
	for room := first; ; room = rest {
		if Width(s) <= room {
			return append(lines, s)
		}
		head := s[:breakAt(s, room)]
		if len(lines) > 0 && head == "" || first >= rest && head == "" {
			if head, _ = split(s, room); head == "" {
				head, _, _, _ = next(s, -1)
			}
		}
		if lines, s = append(lines, head), s[len(head):]; s == "" {
			return lines
		}
	}
}

// breakAt returns how many bytes of a text go on a line of that many columns that ends after a
// space; 0 if none does. A space at the end needs no column.
func breakAt(s string, columns int) int {
	at, used, end := 0, 0, 0
	for state, left := -1, s; left != ""; {
		character, after, w, newState := next(left, state)
		end += len(character)
		if character == " " && used <= columns {
			at = end
		}
		if used += w; used > columns {
			return at
		}
		left, state = after, newState
	}
	return at
}
