package agentcli

import "fmt"

// parseStream makes the fields of the request of the arguments of the commands open and close.
func parseStream(args []string) (map[string]any, error) {
	if len(args) != 1 {
		return nil, fmt.Errorf("it takes one STREAM and has %d arguments", len(args))
	}
	return map[string]any{"stream": args[0]}, nil
}
