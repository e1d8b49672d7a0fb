package agentcli

import (
	"errors"
	"fmt"
	"io"
	"strings"
)

// maxText is more than the text of any request may have, in bytes.
const maxText = 64 << 10

// parseSend makes a request of the arguments of the command send. With - for the text it is
// the content of stdin.
func parseSend(args []string, stdin io.Reader) (map[string]any, error) {
	request := map[string]any{"op": "send"}
	for ; len(args) > 0 && strings.HasPrefix(args[0], "--"); args = args[2:] {
		switch {
		case args[0] != "--key" && args[0] != "--stream":
			return nil, fmt.Errorf("send has no flag %q; \"agbox-agent help\" shows them", args[0])
		case len(args) == 1:
			return nil, fmt.Errorf("%s needs a value", args[0])
		}
		request[args[0][2:]] = args[1]
	}
	if request["stream"] == nil && len(args) > 0 {
		request["to"], args = args[0], args[1:]
	}
	if len(args) != 1 {
		return nil, errors.New("send needs TO or --stream, and one TEXT; \"agbox-agent help\" shows them")
	}
	request["text"] = args[0]
	if args[0] == "-" {
		text, err := io.ReadAll(io.LimitReader(stdin, maxText+1))
		if err != nil {
			return nil, err
		}
		if len(text) > maxText {
			return nil, fmt.Errorf("a message has at most %d bytes", maxText)
		}
		request["text"] = string(text)
	}
	return request, nil
}
