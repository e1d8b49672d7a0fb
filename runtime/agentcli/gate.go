package agentcli

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// parseGate makes a request of the arguments of the command gate.
func parseGate(args []string) (map[string]any, error) {
	request := map[string]any{"op": "gate"}
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
