package view

import (
	"regexp"
	"strings"
	"testing"
	"unicode"

	"pgregory.net/rapid"
)

var sgr = regexp.MustCompile(`\x1b\[[0-9]*m`)

// texts are cells as sandboxes may have them: words, wide and combined characters, escape
// sequences, bytes that are not UTF-8.
func texts() *rapid.Generator[string] {
	return rapid.OneOf(
		rapid.StringMatching(`[a-z0-9 /:.-]{0,40}`),
		rapid.String(),
		rapid.Map(rapid.SliceOfN(rapid.SampledFrom([]string{"日本", "e\u0301", "👨‍👩‍👧", "👍🏽", "❤️", "🇩🇪", "\x1b[2J", "\t", "\n", "\u202e", "\xff", "한", "ᄀ", "a b", "…"}), 0, 12),
			func(parts []string) string { return strings.Join(parts, "") }),
	)
}

type drawn struct {
	columns []Column
	rows    [][]Cell
}

func draw(t *rapid.T) drawn {
	var d drawn
	for range rapid.IntRange(1, 8).Draw(t, "columns") {
		d.columns = append(d.columns, Column{
			Title: rapid.StringMatching(`[A-Z]{1,10}`).Draw(t, "title"), Right: rapid.Bool().Draw(t, "right"),
			Min: rapid.IntRange(0, 12).Draw(t, "min"), Wrap: rapid.Bool().Draw(t, "wrap"), Omit: rapid.IntRange(0, 3).Draw(t, "omit"),
		})
	}
	for range rapid.IntRange(0, 5).Draw(t, "rows") {
		var row []Cell
		for range d.columns {
			row = append(row, Cell{Text: texts().Draw(t, "text"), Style: rapid.SampledFrom([]Style{Plain, Good, Bad}).Draw(t, "style")})
		}
		d.rows = append(d.rows, row)
	}
	return d
}

func TestNoLineIsWiderThanTheTerminal(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := draw(t)
		width := rapid.IntRange(1, 200).Draw(t, "width")
		text := Render(d.columns, d.rows, Options{Width: width, Color: true})
		for line := range strings.Lines(sgr.ReplaceAllString(text, "")) {
			line = strings.TrimSuffix(line, "\n")
			if w := Width(line); w > width {
				t.Fatalf("%d columns on a terminal of %d: %q", w, width, line)
			}
			if strings.ContainsFunc(line, func(r rune) bool { return !unicode.IsPrint(r) }) {
				t.Fatalf("a line can control the terminal: %q", line)
			}
		}
	})
}

func TestNothingIsLostWithoutAWidth(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := draw(t)
		text := Render(d.columns, d.rows, Options{})
		lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
		if len(lines) != len(d.rows)+1 {
			t.Fatalf("%d lines for %d rows", len(lines), len(d.rows))
		}
		for i, row := range d.rows {
			rest := lines[i+1]
			for _, cell := range row {
				_, after, found := strings.Cut(rest, Printable(cell.Text))
				if !found {
					t.Fatalf("%q is not in %q", cell.Text, lines[i+1])
				}
				rest = after
			}
		}
	})
}

// TestColumnsAreCutOnlyAsFarAsNeeded: a table that must be cut fills the terminal, unless a
// wide character does not fit into the last column.
func TestColumnsAreCutOnlyAsFarAsNeeded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(0, 60).Draw(t, "longer")
		width := rapid.IntRange(20, 80).Draw(t, "width")
		columns := []Column{{Title: "N"}, {Title: "TEXT", Min: 4}}
		text := Render(columns, [][]Cell{{Text("name"), Text(strings.Repeat("x", width+n))}}, Options{Width: width})
		if line := strings.Split(text, "\n")[1]; Width(line) != width || !strings.HasSuffix(line, "…") {
			t.Fatalf("%d of %d: %q", Width(line), width, line)
		}
	})
}

func render(width int, columns []Column, rows ...[]string) string {
	cells := make([][]Cell, len(rows))
	for i, row := range rows {
		for _, text := range row {
			cells[i] = append(cells[i], Text(text))
		}
	}
	return "\n" + Render(columns, cells, Options{Width: width})
}

func TestColumnsObeyTheirRules(t *testing.T) {
	columns := []Column{{Title: "NAME", Min: 6}, {Title: "ID", Omit: 2}, {Title: "N", Right: true, Omit: 1}, {Title: "TEXT", Min: 8}}
	row := []string{"a-long-name", "0123456789ab", "7", "a text that is quite long"}
	for width, want := range map[int]string{
		0: `
NAME          ID             N   TEXT
a-long-name   0123456789ab   7   a text that is quite long
`,
		56: `
NAME         ID            N  TEXT
a-long-name  0123456789ab  7  a text that is quite long
`,
		40: `
NAME        ID            N  TEXT
a-long-na…  0123456789ab  7  a text tha…
`,
		30: `
NAME         N  TEXT
a-long-name  7  a text that i…
`,
		12: `
NAME   TEXT
a-lo…  a te…
`,
		3: `
NA…
a-…
`,
	} {
		if got := render(width, columns, row); got != want {
			t.Errorf("width %d: got %s want %s", width, got, want)
		}
	}
}

func TestFiguresAreAlignedToTheRight(t *testing.T) {
	want := "\nSIZE   NAME\n   7   a\n1000   bb\n"
	if got := render(0, []Column{{Title: "SIZE", Right: true}, {Title: "NAME"}}, []string{"7", "a"}, []string{"1000", "bb"}); got != want {
		t.Errorf("got %s", got)
	}
}

func TestTheLastColumnContinuesOnMoreLines(t *testing.T) {
	columns := []Column{{Title: "KIND"}, {Title: "WHY", Wrap: true, Min: 10}}
	want := `
KIND  WHY
a     It belongs to
      no sandbox
      that/exists/or
      /existed.
`
	if got := render(20, columns, []string{"a", "It belongs to no sandbox that/exists/or/existed."}); got != want {
		t.Errorf("got %s", got)
	}
}

func TestShortFormsComeBeforeCuts(t *testing.T) {
	columns := []Column{{Title: "NAME", Min: 4}, {Title: "AGO"}}
	rows := [][]Cell{{Text("some-name"), {Text: "3 minutes ago", Short: "3m"}}}
	if got := Render(columns, rows, Options{Width: 20}); got != "NAME       AGO\nsome-name  3m\n" {
		t.Errorf("got %q", got)
	}
}

func TestStylesAndWideColumnsAreOptional(t *testing.T) {
	columns := []Column{{Title: "STATE"}, {Title: "MORE", Wide: true}, {Title: "X"}}
	rows := [][]Cell{{{Text: "ready", Style: Good}, Text("m"), Text("x")}}
	for o, want := range map[Options]string{
		{}:            "STATE   X\nready   x\n",
		{Color: true}: "STATE   X\n\x1b[32mready\x1b[0m   x\n",
		{Wide: true}:  "STATE   MORE   X\nready   m      x\n",
	} {
		if got := Render(columns, rows, o); got != want {
			t.Errorf("%+v: %q", o, got)
		}
	}
}

func TestWidthIsThatOfTheWidestTerminal(t *testing.T) {
	for text, want := range map[string]int{"abc": 3, "日本": 4, "e\u0301": 1, "…": 1, "👍🏽": 4, "": 0} {
		if got := Width(text); got != want {
			t.Errorf("%q: %d, want %d", text, got, want)
		}
	}
}
