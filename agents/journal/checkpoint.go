package journal

import "slices"

// The kinds of checkpoints.
const (
	TurnCheckpoint = "turn"
	StepCheckpoint = "step"
	// PauseCheckpoint is the digest of a pause.
	PauseCheckpoint = "pause"
)

// KeptCheckpoints is how many checkpoints are kept: the newest, and those to fall back to.
const KeptCheckpoints = 5

// Mark is the row of a checkpoint. Its file was on disk before.
type Mark struct {
	// Seq is 1, 2, 3, ... within the agent.
	Seq  uint64 `json:"seq"`
	ID   string `json:"id"`
	Kind string `json:"kind"`
	// CRC32 (IEEE) and Bytes are those of the file.
	CRC32 uint32 `json:"crc32"`
	Bytes uint64 `json:"bytes"`
	// Turn, Step and ResumePoint are the agent's own names for the point of its work.
	Turn        uint64 `json:"turn,omitempty"`
	Step        uint64 `json:"step,omitempty"`
	ResumePoint string `json:"resume_point,omitempty"`
}

// Marks has the newest checkpoints of an incarnation, the newest last. Those before the
// first are zero.
type Marks [KeptCheckpoints]Mark

// Newest is the newest checkpoint. Its Seq is 0 if there is none.
func (m Marks) Newest() Mark { return m[len(m)-1] }

// next returns the marks with one more.
func (m Marks) next(r *Mark) (Marks, error) {
	if err := r.Check(); err != nil {
		return m, err
	}
	if before := m.Newest().Seq; before > 0 && r.Seq != before+1 {
		return m, refuse("Checkpoint %d may not follow checkpoint %d.", r.Seq, before)
	}
	copy(m[:], m[1:])
	m[len(m)-1] = *r
	return m, nil
}

// Check returns a Refusal if a mark has values that none may have.
func (r *Mark) Check() error {
	switch {
	case r == nil, r.Seq == 0, r.Seq > maxCount, r.Bytes > maxCount:
		return refuse("A checkpoint needs a number and a size of at most %d.", uint64(maxCount))
	case r.ID == "" || len(r.ID) > 64 || !printable(r.ID):
		return refuse("The id of a checkpoint has 1 to 64 bytes of UTF-8.")
	case !slices.Contains([]string{TurnCheckpoint, StepCheckpoint, PauseCheckpoint}, r.Kind):
		return refuse("The kind of a checkpoint is %s, %s or %s, not %.32q.", TurnCheckpoint, StepCheckpoint, PauseCheckpoint, r.Kind)
	case r.Turn > maxCount || r.Step > maxCount:
		return refuse("The turn and the step of a checkpoint are at most %d.", uint64(maxCount))
	case len(r.ResumePoint) > MaxText || !printable(r.ResumePoint):
		return refuse("A resume point has at most %d bytes of UTF-8 and no control characters but line ends and tabs.", MaxText)
	}
	return nil
}
