package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"unicode"
)

// newJSONEncoder returns an encoder whose output cannot control a terminal.
func newJSONEncoder(w io.Writer) *json.Encoder {
	enc := json.NewEncoder(steadyJSON{w})
	enc.SetEscapeHTML(false)
	return enc
}

// steadyJSON escapes characters that control a terminal, and those that change the
// direction of text. Package json escapes only those below U+0020. Every write must be
// whole characters of valid JSON, where these characters are only in strings.
type steadyJSON struct{ w io.Writer }

// Write escapes and writes p.
func (s steadyJSON) Write(p []byte) (int, error) {
	if bytes.IndexFunc(p, steers) < 0 {
		return s.w.Write(p)
	}
	var out bytes.Buffer
	for _, r := range string(p) {
		if steers(r) {
			fmt.Fprintf(&out, `\u%04x`, r)
		} else {
			out.WriteRune(r)
		}
	}
	if _, err := s.w.Write(out.Bytes()); err != nil {
		return 0, err
	}
	return len(p), nil
}

// steers reports whether a character of JSON that package json has written must be
// escaped. Line breaks and tabs are not in strings there.
func steers(r rune) bool {
	return r != '\n' && r != '\t' && (unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r))
}
