package agentcli

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/agbox/agbox/agents/checkpoint"
)

// parseCheckpoint makes a request of the arguments of "checkpoint". The state is the content
// of a file, or of stdin.
func parseCheckpoint(args []string, stdin io.Reader) (request map[string]any, state []byte, err error) {
	request = map[string]any{}
	for len(args) > 0 && strings.HasPrefix(args[0], "--") {
		if len(args) == 1 {
			return nil, nil, fmt.Errorf("%s needs a value", args[0])
		}
		switch name, value := args[0], args[1]; name {
		case "--turn", "--step":
			n, err := strconv.ParseUint(value, 10, 64)
			if err != nil {
				return nil, nil, fmt.Errorf("%q is no number", value)
			}
			request[name[2:]] = n
		case "--kind", "--resume-point":
			request[strings.ReplaceAll(name[2:], "-", "_")] = value
		default:
			return nil, nil, fmt.Errorf("checkpoint has no option %s; it has --kind, --turn, --step and --resume-point", name)
		}
		args = args[2:]
	}
	if len(args) > 1 {
		return nil, nil, fmt.Errorf("checkpoint takes one FILE and has %d", len(args))
	}
	if state, err = readState(append(args, "-")[0], stdin); err != nil {
		return nil, nil, err
	}
	request["bytes"] = len(state)
	return request, state, nil
}

// parseTurn makes a request of the arguments of "turn", which can have a checkpoint with it.
func parseTurn(args []string, stdin io.Reader) (request map[string]any, state []byte, err error) {
	file := ""
	if len(args) > 0 && args[0] == "--checkpoint" {
		if len(args) == 1 {
			return nil, nil, errors.New("--checkpoint needs a FILE; - is standard input")
		}
		file, args = args[1], args[2:]
	}
	if request, err = positional("turn", args, 0, "context_pct"); err != nil || file == "" {
		return request, nil, err
	}
	if state, err = readState(file, stdin); err != nil {
		return nil, nil, err
	}
	if request["bytes"] = len(state); len(state) == 0 { // it would be a turn without one
		return nil, nil, errors.New("the checkpoint is empty: it is a JSON object")
	}
	return request, state, nil
}

// readState reads the state of a checkpoint from a file; - is stdin.
func readState(file string, stdin io.Reader) ([]byte, error) {
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return nil, err
		}
		defer func() { _ = f.Close() }()
		stdin = f
	}
	state, err := io.ReadAll(io.LimitReader(stdin, checkpoint.MaxState+1))
	if err == nil && len(state) > checkpoint.MaxState {
		err = fmt.Errorf("the state has more than %d bytes, which is the limit: save less, for example names of files", checkpoint.MaxState)
	}
	return state, err
}

// parseGate makes a request of the arguments of the command gate.
func parseGate(args []string) (map[string]any, error) {
	request := map[string]any{}
	for ; len(args) > 0 && strings.HasPrefix(args[0], "--"); args = args[1:] {
		switch args[0] {
		case "--llm":
			request["kind"] = "llm"
		case "--final":
			request["final"] = true
		case "--context":
			if len(args) == 1 {
				return nil, errors.New("--context needs a PERCENT")
			}
			pct, err := percent(args[1])
			if err != nil {
				return nil, err
			}
			request["context_pct"], args = pct, args[1:]
		default:
			return nil, fmt.Errorf("gate has no flag %q; \"agbox-agent help\" shows them", args[0])
		}
	}
	if request["kind"] == "llm" {
		return request, addEstimate(request, args)
	}
	if len(args) != 1 {
		return nil, fmt.Errorf("gate needs the name of one TOOL and has %d arguments; \"agbox-agent help\" shows them", len(args))
	}
	request["tool"] = args[0]
	return request, nil
}

// addEstimate adds what the call to a model will use.
func addEstimate(request map[string]any, args []string) error {
	if request["final"] == true || len(args) > 2 {
		return errors.New("gate --llm has at most two arguments, INPUT and USD, and no --final; \"agbox-agent help\" shows them")
	}
	if len(args) == 0 {
		return nil
	}
	tokens, err := strconv.ParseUint(args[0], 10, 64)
	if err != nil {
		return fmt.Errorf("%q is no number", args[0])
	}
	estimate := map[string]any{"input_tokens": tokens}
	if len(args) == 2 {
		estimate["cost_usd"] = args[1]
	}
	request["estimate"] = estimate
	return nil
}

// percent reads a percentage.
func percent(text string) (float64, error) {
	pct, err := strconv.ParseFloat(strings.TrimSuffix(text, "%"), 64)
	if err != nil || math.IsNaN(pct) || math.IsInf(pct, 0) {
		return 0, fmt.Errorf("%q is no percentage", text)
	}
	return pct, nil
}

// parseError makes a request of the arguments of the command error.
func parseError(args []string) (map[string]any, error) {
	request := map[string]any{}
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

// positional makes a request whose fields are the arguments, of which the first are needed.
func positional(command string, args []string, needed int, names ...string) (map[string]any, error) {
	if len(args) < needed || len(args) > len(names) {
		return nil, fmt.Errorf("%s needs %d to %d arguments and has %d; \"agbox-agent help\" shows them", command, needed, len(names), len(args))
	}
	request := map[string]any{}
	for i, text := range args {
		switch name := names[i]; name {
		case "input_tokens", "output_tokens", "steps":
			n, err := strconv.ParseUint(text, 10, 64)
			if err != nil {
				return nil, fmt.Errorf("%q is no number", text)
			}
			request[name] = n
		case "context_pct":
			pct, err := percent(text)
			if err != nil {
				return nil, err
			}
			request[name] = pct
		default:
			request[name] = text
		}
	}
	return request, nil
}
