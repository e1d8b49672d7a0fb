package agentcli

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/agbox/agbox/internal/checkpoint"
)

// parseCheckpoint makes a request of the arguments of "checkpoint". The state is the content
// of a file, or of stdin.
func parseCheckpoint(args []string, stdin io.Reader) (request map[string]any, state []byte, err error) {
	request = map[string]any{"op": "checkpoint"}
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
	switch {
	case len(args) > 1:
		return nil, nil, fmt.Errorf("checkpoint takes one FILE and has %d", len(args))
	case len(args) == 1 && args[0] != "-":
		f, err := os.Open(args[0])
		if err != nil {
			return nil, nil, err
		}
		defer func() { _ = f.Close() }()
		stdin = f
	}
	if state, err = io.ReadAll(io.LimitReader(stdin, checkpoint.MaxState+1)); err != nil {
		return nil, nil, err
	}
	if len(state) > checkpoint.MaxState {
		return nil, nil, fmt.Errorf("the state has more than %d bytes, which is the limit: save less, for example names of files", checkpoint.MaxState)
	}
	request["bytes"] = len(state)
	return request, state, nil
}
