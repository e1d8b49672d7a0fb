package view

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
