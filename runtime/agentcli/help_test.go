package agentcli

import (
	"bytes"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestEveryCommandTakesHelp: it prints what the help says about the command, and asks for nothing.
// Without a socket, another command fails.
func TestEveryCommandTakesHelp(t *testing.T) {
	commands := slices.Concat(slices.Collect(maps.Keys(arguments)), slices.Collect(maps.Keys(requestCommands)),
		[]string{"gate", "tool", "checkpoint", "hydrate", "error", "escalate", "send", "serve-health", "api"})
	named := make(map[string]bool)
	listed, _, _ := strings.Cut(help, "\nExit codes:")
	for _, m := range regexp.MustCompile(`(?m)(?:^  agbox-agent |, )([a-z-]+) `).FindAllStringSubmatch(listed, -1) {
		named[m[1]] = true
	}
	for _, command := range commands {
		if !named[command] {
			t.Errorf("the help does not have %s", command)
		}
		for _, line := range []string{command + " --help", command + " -h"} {
			var out, errs bytes.Buffer
			code := Run(t.Context(), strings.Fields(line), nil, strings.NewReader(""), &out, &errs)
			if code != 0 || errs.Len() > 0 || !strings.Contains(out.String(), command+" ") || strings.Contains(out.String(), "Exit codes") {
				t.Errorf("%s: code %d, %q, %q", line, code, &out, &errs)
			}
		}
	}
}

func TestHelpIsTakenOnlyFromTheCommandItself(t *testing.T) {
	for line, want := range map[string]bool{
		"acquire db --help": true, "acquire --wait -h": true, "release -h": true, "recv --no-wait --help": true, "spawn --help": true,
		"spawn --name x -- git --help": false, "tool git -- git -h": false, "spawn git --help": false,
		"say tell --help": false, "send init --help": false, "acquire help": false,
	} {
		if got := asksForHelp(strings.Fields(line)); got != want {
			t.Errorf("%s: %v", line, got)
		}
	}
	if _, err := parseAcquire([]string{"--exlusive", "db"}); err == nil {
		t.Error("a flag that does not exist is a resource")
	}
}
