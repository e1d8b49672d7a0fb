package agentcli

import (
	"errors"
	"fmt"
	"time"
)

// parseError makes a request of the arguments of the command error.
func parseError(args []string) (map[string]any, error) {
	request := map[string]any{"op": "error"}
	if len(args) > 1 && args[0] == "--retry-after" {
		after, err := time.ParseDuration(args[1])
		if err != nil || after < time.Millisecond {
			return nil, fmt.Errorf("%q is no time after which to try again: give one like 30s", args[1])
		}
		request["retry_after_ms"], args = after.Milliseconds(), args[2:]
	}
	if len(args) != 1 {
		return nil, errors.New("error needs one TEXT that says what happened; \"agbox-agent help\" shows its flag")
	}
	request["text"] = args[0]
	return request, nil
}
