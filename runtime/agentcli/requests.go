package agentcli

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
)

// requestCommand is a command whose op only the daemon decides. Its answer may take long.
type requestCommand struct {
	// parse makes the fields of the request of the arguments.
	parse func(args []string) (map[string]any, error)
	// show prints the result. The error may be an exitError.
	show func(result json.RawMessage, stdout io.Writer) error
}

// requestCommands has these commands by their ops.
var requestCommands = map[string]requestCommand{
	"spawn":    {parseSpawn, showSpawned},
	"children": {noArguments, showChildren},
	"pause":    {parsePause, showRaw},
	"resumed":  {parseResumed, showPhase},
	"recv":     {parseRecv, showMessages},
	"wait":     {parseWait, showChildren},
	"kill":     {parseKill, showNothing},
	"acquire":  {parseAcquire, showAcquired},
	"release":  {parseRelease, showAcquired},
	"open":     {parseStream, showNothing},
	"close":    {parseStream, showNothing},
}

// noArguments refuses arguments.
func noArguments(args []string) (map[string]any, error) {
	if len(args) > 0 {
		return nil, fmt.Errorf("%q is too much: the command has no arguments", args[0])
	}
	return map[string]any{}, nil
}

// showChildren prints a line with id, state, name and message for each child.
func showChildren(result json.RawMessage, stdout io.Writer) error {
	var got struct {
		Children []struct {
			AgentID string `json:"agent_id"`
			Name    string `json:"name"`
			State   string `json:"state"`
			Message string `json:"message"`
		} `json:"children"`
	}
	if err := json.Unmarshal(result, &got); err != nil {
		return err
	}
	for _, c := range got.Children {
		line := strings.Join([]string{c.AgentID, c.State, c.Name, strings.Join(strings.Fields(c.Message), " ")}, "\t")
		if _, err := fmt.Fprintln(stdout, line); err != nil {
			return err
		}
	}
	return nil
}

// showResult prints the result of an answer.
func showResult(command requestCommand, answer []byte, stdout io.Writer) error {
	var got struct {
		Result json.RawMessage `json:"result"`
	}
	if err := json.Unmarshal(answer, &got); err != nil {
		return err
	}
	return command.show(got.Result, stdout)
}
