package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

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

func TestTextOfAManualPageIsNoRequest(t *testing.T) {
	for line, want := range map[string]string{`.SH`: `\&.SH`, `'x`: `\&'x`, `a\n-b`: `a\en\-b`, ``: ``} {
		if got := roff(line); got != want {
			t.Errorf("%q: %q, want %q", line, got, want)
		}
	}
}
