package main

import (
	"regexp"
	"strings"

	"github.com/spf13/cobra"

	"github.com/agbox/agbox/docs"
)

// helpWidth is the width of all help, in columns: it is read in terminals and in mails.
const helpWidth = 99

// flagSlop is by how much pflag exceeds the width that it is given.
const flagSlop = 5

// specTopic is docs/spec.md, as text.
func specTopic() *cobra.Command {
	return &cobra.Command{Use: "spec", Short: "Every field of a sandbox file", Long: strings.TrimSpace(plainPage(docs.Spec))}
}

// plainPage is a page of Markdown for a terminal: rows of tables are terms with their
// explanation, code is indented, and text is wrapped at helpWidth.
func plainPage(page string) string {
	p := pageText{}
	page = htmlComment.ReplaceAllString(page, "")
	for line := range strings.Lines(page) {
		p.add(strings.TrimRight(line, " \n"))
	}
	p.endParagraph()
	return p.String()
}

// pageText is the text of a page of Markdown that comes line by line.
type pageText struct {
	strings.Builder
	// paragraph is what was read of a paragraph or an item of a list.
	paragraph string
	// code is set in a block of code.
	code bool
	// rows is the number of rows read of a table.
	rows int
}

func (p *pageText) add(line string) {
	fence, row := strings.HasPrefix(line, "```"), strings.HasPrefix(line, "|")
	if p.code && !fence {
		p.WriteString(strings.TrimRight("    "+line, " ") + "\n")
		return
	}
	if fence || row || line == "" || strings.HasPrefix(line, "#") || strings.HasPrefix(line, "- ") {
		p.endParagraph()
	}
	if !row {
		p.rows = 0
	}
	switch {
	case fence:
		p.code = !p.code
	case row:
		if p.rows++; p.rows > 2 { // the first two rows are the head and a line
			tableRow(&p.Builder, line)
		}
	case line == "":
		p.WriteString("\n")
	case strings.HasPrefix(line, "#"):
		p.WriteString(strings.ToUpper(plainText(strings.TrimLeft(line, "# "))) + "\n")
	default:
		p.paragraph = strings.TrimSpace(p.paragraph + " " + strings.TrimSpace(line))
	}
}

// endParagraph writes the paragraph.
func (p *pageText) endParagraph() {
	if p.paragraph == "" {
		return
	}
	indent := ""
	if strings.HasPrefix(p.paragraph, "- ") {
		indent = "  "
	}
	wrap(&p.Builder, plainText(p.paragraph), "", indent)
	p.WriteString("\n")
	p.paragraph = ""
}

var (
	markdownLink = regexp.MustCompile(`\[([^\]]+)\]\(([^)]+)\)`)
	htmlComment  = regexp.MustCompile(`(?s)^<!--.*?-->`)
	cellBorder   = regexp.MustCompile(`(^|[^\\])\|`)
	marks        = strings.NewReplacer("**", "", "`", "", "\\|", "|")
)

// plainText removes the marks of Markdown from a line.
func plainText(line string) string {
	line = markdownLink.ReplaceAllString(line, "$1 ($2)")
	return marks.Replace(line)
}

// tableRow writes a row: the first cell, those in the middle in brackets, and the last
// one below.
func tableRow(b *strings.Builder, line string) {
	cells := strings.Split(cellBorder.ReplaceAllString(strings.Trim(line, "|"), "$1\x00"), "\x00")
	for i, cell := range cells {
		cells[i] = plainText(strings.TrimSpace(cell))
	}
	term := cells[0]
	if middle := cells[1:max(len(cells)-1, 1)]; len(middle) > 0 {
		term += " (" + strings.Join(middle, ", ") + ")"
	}
	wrap(b, term, "  ", "    ")
	b.WriteString("\n")
	if len(cells) > 1 && cells[len(cells)-1] != "" {
		wrap(b, cells[len(cells)-1], "      ", "      ")
		b.WriteString("\n")
	}
}

// wrap writes text in lines of at most helpWidth columns: the first after first, the
// others after indent. It keeps text that fits as it is.
func wrap(b *strings.Builder, text, first, indent string) {
	if line := first + text; len([]rune(line)) <= helpWidth {
		b.WriteString(line)
		return
	}
	line := first
	for i, word := range strings.Fields(text) {
		switch {
		case i == 0:
			line += word
		case len([]rune(line))+1+len([]rune(word)) > helpWidth:
			b.WriteString(line + "\n")
			line = indent + word
		default:
			line += " " + word
		}
	}
	b.WriteString(line)
}
