package agentcli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// maxObservation bounds an observation, in bytes.
const maxObservation = 1 << 20

// observation reads what changed while the agent was paused, and returns its number; 0 if
// there is none.
func (h *hydrated) observation(name string) (uint64, error) {
	if name == "" {
		return 0, nil
	}
	raw, err := readUpTo(name, maxObservation)
	if err != nil {
		return 0, err
	}
	var o struct {
		Observation uint64 `json:"observation"`
	}
	if err := json.Unmarshal(raw, &o); err != nil {
		return 0, err
	}
	if o.Observation == 0 {
		return 0, errors.New("it has no number")
	}
	h.Observation = raw
	return o.Observation, nil
}

// acknowledge reports that an observation was taken.
func acknowledge(ctx context.Context, env []string, number uint64, stderr io.Writer) int {
	got, _, err := ask(ctx, variable(env, "AGBOX_AGENT_SOCKET"), map[string]any{
		"op": "observed", "observation": number, "token": variable(env, "AGBOX_TOKEN"),
	}, nil)
	switch {
	case err != nil:
		_, _ = fmt.Fprintln(stderr, "agbox-agent: The supervisor cannot be told that the observation was taken:", err)
		return exitFailed
	case !got.OK && got.Error.Code != "UNKNOWN_OP": // an older supervisor needs no report
		_, _ = fmt.Fprintln(stderr, "agbox-agent:", got.Error.Message)
		return exitCode(got.Error.Code)
	}
	return exitOK
}
