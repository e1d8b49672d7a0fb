package agentcli

import (
	"fmt"
	"io"
)

// orDrain returns exitDrain if the command's answer means that the program is to save its
// work and to exit, else the code. Other commands report something, and are accepted or not
// as ever.
func (a answer) orDrain(code int, command string, stdout io.Writer) int {
	switch {
	case !a.Drain:
	case command == "drained":
		_, _ = fmt.Fprintln(stdout, a.DeadlineMs)
		return exitDrain
	case command == "state" && code == exitRefused, command == "gate" && code == exitOK && a.DeadlineMs == 0:
		return exitDrain
	}
	return code
}
