package journal

import (
	"slices"
	"strings"
)

// Seen is how files and limits are at a time.
type Seen struct {
	// Files has files by their paths.
	Files map[string]File `json:"files"`
	// Limits has the limits of the control group, by what they limit: cpu, memory, pids.
	Limits map[string]string `json:"limits"`
}

// File is a file as it was seen. It is comparable.
type File struct {
	// Exists is false also if the path leads to no regular file.
	Exists bool  `json:"exists"`
	Size   int64 `json:"size,omitempty"`
	// Modified is in nanoseconds since 1970.
	Modified int64  `json:"mtime_ns,omitempty"`
	Inode    uint64 `json:"inode,omitempty"`
	// Sum is the SHA-256 of the content in hexadecimal digits; empty for large files.
	Sum string `json:"sha256,omitempty"`
}

// ValidStream reports whether a name has the form of the names of streams: 1 to 63 of the
// letters a to z, digits, dots, dashes and underscores, and first a letter or a digit. A
// regular expression of that length would take 50 KB of every supervisor.
func ValidStream(name string) bool {
	const signs = "_.-"
	if name == "" || len(name) > 63 || strings.IndexByte(signs, name[0]) >= 0 {
		return false
	}
	for _, c := range []byte(name) {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && strings.IndexByte(signs, c) < 0 {
			return false
		}
	}
	return true
}

// The bounds of a message, in bytes.
const (
	// MaxMessage bounds the text of a message. A row has less room for it.
	MaxMessage = 64 << 10
	// maxAddress bounds the recipient and the key.
	maxAddress = 200
)

// textBound is the bound of the text of a report, in bytes.
func textBound(op string) int {
	if op == Send {
		return MaxMessage
	}
	return MaxText
}

// checkSend checks the row of a message. Whether the recipient exists is decided by the
// daemon.
func checkSend(r Row) error {
	switch {
	case (r.To == "") == (r.Stream == ""):
		return refuse("A message needs one recipient: \"to\" is the name or the id of an agent, \"parent\" or \"init\"; \"stream\" is the name of a stream.")
	case r.Stream != "" && !ValidStream(r.Stream):
		return refuse("A stream has a name of at most 63 lower-case letters, digits, dots, dashes and underscores, and not %.80q.", r.Stream)
	case r.Text == "":
		return refuse("A message needs a text.")
	case len(r.To) > maxAddress || !printable(r.To) || len(r.Key) > maxAddress || !printable(r.Key):
		return refuse("The recipient and the key of a message have at most %d bytes of UTF-8 and no control characters.", maxAddress)
	}
	return nil
}

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
