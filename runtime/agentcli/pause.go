package agentcli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// parsePause makes the fields of the request of the arguments of "pause".
func parsePause(args []string) (map[string]any, error) {
	if len(args) == 0 || len(args) > 2 {
		return nil, fmt.Errorf("pause needs approval or idle, and at most one MESSAGE; it has %d arguments", len(args))
	}
	fields := map[string]any{"reason": args[0]}
	if len(args) == 2 {
		fields["message"] = args[1]
	}
	return fields, nil
}

// parseResumed makes the fields of the request of the arguments of "resumed".
func parseResumed(args []string) (map[string]any, error) {
	if len(args) != 2 || !slices.Contains([]string{"ok", "replan"}, args[0]) {
		return nil, errors.New("resumed needs ok or replan, and the number of the OBSERVATION")
	}
	number, err := strconv.ParseUint(args[1], 10, 64)
	if err != nil {
		return nil, fmt.Errorf("%q is no number of an observation", args[1])
	}
	return map[string]any{"how": args[0], "observation": number}, nil
}

// showRaw prints a result as one line of JSON.
func showRaw(result json.RawMessage, stdout io.Writer) error {
	_, err := fmt.Fprintln(stdout, string(result))
	return err
}

// showPhase prints the phase in which the agent goes on.
func showPhase(result json.RawMessage, stdout io.Writer) error {
	var got struct {
		Phase string `json:"phase"`
	}
	if err := json.Unmarshal(result, &got); err != nil {
		return err
	}
	_, err := fmt.Fprintln(stdout, got.Phase)
	return err
}

// asksToReplan reports whether an agent has to plan anew that was to go on as it was.
func asksToReplan(request map[string]any, answer []byte) bool {
	var got struct {
		Result struct {
			Phase string `json:"phase"`
		} `json:"result"`
	}
	return request["op"] == "resumed" && request["how"] == "ok" && json.Unmarshal(answer, &got) == nil && got.Result.Phase == "PLANNING"
}

// parseEscalate makes a message to the parent of the arguments of "escalate".
func parseEscalate(args []string, stdin io.Reader) (map[string]any, error) {
	if len(args) == 0 || strings.HasPrefix(args[0], "--") && len(args) < 3 {
		return nil, errors.New("escalate needs a TEXT")
	}
	last := len(args) - 1
	return parseSend(append(slices.Clone(args[:last]), "parent", args[last]), stdin)
}
