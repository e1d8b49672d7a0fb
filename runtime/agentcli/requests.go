package agentcli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/agbox/agbox/agents/gate"
)

// Exit codes. 2 is what hooks of coding agents take for "block this call".
const (
	exitOK      = 0
	exitFailed  = 1
	exitFenced  = 2
	exitUnknown = 3
	exitRefused = 4
	exitWait    = 10
	exitDie     = 11
	exitReplan  = 12
	exitDrain   = 75
)

// noArguments refuses arguments.
func noArguments(args []string) (map[string]any, error) {
	if len(args) > 0 {
		return nil, fmt.Errorf("%q is too much: the command has no arguments", args[0])
	}
	return map[string]any{}, nil
}

// shown shows a result of a shape.
func shown[Shape any](show func(got Shape, stdout io.Writer) error) func(json.RawMessage, io.Writer) error {
	return func(result json.RawMessage, stdout io.Writer) error {
		var got Shape
		if err := json.Unmarshal(result, &got); err != nil {
			return err
		}
		return show(got, stdout)
	}
}

// showChildren prints a line with id, state, name and message for each child.
func showChildren(got gate.Children, stdout io.Writer) error {
	for _, c := range got.Children {
		line := strings.Join([]string{c.AgentID, c.State, c.Name, strings.Join(strings.Fields(c.Message), " ")}, "\t")
		if _, err := fmt.Fprintln(stdout, line); err != nil {
			return err
		}
	}
	return nil
}

// showResult prints the result of an answer.
func showResult(show func(json.RawMessage, io.Writer) error, answer []byte, stdout io.Writer) error {
	var got struct {
		Result json.RawMessage `json:"result"`
	}
	if err := json.Unmarshal(answer, &got); err != nil {
		return err
	}
	return show(got.Result, stdout)
}

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

// messages is the answer to recv. What a message has is not looked at.
type messages struct {
	Messages []json.RawMessage `json:"messages"`
}

// showMessages prints each message as a JSON object on a line.
func showMessages(got messages, stdout io.Writer) error {
	for _, m := range got.Messages {
		if _, err := fmt.Fprintf(stdout, "%s\n", m); err != nil {
			return err
		}
	}
	return nil
}

// maxText is more than the text of any request may have, in bytes.
const maxText = 64 << 10

// parseSend makes a request of the arguments of the command send. With - for the text it is
// the content of stdin.
func parseSend(args []string, stdin io.Reader) (request map[string]any, body []byte, err error) {
	request = map[string]any{"op": "send"}
	for ; len(args) > 0 && strings.HasPrefix(args[0], "--"); args = args[2:] {
		switch {
		case args[0] != "--key" && args[0] != "--stream":
			return nil, nil, fmt.Errorf("send has no flag %q; \"agbox-agent help\" shows them", args[0])
		case len(args) == 1:
			return nil, nil, fmt.Errorf("%s needs a value", args[0])
		}
		request[args[0][2:]] = args[1]
	}
	if request["stream"] == nil && len(args) > 0 {
		request["to"], args = args[0], args[1:]
	}
	if len(args) != 1 {
		return nil, nil, errors.New("send needs TO or --stream, and one TEXT; \"agbox-agent help\" shows them")
	}
	request["text"] = args[0]
	if args[0] == "-" {
		text, err := io.ReadAll(io.LimitReader(stdin, maxText+1))
		if err != nil {
			return nil, nil, err
		}
		if len(text) > maxText {
			return nil, nil, fmt.Errorf("a message has at most %d bytes", maxText)
		}
		request["text"] = string(text)
	}
	return request, nil, nil
}

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
func showPhase(got gate.Phase, stdout io.Writer) error {
	_, err := fmt.Fprintln(stdout, got.Phase)
	return err
}

// asksToReplan reports whether an agent has to plan anew that was to go on as it was.
func asksToReplan(request map[string]any, answer []byte) bool {
	var got struct {
		Result gate.Phase `json:"result"`
	}
	return request["op"] == "resumed" && request["how"] == "ok" && json.Unmarshal(answer, &got) == nil && got.Result.Phase == "PLANNING"
}

// parseEscalate makes a message to the parent of the arguments of "escalate".
func parseEscalate(args []string, stdin io.Reader) (request map[string]any, body []byte, err error) {
	if len(args) == 0 || strings.HasPrefix(args[0], "--") && len(args) < 3 {
		return nil, nil, errors.New("escalate needs a TEXT")
	}
	last := len(args) - 1
	return parseSend(append(slices.Clone(args[:last]), "parent", args[last]), stdin)
}

// parseStream makes the fields of the request of the arguments of the commands open and close.
func parseStream(args []string) (map[string]any, error) {
	if len(args) != 1 {
		return nil, fmt.Errorf("it takes one STREAM and has %d arguments", len(args))
	}
	return map[string]any{"stream": args[0]}, nil
}

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

// showAcquired prints a line with resource, mode and fencing number for each lease. Verdicts
// other than GRANTED are an exitError.
func showAcquired(got gate.Acquired, stdout io.Writer) error {
	for _, l := range got.Leases.Leases {
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

// exitError is an answer that is no refusal and has an exit code of its own.
type exitError struct {
	code    int
	message string
}

func (e *exitError) Error() string { return e.message }
