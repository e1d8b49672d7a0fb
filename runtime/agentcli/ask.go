package agentcli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
)

// exitError is an answer that is no refusal and has an exit code of its own.
type exitError struct {
	code    int
	message string
}

func (e *exitError) Error() string { return e.message }

// parseAcquire makes the manifest of "acquire [--wait] [--shared|--exclusive] RESOURCE...".
// A mode holds for the resources after it.
func parseAcquire(args []string) (map[string]any, error) {
	mode := "exclusive"
	manifest, request := []map[string]string{}, map[string]any{}
	for _, arg := range args {
		switch arg {
		case "--wait":
			request["wait"] = true
		case "--shared", "--exclusive":
			mode = arg[2:]
		default:
			if strings.HasPrefix(arg, "-") {
				return nil, fmt.Errorf("acquire has no flag %q; \"agbox-agent help\" shows them", arg)
			}
			manifest = append(manifest, map[string]string{"resource": arg, "mode": mode})
		}
	}
	if len(manifest) == 0 {
		return nil, errors.New("acquire needs a RESOURCE, for example file:/workspace/main.go")
	}
	request["manifest"] = manifest
	return request, nil
}

// parseRelease makes the request of "release [RESOURCE...]".
func parseRelease(args []string) (map[string]any, error) {
	return map[string]any{"resources": args}, nil
}

// askUntil asks, and asks again for leases as often as the agent was woken meanwhile. What
// changed while it was paused goes to stderr as a line of JSON: so the program has taken it.
func askUntil(ctx context.Context, socket string, request map[string]any, body []byte, stderr io.Writer) (answer, []byte, error) {
	for {
		got, raw, err := ask(ctx, socket, request, body)
		if err != nil || !got.OK || request["op"] != "acquire" {
			return got, raw, err
		}
		var changed struct {
			Result struct {
				Verdict     string          `json:"verdict"`
				Observation json.RawMessage `json:"observation"`
			} `json:"result"`
		}
		var number struct {
			Observation uint64 `json:"observation"`
		}
		if json.Unmarshal(raw, &changed) != nil || changed.Result.Verdict != "OBSERVE" {
			return got, raw, nil
		}
		if err := json.Unmarshal(changed.Result.Observation, &number); err != nil {
			return got, raw, err
		}
		if _, err := fmt.Fprintf(stderr, "%s\n", bytes.TrimSpace(changed.Result.Observation)); err != nil {
			return got, raw, err // nobody has taken it
		}
		request["observation"] = number.Observation
	}
}

// showAcquired prints a line with resource, mode and fencing number for each lease. Verdicts
// other than GRANTED are an exitError.
func showAcquired(result json.RawMessage, stdout io.Writer) error {
	var got struct {
		Verdict string `json:"verdict"`
		Message string `json:"message"`
		Leases  []struct {
			Resource string `json:"resource"`
			Mode     string `json:"mode"`
			Fence    uint64 `json:"fence"`
		} `json:"leases"`
	}
	if err := json.Unmarshal(result, &got); err != nil {
		return err
	}
	for _, l := range got.Leases {
		if _, err := fmt.Fprintf(stdout, "%s\t%s\t%d\n", l.Resource, l.Mode, l.Fence); err != nil {
			return err
		}
	}
	switch got.Verdict {
	case "WAIT":
		return &exitError{exitWait, got.Message}
	case "DIE":
		return &exitError{exitDie, got.Message}
	}
	return nil
}

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
