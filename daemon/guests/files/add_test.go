package files

import "testing"

func TestLinesAreAddedOnceAndTheRestStays(t *testing.T) {
	const lines = "[safe]\n\tdirectory = *\n"
	for text, want := range map[string]string{
		"":                     lines,
		"[user]\n\tname = a":   "[user]\n\tname = a\n" + lines,
		"[user]\n\tname = a\n": "[user]\n\tname = a\n" + lines,
		"# " + lines:           "# " + lines + lines,
		lines:                  lines,
		"a\n" + lines + "b\n":  "a\n" + lines + "b\n",
	} {
		if got, missing := withLines(text, lines); got != want || missing != (got != text) {
			t.Errorf("%q became %q (%v), not %q", text, got, missing, want)
		}
	}
}
