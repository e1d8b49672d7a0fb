package journal

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"unicode"

	"github.com/agbox/agbox/agents/gate"
)

// The bounds of a journal. A row includes its line end.
const (
	MaxRow     = 64 << 10
	MaxJournal = 64 << 20
	// MaxText bounds what an agent says, and the message of its outcome, in bytes.
	MaxText = 1 << 10
	// MaxName bounds the name of a tool, in bytes.
	MaxName = 256
	// maxCount bounds every number, so that sums over incarnations cannot overflow.
	maxCount = 1 << 50
)

// Row is one report.
type Row struct {
	// At is when it was accepted, in milliseconds since 1970.
	At int64  `json:"at"`
	Op string `json:"op"`
	// State is for State and Phase.
	State string `json:"state,omitempty"`
	// Used is for Usage: what the incarnation has used since its start. For Gate it is what
	// a call to a model is estimated to use.
	Used *Used `json:"used,omitempty"`
	// Steps is for Step: how many steps the incarnation has completed.
	Steps uint64 `json:"steps,omitempty"`
	// Outcome is for Done.
	Outcome string `json:"outcome,omitempty"`
	// Stack is for Error, and so is RetryAfterMS: after which time to try again, in milliseconds. 0
	// leaves that to agbox.
	Stack        string `json:"stack,omitempty"`
	RetryAfterMS uint64 `json:"retry_after_ms,omitempty"`
	// Text is for Say, Error, Done and Send.
	Text string `json:"text,omitempty"`
	// Percent is for Turn, Context and Gate: how full the context is. 0 means that the
	// program did not say so. Context is the word for the context after the row.
	Percent uint32 `json:"context_pct,omitempty"`
	Context string `json:"context,omitempty"`
	// Kind is for Gate, and so is Name, the name of the tool. Final means that the program
	// asked for a final call. Refused means that the budget does not admit the call; calls
	// that the context forbids have no row.
	Kind    string `json:"kind,omitempty"`
	Name    string `json:"name,omitempty"`
	Final   bool   `json:"final,omitempty"`
	Refused bool   `json:"refused,omitempty"`
	// Of Call, beside Kind and Name. Invocation is the program's own id of the call. Reason is
	// why it is to be aborted, or how it failed.
	Phase      string `json:"phase,omitempty"`
	Invocation string `json:"invocation,omitempty"`
	Reason     string `json:"reason,omitempty"`
	// Of the end of a Call: what it gave, as far as it is recorded, and how many bytes that had.
	// ResultBytes is nil if the program gave no result.
	Result      []byte  `json:"result,omitempty"`
	ResultBytes *uint64 `json:"result_bytes,omitempty"`
	// ResultFile is where all of it is, if Result is only the beginning. Nil if that was not kept.
	ResultFile *ResultFile `json:"result_file,omitempty"`
	// Of Send: the recipient as the program named it, or the stream; and the key of the
	// message, if it has one.
	To     string `json:"to,omitempty"`
	Stream string `json:"stream,omitempty"`
	Key    string `json:"key,omitempty"`
	// Mark is for Checkpoint.
	Mark *Mark `json:"checkpoint,omitempty"`
	// Observation is for Observed.
	Observation uint64 `json:"observation,omitempty"`
	// Totals is for Beat.
	Totals *Totals `json:"totals,omitempty"`
	// Seen is for Picture.
	Seen *Seen `json:"seen,omitempty"`
}

// The states of the life of an incarnation.
const (
	Booting    = "BOOTING"
	Hydrating  = "HYDRATING"
	Ready      = "READY"
	Executing  = "EXECUTING"
	Draining   = "DRAINING"
	Terminated = "TERMINATED"
)

// The kinds of calls. Gate is only about the first two.
const (
	// Tool is the call of a tool.
	Tool = "tool"
	// LLM is a call to a model.
	LLM = "llm"
	// Network is any other call to the network.
	Network = "network"
)

// The outcomes that an agent can report.
const (
	Complete = "complete"
	Abort    = "abort"
	Fail     = "fail"
)

// The phases of a call. One that has begun and has not ended may have had its effect.
const (
	Begin = "begin"
	End   = "end"
	// Aborted means that the program was told to abort the call.
	Aborted = "abort"
)

// What a row reports.
const (
	Hello = "hello"
	State = "state"
	Beat  = "beat"
	Usage = "usage"
	Step  = "step"
	Say   = "say"
	// Error is what makes the program end.
	Error = "error"
	Done  = "done"
	// Turn is the end of a turn, Context a percentage of the context, and Gate a call that
	// the program asked for.
	Turn    = "turn"
	Context = "context"
	Gate    = "gate"
	// Call is the begin or the end of a call, or that it is to be aborted.
	Call = "call"
	// Phase is a state of the agent itself.
	Phase = "phase"
	// Drain is no report: the supervisor writes it when it begins to drain the incarnation.
	Drain = "drain"
	// Send is a message to another agent.
	Send = "send"
	// Checkpoint is about a file that is on disk.
	Checkpoint = "checkpoint"
	// Observed is that the program has taken an observation.
	Observed = "observed"
	// Asked is no report: the supervisor writes it when a program that has reported nothing asks
	// the daemon for something.
	Asked = "asked"
	// Picture is no report: the supervisor writes it when the program asks for leases or a pause.
	Picture = "picture"
)

// Used is what an incarnation has used since its start.
type Used struct {
	InputTokens  uint64 `json:"input_tokens"`
	OutputTokens uint64 `json:"output_tokens"`
	// CostMicroUSD is in millionths of a US dollar.
	CostMicroUSD uint64 `json:"cost_micro_usd"`
}

// Plus is the sum of the usage of several incarnations.
func (u Used) Plus(more Used) Used {
	return Used{u.InputTokens + more.InputTokens, u.OutputTokens + more.OutputTokens, u.CostMicroUSD + more.CostMicroUSD}
}

func (u Used) mayBecome(next Used) bool {
	return next.InputTokens >= u.InputTokens && next.OutputTokens >= u.OutputTokens && next.CostMicroUSD >= u.CostMicroUSD &&
		max(next.InputTokens, next.OutputTokens, next.CostMicroUSD) <= maxCount
}

// Bounded is the part of a usage that a budget bounds.
func (u Used) Bounded() gate.Amount {
	return gate.Amount{InputTokens: u.InputTokens, CostMicroUSD: u.CostMicroUSD}
}

// Totals are what the beats of a program say about its work. Each total is that of the
// incarnation since its start.
type Totals struct {
	// Step is the step that the program is in, as it counts them itself. InStep is false if it
	// is in none.
	Step   uint64 `json:"step,omitempty"`
	InStep bool   `json:"in_step,omitempty"`
	// Steps is the number of completed steps.
	Steps     uint64 `json:"steps,omitempty"`
	LLMCalls  uint64 `json:"llm_calls,omitempty"`
	ToolCalls uint64 `json:"tool_calls,omitempty"`
}

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

// ResultFile is the place of a result in the file beside the journal.
type ResultFile struct {
	// At is the offset in bytes, and CRC32 (IEEE) that of the result.
	At    uint64 `json:"at"`
	CRC32 uint32 `json:"crc32"`
}

const (
	// MaxInvocation bounds the id of a call, in bytes.
	MaxInvocation = 128
	// MaxResult bounds what a row has of the result of a call, in bytes, so that it fits into
	// the row as base64.
	MaxResult = 44 << 10
	// MaxResultFile bounds a result that is kept in the file beside the journal, in bytes.
	MaxResultFile = 8 << 20
)

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

// The kinds of checkpoints.
const (
	TurnCheckpoint = "turn"
	StepCheckpoint = "step"
	// PauseCheckpoint is the digest of a pause.
	PauseCheckpoint = "pause"
)

// KeptCheckpoints is how many checkpoints are kept: the newest, and those to fall back to.
const KeptCheckpoints = 5

// The bounds of a message, in bytes.
const (
	// MaxMessage bounds the text of a message. A row has less room for it.
	MaxMessage = 64 << 10
	// maxAddress bounds the recipient and the key.
	maxAddress = 200
)

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

// textBound is the bound of the text of a report, in bytes.
func textBound(op string) int {
	if op == Send {
		return MaxMessage
	}
	return MaxText
}

// Encode writes a row as a line. The error is a Refusal if it is too long.
func Encode(r Row) ([]byte, error) {
	var line bytes.Buffer
	enc := json.NewEncoder(&line)
	enc.SetEscapeHTML(false) // a row must not become longer than the request
	if err := enc.Encode(r); err != nil {
		return nil, err
	}
	if line.Len() > MaxRow {
		return nil, refuse("A report has at most %d bytes as JSON, and this one has %d.", MaxRow, line.Len())
	}
	return line.Bytes(), nil
}

// Refusal is a sentence that says why a report is refused.
type Refusal string

// Error returns the refusal itself.
func (r Refusal) Error() string { return string(r) }

func refuse(format string, args ...any) error { return Refusal(fmt.Sprintf(format, args...)) }

// printable reports whether a text can be shown on a terminal as it is.
func printable(text string) bool {
	return strings.ToValidUTF8(text, "") == text && !strings.ContainsFunc(text, func(c rune) bool {
		return unicode.IsControl(c) && c != '\n' && c != '\t'
	})
}
