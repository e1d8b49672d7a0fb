package reconcile

import (
	"strings"
	"testing"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// What an event says of a service shows no value, however it was printed or cut.
func TestLastWordsHaveNoSecretsHoweverTheyArePrinted(t *testing.T) {
	secret := redactor(&agboxv1.CreateSpec{Envs: map[string]string{
		"API_KEY": "top-secret-key", "TLS_KEY": "line-one-of-it\r\nline-two-of-it\rline-three-of-it", "A_TOKEN": "with\ta\x1btab-in-it", "B_TOKEN": "päßwörter",
	}})
	full := func(end string) string { return strings.Repeat(" ", healthBytes-len(end)) + end }
	for name, c := range map[string]struct{ output, want string }{
		"as it is":                       {"key top-secret-key.", "key ***."},
		"unprintable characters in it":   {"top-\x1bsecret\x00-\u200bkey, top-sec\xffret-key", "***, ***"},
		"a line break in another":        {"top-secret\n-key\t!", "top-secret | -key!"},
		"of many lines":                  {"a\r\nline-one-of-it\r\nline-two\x00-of-it\nline-three-of-it\n", "a | *** | *** | ***"},
		"its own unprintable characters": {"with\ta\x1btab-in-it", "***"},
	} {
		if got := outputWords(secret, []byte(c.output)); got != c.want {
			t.Errorf("%s: the output %q is %q, want %q", name, c.output, got, c.want)
		}
		if got := healthWords(secret, c.output); got != c.want {
			t.Errorf("%s: the healthcheck says %q, and %q is shown, want %q", name, c.output, got, c.want)
		}
	}
	for output, want := range map[string]string{
		full("key top-secret-ke") + healthMore: "key",
		full("key top-secret-ke"):              "key",
		full("key p") + "\uFFFD" + healthMore:  "key",
		full("key p\x1b") + healthMore:         "key",
		"ended with top-secret-ke":             "ended with top-secret-ke",
		full("all is good") + healthMore:       "all is good",
	} {
		if got := healthWords(secret, output); got != want {
			t.Errorf("%q is shown, want %q", got, want)
		}
	}
	// The tail of an output begins within a value, and what follows is not shown.
	out := new(tail)
	_, _ = out.Write([]byte("top-secret-key" + strings.Repeat("\x1b", keptBytes-len("-key top-secret-key and this is the end of a service")) + " top-secret-key and this is the end of a service"))
	if got := outputWords(secret, out.bytes()); strings.Contains(got, "key") || !strings.HasSuffix(got, "the end of a service") {
		t.Errorf("of the tail, %q is shown", got)
	}
}
