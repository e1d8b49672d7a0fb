package files

import (
	"strings"
	"testing"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/agbox/agbox/workspace/archive"
)

// The daemon refuses a message that is not UTF-8, and could not say what is wrong.
func TestAMessageIsUTF8WhereverItIsCut(t *testing.T) {
	for n := range longest {
		failed := &archive.Failure{Op: "read", Name: strings.Repeat("é", longest/2), Err: unix.EACCES}
		m := explain("To copy", []byte(strings.Repeat("\x01", n)), failed).GetMessage()
		if !utf8.ValidString(m) || len(m) > maxMessage {
			t.Fatalf("with a path of %d bytes the message has %d and ends with %q", n, len(m), m[len(m)-9:])
		}
	}
}
