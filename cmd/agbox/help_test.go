package main

import (
	"cmp"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// everyCommand calls do for each command and topic, with the words that name it.
func everyCommand(cmd *cobra.Command, words []string, do func(cmd *cobra.Command, words []string)) {
	do(cmd, words)
	for _, sub := range cmd.Commands() {
		everyCommand(sub, append(words[:len(words):len(words)], sub.Name()), do)
	}
}

func TestAllHelpIsUnderAHundredColumns(t *testing.T) {
	n := 0
	everyCommand(newCLI(t, "").rootCommand(), nil, func(_ *cobra.Command, words []string) {
		n++
		code, out, errs := agbox(t, "", append([]string{"help"}, words...)...)
		if code != 0 || errs != "" {
			t.Errorf("help %v: code %d, %q", words, code, errs)
		}
		for line := range strings.Lines(out) {
			if line = strings.TrimSuffix(line, "\n"); len([]rune(line)) >= 100 {
				t.Errorf("help %v has a line of %d columns: %s", words, len([]rune(line)), line)
			}
		}
	})
	if n < 50 {
		t.Errorf("only %d commands were looked at", n)
	}
}

func TestThePageOfTheSpecIsText(t *testing.T) {
	page := "# A title\n\nA [link](x.md), `code` and **more**.\n\n| a | b | c |\n|---|---|---|\n| `key` | text \\| number | Says " +
		strings.Repeat("much ", 30) + "|\n| `other` | | |\n\n```yaml\nkey: |\n  1\n```\n- " + strings.Repeat("word ", 25) + "end\n"
	want := "A TITLE\n\nA link (x.md), code and more.\n\n  key (text | number)\n      Says " + strings.TrimSpace(strings.Repeat("much ", 17)) + "\n      " +
		strings.TrimSpace(strings.Repeat("much ", 13)) + "\n  other ()\n\n    key: |\n      1\n- " + strings.TrimSpace(strings.Repeat("word ", 19)) + "\n  " +
		strings.Repeat("word ", 6) + "end\n"
	if got := plainPage(page); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	_, out, _ := agbox(t, "", "help", "spec")
	for _, want := range []string{"post_create (list of text)\n      Commands that run once", "idle_ttl", "healthcheck"} {
		if !strings.Contains(out, want) {
			t.Errorf("the topic has no %q", want)
		}
	}
	if strings.Contains(out, "|---") || strings.Contains(out, "```") {
		t.Error("the topic has marks of Markdown")
	}
}

func TestEachCommandHasAManualPage(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "share", "man1") // which is made
	if code, out, errs := agbox(t, "", "man", "--dir", dir); code != 0 || out != "" || errs != "" {
		t.Fatalf("code %d, %q, %q", code, out, errs)
	}
	everyCommand(newCLI(t, "").rootCommand(), nil, func(cmd *cobra.Command, words []string) {
		page, err := os.ReadFile(filepath.Join(dir, strings.Join(append([]string{"agbox"}, words...), "-")+".1"))
		if err != nil {
			t.Error(err)
			return
		}
		if !strings.HasPrefix(string(page), ".TH AGBOX") || !strings.Contains(string(page), "\n.SH NAME\n") {
			t.Errorf("%v: %.200s", words, page)
		}
		for line := range strings.Lines(string(page)) {
			word, _, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
			if strings.HasPrefix(line, "'") || strings.HasPrefix(line, ".") && !slices.Contains([]string{".TH", ".SH", ".TP", ".B", ".BR", ".nf", ".fi"}, word) {
				t.Errorf("%v: text is a request: %s", words, line)
			}
		}
	})
	_, out, _ := agbox(t, "", "man", "daemon", "stop")
	for _, want := range []string{".TH AGBOX\\-DAEMON\\-STOP 1 \"\" \"agbox v-test\" \"agbox\"\n", "\n.B agbox daemon stop\n", "\n.B \\-\\-socket PATH\n", "\n.BR agbox\\-daemon (1)\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in %s", want, out)
		}
	}
	for words, want := range map[string]int{"man nosuch": codeUsage, "man ls more": codeUsage, "man ls --dir /x": codeUsage, "man --dir /dev/null/folder": codeFailure} {
		if code, out, errs := agbox(t, "", strings.Fields(words)...); code != want || out != "" {
			t.Errorf("%s: code %d, %q, %q", words, code, out, errs)
		}
	}
}

func TestACommandThatIsMadeAloneIsTheSame(t *testing.T) {
	c := newCLI(t, "")
	whole := c.rootCommand()
	for _, one := range c.commands() {
		alone := c.rootCommand(one.name, "--help")
		if n := len(whole.Commands()) - len(alone.Commands()); n != len(c.commands())-1 && one.name != "man" {
			t.Errorf("%s is made with others: %d are missing", one.name, n)
		}
		want, _, errs := whole.Find([]string{one.name})
		got, _, err := alone.Find([]string{one.name})
		if err = cmp.Or(err, errs); err != nil {
			t.Error(err)
		} else if want, got := want.Short+want.UsageString(), got.Short+got.UsageString(); got != want {
			t.Errorf("%s alone:\n%s\nwant\n%s", one.name, got, want)
		}
	}
}

func TestTextOfAManualPageIsNoRequest(t *testing.T) {
	for line, want := range map[string]string{`.SH`: `\&.SH`, `'x`: `\&'x`, `a\n-b`: `a\en\-b`, ``: ``} {
		if got := roff(line); got != want {
			t.Errorf("%q: %q, want %q", line, got, want)
		}
	}
}

// pageOfCommands is the quick reference.
const pageOfCommands = "../../docs/cli.md"

func TestThePageOfCommandsNamesNoneThatDoesNotExist(t *testing.T) {
	page, err := os.ReadFile(pageOfCommands)
	if err != nil {
		t.Fatal(err)
	}
	root := newCLI(t, "").rootCommand()
	root.InitDefaultCompletionCmd()
	code, flag := regexp.MustCompile("`([^`]+)`"), regexp.MustCompile(`(^| )-(-[a-z-]+|[a-zA-Z]+)`)
	named, rows := make(map[string]bool), 0
	for line := range strings.Lines(string(page)) {
		if !strings.HasPrefix(line, "|") {
			continue
		}
		rows++
		var commands []*cobra.Command
		for _, found := range code.FindAllStringSubmatch(line, -1) {
			if words, ok := strings.CutPrefix(found[1], "agbox "); ok {
				cmd, rest, err := root.Find(strings.Fields(words))
				if err != nil || !cmd.HasParent() || len(rest) > 0 && strings.ToLower(rest[0]) == rest[0] && rest[0] != "--" {
					t.Errorf("there is no %s: %v", found[1], err)
					continue
				}
				commands = append(commands, cmd)
				for ; cmd.HasParent(); cmd = cmd.Parent() {
					named[cmd.CommandPath()] = true
				}
				continue
			}
			with := commands
			if of, _, ok := strings.Cut(found[1], " -"); ok && !strings.HasPrefix(of, "-") { // of one command
				with = slices.DeleteFunc(slices.Clone(commands), func(cmd *cobra.Command) bool { return cmd.Name() != of })
			}
			for _, text := range flag.FindAllStringSubmatch(found[1], -1) {
				for _, name := range flagsIn(text[2]) {
					if len(with) == 0 || slices.ContainsFunc(with, func(cmd *cobra.Command) bool { return !hasFlag(cmd, name) }) {
						t.Errorf("not each command has the flag %q of %s: %s", name, found[1], line)
					}
				}
			}
		}
	}
	if rows > 60 {
		t.Errorf("the table has %d lines", rows)
	}
	for _, cmd := range root.Commands() {
		if cmd.IsAvailableCommand() && cmd.Name() != "help" && !named[cmd.CommandPath()] {
			t.Errorf("%s is missing", cmd.CommandPath())
		}
	}
}

// flagsIn splits what follows the first dash: "-image" is one long flag, "it" are two short ones.
func flagsIn(text string) []string {
	if strings.HasPrefix(text, "-") {
		return []string{text[1:]}
	}
	return strings.Split(text, "")
}

func hasFlag(cmd *cobra.Command, name string) bool {
	if len(name) == 1 {
		return cmd.Flags().ShorthandLookup(name) != nil
	}
	return cmd.Flags().Lookup(name) != nil
}
