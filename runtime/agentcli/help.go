package agentcli

import (
	"slices"
	"strings"
)

func isHelp(arg string) bool { return arg == "-h" || arg == "--help" }

// asksForHelp reports whether the arguments of a command have -h or --help. What follows -- is a
// program's, and the words of commands that take a text may be anything after the first one.
func asksForHelp(args []string) bool {
	command, rest := args[0], args[1:]
	if at := slices.Index(rest, "--"); at >= 0 {
		rest = rest[:at]
	} else if slices.Contains([]string{"spawn", "tool", "say", "send", "escalate", "error", "done", "pause", "api"}, command) {
		rest = rest[:min(len(rest), 1)]
	}
	return slices.ContainsFunc(rest, isHelp)
}

// helpOf returns what the help says about a command. It is empty if there is no such command.
func helpOf(command string) string {
	const begin = "  agbox-agent "
	var text strings.Builder
	in := false
	for line := range strings.Lines(help) {
		if usage, begins := strings.CutPrefix(line, begin); begins {
			in = strings.HasPrefix(usage, command+" ") || strings.Contains(usage, ", "+command+" ")
		} else if strings.TrimSpace(line) == "" {
			in = false
		}
		if in {
			text.WriteString(line)
		}
	}
	return text.String()
}
