package main

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/agbox/agbox/client"
)

func TestAnOutageIsToldOnATerminalOnly(t *testing.T) {
	all := []client.Outage{
		{Starting: true, Wait: 30 * time.Second},
		{Failed: errors.New("agboxd ended.\nIts log:\x1b[2J"), Wait: 20 * time.Second},
		{Over: true},
		{Stopped: true, Wait: 29*time.Second + 400*time.Millisecond},
		{Wait: 29 * time.Second},
	}
	for _, width := range []int{0, 80} {
		c := newCLI(t, "")
		c.width = func() int { return width }
		n := &outageNews{line: c.app.outageLine}
		n.wrote([]byte("50 %"))
		for _, o := range all {
			n.tell(o)
		}
		want := "\r\nagbox: The daemon is gone. Starting it.\n" +
			"\r\x1b[Kagbox: The daemon could not be started, and is waited for: agboxd ended.\n" +
			"\r\x1b[Kagbox: The daemon is back.\n" +
			"\r\x1b[Kagbox: The daemon has stopped. Waiting 29s for `agbox daemon start`.\n" +
			"\r\x1b[Kagbox: The daemon is gone. Waiting 29s for `agbox daemon start`.\n"
		if width == 0 {
			want = ""
		}
		if got := c.errs.String(); got != want || c.out.String() != "" {
			t.Errorf("at width %d it says\n%q, want\n%q; on stdout %q", width, got, want, c.out.String())
		}
	}
}

func TestWhatWasNotDeliveredIsSaidInBytes(t *testing.T) {
	for _, c := range []struct {
		lost, unknown int
		want          string
	}{
		{0, 0, ""},
		{1, 0, "1 typed byte was not delivered."},
		{7, 0, "7 typed bytes were not delivered."},
		{0, 1, "It is unknown whether the last 1 typed byte was delivered."},
		{0, 2, "It is unknown whether the last 2 typed bytes were delivered."},
		{7, 2, "7 typed bytes were not delivered, and of 2 bytes before them it is unknown."},
	} {
		if got := undeliveredText(c.lost, c.unknown); got != c.want {
			t.Errorf("%d lost, %d unknown: %q", c.lost, c.unknown, got)
		}
	}
}

// TestAnIncompleteLineIsShownAgainWithoutQuestions: terminals answer some sequences with
// input, which nobody has typed.
func TestAnIncompleteLineIsShownAgainWithoutQuestions(t *testing.T) {
	for output, want := range map[string]string{
		"":                                      "",
		"one\r\ntwo":                            "two",
		"one\r\n":                               "",
		"\x1b[1;32m$\x1b[0m ls\b\x1b[K":         "\x1b[1;32m$\x1b[0m ls\b\x1b[K",
		"\x1b[6n\x1b[c\x1b[?1h\x1b[>c$ ":        "$ ",
		"\x1b]0;title\a$ ":                      "$ ",
		"\x1b]0;title\x1b\\$ ":                  "$ ",
		"\x1bPq\x1b[6n$ ":                       "$ ",
		"\x1b[J$ \x1b[0J":                       "\x1b[J$ \x1b[0J",
		"old\x1b[H\x1b[2Jnew":                   "new",
		"$ vi\x1b[?1049hscreen":                 "$ vi",
		"\a\x0e$ ":                              "$ ",
		"$ half\x1b":                            "$ half\x1b",
		"$ half\x1b[1;":                         "$ half\x1b[1;",
		"10 %\r20 %":                            "10 %\r20 %",
		strings.Repeat("x", longestLine) + "\r": "\r",
		"a\r" + strings.Repeat("x", longestLine-2) + "y":                        "\r" + strings.Repeat("x", longestLine-2) + "y",
		strings.Repeat("x", longestLine-1) + "\x1b[1m":                          strings.Repeat("x", longestLine-1),
		"\x1b[?1049hscreen\x1b[?1049l$ ":                                        "$ ",
		"\x1b]" + strings.Repeat("x", 2*longestLine) + "\x1b[?1049h\x1b[?1049l": "",
	} {
		var s screen
		_, _ = s.Write([]byte(output))
		if got := s.lineAgain(); got != want || s.endLine() != (want != "") {
			t.Errorf("after %q: %q, want %q", output, got, want)
		}
	}
}
