package journal

import (
	"encoding/json"
	"fmt"

	"github.com/containerd/errdefs"
)

// LastBeat is the record of the newest beat of an incarnation, in a file of its own, which
// outlives the container. It is rewritten every heartbeat.durable of the agent.
type LastBeat struct {
	// At is in milliseconds since 1970.
	At int64 `json:"at"`
	// Lifecycle is the state at the beat.
	Lifecycle string `json:"state"`
}

// Encode returns the record as JSON.
func (b LastBeat) Encode() ([]byte, error) { return json.Marshal(b) }

// ReadLastBeat reads a record that root in the sandbox may have forged.
func ReadLastBeat(raw []byte) (b LastBeat, err error) {
	if err := json.Unmarshal(raw, &b); err != nil {
		return LastBeat{}, fmt.Errorf("the record of a beat is damaged: %w: %w", errdefs.ErrDataLoss, err)
	}
	if _, known := follows[b.Lifecycle]; b.At < 0 || b.At > maxCount || !known && b.Lifecycle != Terminated {
		return LastBeat{}, fmt.Errorf("the record of a beat has values that nobody reports: %w", errdefs.ErrDataLoss)
	}
	return b, nil
}
