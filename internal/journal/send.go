package journal

import "regexp"

// StreamName is the form of the names of streams.
var StreamName = regexp.MustCompile(`^[a-z0-9][a-z0-9_.-]{0,62}$`)

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
	case r.Stream != "" && !StreamName.MatchString(r.Stream):
		return refuse("A stream has a name of at most 63 lower-case letters, digits, dots, dashes and underscores, and not %.80q.", r.Stream)
	case r.Text == "":
		return refuse("A message needs a text.")
	case len(r.To) > maxAddress || !printable(r.To) || len(r.Key) > maxAddress || !printable(r.Key):
		return refuse("The recipient and the key of a message have at most %d bytes of UTF-8 and no control characters.", maxAddress)
	}
	return nil
}
