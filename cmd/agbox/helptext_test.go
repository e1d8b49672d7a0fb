package main

import (
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
