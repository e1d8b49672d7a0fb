package journal

import "strings"

// ValidStream reports whether a name has the form of the names of streams: 1 to 63 of the
// letters a to z, digits, dots, dashes and underscores, and first a letter or a digit. A
// regular expression of that length would take 50 KB of every supervisor.
func ValidStream(name string) bool {
	const signs = "_.-"
	if name == "" || len(name) > 63 || strings.IndexByte(signs, name[0]) >= 0 {
		return false
	}
	for _, c := range []byte(name) {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && strings.IndexByte(signs, c) < 0 {
			return false
		}
	}
	return true
}

// The bounds of a message, in bytes.
const (
	// MaxMessage bounds the text of a message. A row has less room for it.
	MaxMessage = 64 << 10
	// maxAddress bounds the recipient and the key.
	maxAddress = 200
)

// textBound is the bound of the text of a report, in bytes.
func textBound(op string) int {
	if op == Send {
		return MaxMessage
	}
	return MaxText
}

// checkSend checks the row of a message. Whether the recipient exists is decided by the
// daemon.
func checkSend(r Row) error {
	switch {
	case (r.To == "") == (r.Stream == ""):
		return refuse("A message needs one recipient: \"to\" is the name or the id of an agent, \"parent\" or \"init\"; \"stream\" is the name of a stream.")
	case r.Stream != "" && !ValidStream(r.Stream):
		return refuse("A stream has a name of at most 63 lower-case letters, digits, dots, dashes and underscores, and not %.80q.", r.Stream)
	case r.Text == "":
		return refuse("A message needs a text.")
	case len(r.To) > maxAddress || !printable(r.To) || len(r.Key) > maxAddress || !printable(r.Key):
		return refuse("The recipient and the key of a message have at most %d bytes of UTF-8 and no control characters.", maxAddress)
	}
	return nil
}
