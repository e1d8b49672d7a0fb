package agentcli

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"github.com/agbox/agbox/agents/gate"
)

// exitCode is that of a refusal.
func exitCode(code string) int {
	switch code {
	case "UNKNOWN_OP", "WRONG_TOKEN", "WRONG_CALLER":
		return exitUnknown
	case "FENCED", "BUDGET_EXHAUSTED", "PAUSED", "PLANNING", "ACQUIRING":
		return exitFenced
	case "DRAINING":
		return exitDrain
	}
	return exitRefused
}

// answer is the answer of the supervisor.
type answer struct {
	OK bool `json:"ok"`
	// Drain: save the work and exit. DeadlineMs is what is left for the step under way.
	Drain      bool  `json:"drain"`
	DeadlineMs int64 `json:"deadline_ms"`
	// Checkpoint: it was silent for too long, and should save a checkpoint.
	Checkpoint bool `json:"checkpoint"`
	Result     struct {
		Notice string `json:"notice"`
		// Stored is the number of the checkpoint that a turn has saved; 0 if it came without one.
		Stored *uint64 `json:"stored"`
	} `json:"result"`
	Error struct {
		Code    string `json:"code"`
		Message string `json:"message"`
	} `json:"error"`
}

// session is what a command of an incarnation has.
type session struct {
	socket, token  string
	env            []string
	stdout, stderr io.Writer
}

// ask sends a request with its body and returns its answer, also as it came.
func (s session) ask(ctx context.Context, request map[string]any, body []byte) (got answer, raw []byte, err error) {
	request["token"] = s.token
	var line bytes.Buffer
	enc := json.NewEncoder(&line)
	enc.SetEscapeHTML(false) // a line is bounded
	if err := enc.Encode(request); err != nil {
		return got, nil, err
	}
	until := time.Now().Add(timeout)
	if op, _ := request["op"].(string); gate.ByDaemon(op) {
		until = time.Time{} // the daemon may be away, or wait for something
	} else {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, until)
		defer cancel()
	}
	c, err := new(net.Dialer).DialContext(ctx, "unix", s.socket)
	if err != nil {
		return got, nil, err
	}
	defer func() { _ = c.Close() }()
	if err := c.SetDeadline(until); err != nil {
		return got, nil, err
	}
	defer context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })()
	_, sent := c.Write(append(line.Bytes(), body...))
	// The supervisor may have refused before it read everything; then its answer says why.
	if raw, err = bufio.NewReader(c).ReadBytes('\n'); err != nil {
		return got, nil, errors.Join(sent, err)
	}
	return got, raw, json.Unmarshal(raw, &got)
}

// askUntil asks, and asks again for leases as often as the agent was woken meanwhile. What
// changed while it was paused goes to stderr as a line of JSON: so the program has taken it.
func (s session) askUntil(ctx context.Context, request map[string]any, body []byte) (answer, []byte, error) {
	for {
		got, raw, err := s.ask(ctx, request, body)
		if err != nil || !got.OK || request["op"] != "acquire" {
			return got, raw, err
		}
		var changed struct {
			Result gate.Acquired `json:"result"`
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
		if _, err := fmt.Fprintf(s.stderr, "%s\n", bytes.TrimSpace(changed.Result.Observation)); err != nil {
			return got, raw, err // nobody has taken it
		}
		request["observation"] = number.Observation
	}
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

// timeout bounds a report, which waits for the disk of the host.
const timeout = 30 * time.Second

// variable returns the value of a variable.
func variable(env []string, key string) string {
	for _, entry := range env {
		if value, ok := strings.CutPrefix(entry, key+"="); ok {
			return value
		}
	}
	return ""
}

func parseAPI(args []string) (map[string]any, error) {
	if len(args) == 0 || len(args) > 2 {
		return nil, errors.New("api needs an OP and, if the OP does, a JSON object")
	}
	request := map[string]any{}
	if len(args) == 2 {
		if err := json.Unmarshal([]byte(args[1]), &request); err != nil || request == nil {
			return nil, fmt.Errorf("%q is no JSON object", args[1])
		}
	}
	request["op"] = args[0]
	return request, nil
}
