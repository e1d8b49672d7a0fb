package view

import (
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestLongTextIsFoldedAtSpaces(t *testing.T) {
	for _, c := range []struct {
		text        string
		first, rest int
		want        []string
	}{
		{"fits", 4, 4, []string{"fits"}},
		{"", 0, 4, []string{""}},
		{"one two three", 7, 5, []string{"one two ", "three"}},
		{"one  two", 4, 4, []string{"one  ", "two"}},
		{"longer words", 5, 8, []string{"", "longer ", "words"}},
		{"a/long/path b", 4, 6, []string{"", "a/long", "/path ", "b"}},
		{"a/long/path", 6, 6, []string{"a/long", "/path"}},
		{"日本語", 3, 4, []string{"", "日本", "語"}},
		{"日本", 1, 1, []string{"日", "本"}},
	} {
		if got := Fold(c.text, c.first, c.rest); !slices.Equal(got, c.want) {
			t.Errorf("%q in %d and %d columns is %q, want %q", c.text, c.first, c.rest, got, c.want)
		}
	}
}

func TestFoldingLosesNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := strings.Join(rapid.SliceOf(texts()).Draw(t, "words"), " ")
		text = Printable(text)
		first, rest := rapid.IntRange(0, 30).Draw(t, "first"), rapid.IntRange(2, 30).Draw(t, "rest")
		lines := Fold(text, first, rest)
		if strings.Join(lines, "") != text {
			t.Fatalf("%q became %q", text, lines)
		}
		for i, line := range lines {
			room := rest
			if i == 0 {
				room = first
			}
			line = strings.TrimSuffix(line, " ")
			if Width(line) <= room {
				continue
			}
			if _, more, _, _ := next(line, -1); more != "" {
				t.Fatalf("line %d of %q has more than %d columns", i, lines, room)
			}
		}
	})
}
