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
		case args[0] != "--key":
			return nil, fmt.Errorf("send has no flag %q; \"agbox-agent help\" shows them", args[0])
		case len(args) == 1:
			return nil, errors.New("--key needs a KEY")
		}
		request["key"] = args[1]
	}
	if len(args) != 2 {
		return nil, fmt.Errorf("send needs TO and one TEXT and has %d arguments; \"agbox-agent help\" shows them", len(args))
	}
	request["to"], request["text"] = args[0], args[1]
	if args[1] == "-" {
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
