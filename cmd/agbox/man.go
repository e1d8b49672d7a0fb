package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/agbox/agbox/internal/version"
)

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
	if long := strings.TrimSpace(cmd.Long); long != "" {
		b.WriteString(".SH DESCRIPTION\n" + verbatim(long))
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
