package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/agbox/agbox/cmd/agbox/view"
	"github.com/agbox/agbox/docs"
	"github.com/agbox/agbox/internal/version"
)

// helpCommand replaces cobra's, which succeeds for a word that is no command.
func helpCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "help [COMMAND]",
		Short: "Show the help of a command or a topic",
		Args:  cobra.ArbitraryArgs,
		ValidArgsFunction: func(cmd *cobra.Command, args []string, prefix string) ([]cobra.Completion, cobra.ShellCompDirective) {
			of, rest, err := cmd.Root().Find(args)
			if err != nil || len(rest) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			var offers []cobra.Completion
			for _, sub := range of.Commands() {
				if strings.HasPrefix(sub.Name(), prefix) && (sub.IsAvailableCommand() || sub.IsAdditionalHelpTopicCommand()) {
					offers = append(offers, cobra.CompletionWithDesc(sub.Name(), sub.Short))
				}
			}
			return offers, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			of, rest, err := cmd.Root().Find(args)
			if err != nil {
				return err
			}
			if len(rest) > 0 {
				return unknownCommand(of, rest[0])
			}
			of.InitDefaultHelpFlag()
			return of.Help()
		},
	}
}

// helpWidth is the width of all help, in columns: it is read in terminals and in mails.
const helpWidth = 99

// flagSlop is by how much pflag exceeds the width that it is given.
const flagSlop = 5

// markdown is the annotation of a command that a page describes.
const markdown = "markdown"

// specTopic is docs/spec.md.
func specTopic() *cobra.Command {
	topic := &cobra.Command{Use: "spec", Short: "Every field of a sandbox file", Annotations: map[string]string{markdown: docs.Spec}}
	topic.SetHelpFunc(func(cmd *cobra.Command, args []string) {
		cmd.Long = long(cmd)
		cmd.Parent().HelpFunc()(cmd, args)
	})
	return topic
}

// long is the description of a command. The text of a page is made where it is shown: it costs
// more than all commands together.
func long(cmd *cobra.Command) string {
	if page, ok := cmd.Annotations[markdown]; ok {
		return strings.TrimSpace(plainPage(page))
	}
	return strings.TrimSpace(cmd.Long)
}

// plainPage is a page of Markdown for a terminal: rows of tables are terms with their
// explanation, code is indented, and text is wrapped at helpWidth.
func plainPage(page string) string {
	p := pageText{}
	page = htmlComment().ReplaceAllString(page, "")
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
	markdownLink = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`\[([^\]]+)\]\(([^)]+)\)`) })
	htmlComment  = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`(?s)^<!--.*?-->`) })
	cellBorder   = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`(^|[^\\])\|`) })
	marks        = strings.NewReplacer("**", "", "`", "", "\\|", "|")
)

// plainText removes the marks of Markdown from a line.
func plainText(line string) string {
	line = markdownLink().ReplaceAllString(line, "$1 ($2)")
	return marks.Replace(line)
}

// tableRow writes a row: the first cell, those in the middle in brackets, and the last
// one below.
func tableRow(b *strings.Builder, line string) {
	cells := strings.Split(cellBorder().ReplaceAllString(strings.Trim(line, "|"), "$1\x00"), "\x00")
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
	lines := view.Fold(text, helpWidth-len(first), helpWidth-len(indent))
	for i, line := range lines {
		lines[i] = strings.TrimRight(line, " ")
	}
	b.WriteString(first + strings.Join(lines, "\n"+indent))
}

func (a *app) manCommand() *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use:   "man [COMMAND...] [flags]",
		Short: "Print the manual page of a command, or write all pages",
		Long: `Print the manual page of a command in the format of man. With --dir, the pages of all
commands are written into a folder, for example /usr/local/share/man/man1. It is made
if it does not exist.`,
		Example: `  agbox man exec | man -l -
  agbox man --dir /usr/local/share/man/man1`,
		Args:              cobra.ArbitraryArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			a.began = true
			of, rest, err := cmd.Root().Find(args)
			switch {
			case err != nil:
				return err
			case len(rest) > 0:
				return unknownCommand(of, rest[0])
			case dir == "":
				return manPage(a.stdout, of)
			case len(args) > 0:
				return usagef("--dir writes all pages: omit %s.", strings.Join(args, " "))
			}
			return writeManPages(cmd.Root(), dir)
		},
	}
	cmd.Flags().StringVar(&dir, "dir", "", "write all pages into this `FOLDER`")
	return cmd
}

// writeManPages writes the pages of a command and of those below it.
func writeManPages(cmd *cobra.Command, dir string) error {
	var b strings.Builder
	if err := manPage(&b, cmd); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, manName(cmd)+".1"), []byte(b.String()), 0o644); err != nil {
		return err
	}
	for _, sub := range cmd.Commands() {
		if sub.Hidden {
			continue
		}
		if err := writeManPages(sub, dir); err != nil {
			return err
		}
	}
	return nil
}

// manName is the name of a command's page: agbox-daemon-stop.
func manName(cmd *cobra.Command) string { return strings.ReplaceAll(cmd.CommandPath(), " ", "-") }

// manPage writes the page of a command: its help in the format of man.
func manPage(w io.Writer, cmd *cobra.Command) error {
	var b strings.Builder
	fmt.Fprintf(&b, ".TH %s 1 \"\" %q %q\n", strings.ToUpper(roff(manName(cmd))), "agbox "+version.Version, "agbox")
	fmt.Fprintf(&b, ".SH NAME\n%s \\- %s\n", roff(manName(cmd)), roff(cmd.Short))
	if cmd.Runnable() {
		use := cmd.UseLine()
		if cmd.HasAvailableSubCommands() {
			use = cmd.CommandPath() + " COMMAND"
		}
		fmt.Fprintf(&b, ".SH SYNOPSIS\n.B %s\n", roff(use))
	}
	if text := long(cmd); text != "" {
		b.WriteString(".SH DESCRIPTION\n" + verbatim(text))
	}
	manFlags(&b, "OPTIONS", cmd.NonInheritedFlags())
	manFlags(&b, "GLOBAL OPTIONS", cmd.InheritedFlags())
	if cmd.HasExample() {
		b.WriteString(".SH EXAMPLES\n" + verbatim(cmd.Example))
	}
	var also []string
	if cmd.HasParent() {
		also = append(also, cmd.Parent().CommandPath())
	}
	for _, sub := range cmd.Commands() {
		if !sub.Hidden {
			also = append(also, sub.CommandPath())
		}
	}
	b.WriteString(".SH SEE ALSO\n")
	for i, path := range also {
		also[i] = ".BR " + roff(strings.ReplaceAll(path, " ", "-")) + " (1)"
	}
	b.WriteString(strings.Join(also, ",\n") + "\n")
	_, err := io.WriteString(w, b.String())
	return err
}

func manFlags(b *strings.Builder, title string, flags *pflag.FlagSet) {
	if !flags.HasAvailableFlags() {
		return
	}
	b.WriteString(".SH " + title + "\n")
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden {
			return
		}
		value, usage := pflag.UnquoteUsage(f)
		name := "--" + f.Name
		if f.Shorthand != "" {
			name = "-" + f.Shorthand + ", " + name
		}
		fmt.Fprintf(b, ".TP\n.B %s\n%s\n", roff(strings.TrimSpace(name+" "+value)), roff(usage))
	})
}

// verbatim is text whose lines stay as they are.
func verbatim(text string) string {
	var b strings.Builder
	b.WriteString(".nf\n")
	for line := range strings.SplitSeq(text, "\n") {
		b.WriteString(roff(line) + "\n")
	}
	b.WriteString(".fi\n")
	return b.String()
}

// roff escapes a line of text.
func roff(line string) string {
	line = strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(line)
	if strings.HasPrefix(line, ".") || strings.HasPrefix(line, "'") {
		line = `\&` + line
	}
	return line
}

// usageTemplate is cobra's, without the aliases and with fewer blank lines.
var usageTemplate = `Usage:
  {{if .HasAvailableSubCommands}}{{.CommandPath}} COMMAND{{else}}{{.UseLine}}{{end}}
{{- if .HasExample}}

Examples:
{{.Example}}{{end}}
{{- $cmds := .Commands}}{{if .HasAvailableSubCommands}}
{{- range $group := .Groups}}

{{.Title}}{{range $cmds}}{{if and (eq .GroupID $group.ID) .IsAvailableCommand}}
  {{rpad .Name .NamePadding}} {{.Short}}{{end}}{{end}}{{end}}
{{- if not .AllChildCommandsHaveGroup}}

Commands:{{range $cmds}}{{if and (eq .GroupID "") .IsAvailableCommand}}
  {{rpad .Name .NamePadding}} {{.Short}}{{end}}{{end}}{{end}}{{end}}
{{- if .HasAvailableLocalFlags}}

Flags:
` + localFlags + `{{end}}
` + globalFlags + `
{{- if .HasHelpSubCommands}}

More help:{{range .Commands}}{{if .IsAdditionalHelpTopicCommand}}
  {{rpad (print "agbox help " .Name) 22}} {{.Short}}{{end}}{{end}}{{end}}
`

// localFlags is the part of usageTemplate with the flags of the command.
var localFlags = "{{.LocalFlags.FlagUsagesWrapped " + flagColumns + " | trimTrailingWhitespaces}}"

// globalFlags is the part of usageTemplate with the flags of all commands.
var globalFlags = `{{- if .HasAvailableInheritedFlags}}

Global flags:
{{.InheritedFlags.FlagUsagesWrapped ` + flagColumns + ` | trimTrailingWhitespaces}}{{end}}`

// flagColumns is the width that makes the flags at most helpWidth wide.
var flagColumns = strconv.Itoa(helpWidth - flagSlop)
