// Package view makes what the CLI prints of items: tables for terminals, JSON, and what the
// user's template says. A table is never wider than its terminal: columns are cut or left out
// by the rules of their Column. Without a width, nothing is cut. The package does no I/O.
package view

import (
	"slices"
	"strings"
)

// Column is a column of a table and says what may happen to it on a narrow terminal.
type Column struct {
	// Title is the head of the column.
	Title string
	// Right aligns the cells to the right, as figures are.
	Right bool
	// Min is the width, in columns of the terminal, down to which the cells may be cut, but
	// not below the width of the title. 0 means that they are not cut.
	Min int
	// Wrap continues a long text on more lines instead of cutting it. It takes effect in the
	// last column, and needs Min.
	Wrap bool
	// Omit is the order in which columns are left out if cutting is not enough: the largest
	// number first, 0 never.
	Omit int
	// Wide columns are shown only if Options has Wide.
	Wide bool
}

// Cell is a cell of a table. Its texts need not be printable: escape sequences are made
// visible.
type Cell struct {
	Text string
	// Short is shown instead of Text where the table would not fit; empty means Text.
	Short string
	Style Style
}

// Style is the look of a cell where the terminal has colours.
type Style string

// The styles are parameters of the escape sequence SGR.
const (
	Plain Style = ""
	Good  Style = "32" // green
	Busy  Style = "33" // yellow
	Bad   Style = "31" // red
	Faint Style = "2"
)

// Options say where a table is shown.
type Options struct {
	// Width is the width of the terminal in columns. 0 means that nothing is cut.
	Width int
	// Wide shows the columns that are Wide.
	Wide bool
	// Color shows the styles.
	Color bool
}

const (
	// gap and tightGap are the spaces between two columns, if there is room and if not.
	gap      = 3
	tightGap = 2
)

// Text returns a cell with a text.
func Text(s string) Cell { return Cell{Text: s} }

// Render returns the lines of a table: its head and its rows. A row may have fewer cells
// than there are columns. Each line ends with a line break.
func Render(columns []Column, rows [][]Cell, o Options) string {
	l := newLayout(columns, rows, o)
	l.fit()
	var b strings.Builder
	head := make([]Cell, len(l.columns))
	for i, c := range l.columns {
		head[i].Text = c.Title
	}
	l.write(&b, head)
	for _, row := range l.rows {
		l.write(&b, row)
	}
	return b.String()
}

// layout is a table with the widths of its columns.
type layout struct {
	Options
	columns []Column
	rows    [][]Cell
	widths  []int
	gap     int
}

// newLayout takes the columns that are wanted, with printable texts, and measures them.
func newLayout(columns []Column, rows [][]Cell, o Options) *layout {
	l := &layout{Options: o, gap: gap, rows: make([][]Cell, len(rows))}
	for i, c := range columns {
		if c.Wide && !o.Wide {
			continue
		}
		c.Title = Printable(c.Title)
		l.columns = append(l.columns, c)
		for j, row := range rows {
			var cell Cell
			if i < len(row) {
				cell = Cell{Text: Printable(row[i].Text), Short: Printable(row[i].Short), Style: row[i].Style}
			}
			l.rows[j] = append(l.rows[j], cell)
		}
	}
	for i := range l.columns {
		l.widths = append(l.widths, l.natural(i))
	}
	return l
}

// natural is the width that a column needs.
func (l *layout) natural(i int) int {
	w := Width(l.columns[i].Title)
	for _, row := range l.rows {
		w = max(w, Width(row[i].Text))
	}
	return w
}

// excess is by how much the table is too wide.
func (l *layout) excess() int {
	if l.Width <= 0 {
		return 0
	}
	sum := l.gap * (len(l.widths) - 1)
	for _, w := range l.widths {
		sum += w
	}
	return sum - l.Width
}

// fit makes the table as narrow as the terminal. Each step is taken only if those before it
// were not enough: narrower gaps and short forms, cutting the columns that may be cut,
// leaving out columns, cutting all.
func (l *layout) fit() {
	if l.excess() <= 0 {
		return
	}
	l.gap = tightGap
	if l.excess() > 0 {
		l.shorten()
	}
	for {
		l.shrink(l.halfForWrapped)
		l.shrink(least)
		if l.excess() <= 0 {
			return
		}
		if !l.omit() {
			break
		}
	}
	for l.shrink(one); l.excess() > 0 && len(l.columns) > 1; l.shrink(one) {
		l.remove(len(l.columns) - 1)
	}
}

// least is the width to which a column may be cut: Min, but its title stays whole. 0 means
// that it is not cut.
func least(c Column) int {
	if c.Min == 0 {
		return 0
	}
	return max(c.Min, Width(c.Title))
}

// halfForWrapped is like least, but leaves half of the terminal to a text that is wrapped.
func (l *layout) halfForWrapped(c Column) int {
	if c.Wrap {
		return max(least(c), l.Width/2)
	}
	return least(c)
}

func one(Column) int { return 1 }

// shorten shows the short forms of the cells.
func (l *layout) shorten() {
	for _, row := range l.rows {
		for i := range row {
			if row[i].Short != "" {
				row[i].Text = row[i].Short
			}
		}
	}
	for i := range l.widths {
		l.widths[i] = l.natural(i)
	}
}

// shrink narrows columns, the widest first, until the table fits or each column is at the
// floor that lowest gives for it. A floor of 0 keeps the width.
func (l *layout) shrink(lowest func(c Column) int) {
	floors := make([]int, len(l.columns))
	for i, c := range l.columns {
		if floors[i] = lowest(c); floors[i] == 0 {
			floors[i] = l.widths[i]
		}
	}
	for l.excess() > 0 {
		widest := -1
		for i, w := range l.widths {
			if w > floors[i] && (widest < 0 || w > l.widths[widest]) {
				widest = i
			}
		}
		if widest < 0 {
			return
		}
		l.widths[widest]--
	}
}

// omit leaves out the column that is to go first. It reports whether there was one.
func (l *layout) omit() bool {
	first := 0
	for i, c := range l.columns {
		if c.Omit > l.columns[first].Omit {
			first = i
		}
	}
	if len(l.columns) < 2 || l.columns[first].Omit == 0 {
		return false
	}
	l.remove(first)
	return true
}

// remove leaves out a column and gives the others their full widths again.
func (l *layout) remove(i int) {
	l.columns = slices.Delete(l.columns, i, i+1)
	l.widths = slices.Delete(l.widths, i, i+1)
	for j := range l.rows {
		l.rows[j] = slices.Delete(l.rows[j], i, i+1)
	}
	for j := range l.widths {
		l.widths[j] = l.natural(j)
	}
}

// write writes a row: one line, or more if its last cell is wrapped.
func (l *layout) write(b *strings.Builder, row []Cell) {
	last := len(row) - 1
	var more []string
	blanks := 0 // spaces that are written only if something follows
	for i, cell := range row {
		text, width := cell.Text, l.widths[i]
		if i == last && l.columns[i].Wrap && Width(text) > width {
			lines := Wrap(text, width)
			text, more = lines[0], lines[1:]
		}
		text = Cut(text, width)
		pad := width - Width(text)
		if l.columns[i].Right {
			blanks, pad = blanks+pad, 0
		}
		if text != "" {
			b.WriteString(strings.Repeat(" ", blanks))
			blanks = 0
			b.WriteString(l.styled(text, cell.Style))
		}
		blanks += pad + l.gap
	}
	b.WriteByte('\n')
	indent := 0
	for i := range last {
		indent += l.widths[i] + l.gap
	}
	for _, line := range more {
		b.WriteString(strings.Repeat(" ", indent) + l.styled(line, row[last].Style) + "\n")
	}
}

func (l *layout) styled(text string, s Style) string {
	if !l.Color || s == Plain {
		return text
	}
	return "\x1b[" + string(s) + "m" + text + "\x1b[0m"
}
