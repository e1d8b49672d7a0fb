package agentcli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"
)

// parseRecv makes the fields of the request of the arguments of the command recv.
func parseRecv(args []string) (map[string]any, error) {
	fields := map[string]any{}
	if len(args) > 0 && args[0] == "--no-wait" {
		fields["no_wait"], args = true, args[1:]
	}
	if len(args) > 1 && args[0] == "--timeout" {
		d, err := time.ParseDuration(args[1])
		if err != nil || d <= 0 {
			return nil, fmt.Errorf("%q is no time, for example 30s", args[1])
		}
		fields["timeout_ms"], args = max(d.Milliseconds(), 1), args[2:]
	}
	switch len(args) {
	case 0:
		return fields, nil
	case 1:
		after, err := strconv.ParseUint(args[0], 10, 64)
		if err != nil {
			return nil, fmt.Errorf("%q is no number of a message", args[0])
		}
		fields["after"] = after
		return fields, nil
	}
	return nil, errors.New("recv takes --no-wait or --timeout TIME, and one number; \"agbox-agent help\" shows them")
}

// showMessages prints each message as a JSON object on a line.
func showMessages(result json.RawMessage, stdout io.Writer) error {
	var got struct {
		Messages []json.RawMessage `json:"messages"`
	}
	if err := json.Unmarshal(result, &got); err != nil {
		return err
	}
	for _, m := range got.Messages {
		if _, err := fmt.Fprintf(stdout, "%s\n", m); err != nil {
			return err
		}
	}
	return nil
}
