package journal

import (
	"slices"
	"strings"
)

// The phases of a call. One that has begun and has not ended may have had its effect.
const (
	Begin = "begin"
	End   = "end"
	// Aborted means that the program was told to abort the call.
	Aborted = "abort"
)

const (
	// MaxInvocation bounds the id of a call, in bytes.
	MaxInvocation = 128
	// MaxResult bounds what a row has of the result of a call, in bytes, so that it fits into
	// the row as base64.
	MaxResult = 44 << 10
	// MaxResultFile bounds a result that is kept in the file beside the journal, in bytes.
	MaxResultFile = 8 << 20
)

// ResultFile is the place of a result in the file beside the journal.
type ResultFile struct {
	// At is the offset in bytes, and CRC32 (IEEE) that of the result.
	At    uint64 `json:"at"`
	CRC32 uint32 `json:"crc32"`
}

// nextOfCall returns the summary with one more row of the op Call.
func (s Summary) nextOfCall(r Row) (Summary, error) {
	switch {
	case !slices.Contains([]string{Begin, End, Aborted}, r.Phase):
		return s, refuse("The phase of a call is %s, %s or %s, not %.32q.", Begin, End, Aborted, r.Phase)
	case !slices.Contains([]string{Tool, LLM, Network}, r.Kind):
		return s, refuse("The kind of a call is %s, %s or %s, not %.32q.", Tool, LLM, Network, r.Kind)
	case r.Invocation == "" || len(r.Invocation) > MaxInvocation || !printable(r.Invocation) || strings.ContainsAny(r.Invocation, "\n\t"):
		return s, refuse("The id of a call has 1 to %d bytes of UTF-8 and no control characters.", MaxInvocation)
	case len(r.Name) > MaxName || !printable(r.Name):
		return s, refuse("The name of a call has at most %d bytes of UTF-8 and no control characters.", MaxName)
	case len(r.Result) > MaxResult || len(r.Result) > 0 && (r.Phase != End || r.ResultBytes == nil || *r.ResultBytes < uint64(len(r.Result))):
		return s, refuse("The result of a call comes with its end, and has at most %d bytes.", MaxResult)
	case r.ResultFile != nil && (r.Phase != End || r.ResultBytes == nil || *r.ResultBytes > MaxResultFile || r.ResultFile.At > maxCount):
		return s, refuse("A result in a file comes with the end of its call, and has at most %d bytes.", MaxResultFile)
	case len(r.Reason) > MaxText || !printable(r.Reason):
		return s, refuse("The error of a call has at most %d bytes of UTF-8 and no control characters but line ends and tabs.", MaxText)
	}
	if r.Phase == Begin {
		switch r.Kind {
		case LLM:
			s.LLMCalls++
		case Tool:
			s.ToolCalls++
			s.LastTool = r.Name
		}
	}
	s.Rows++
	return s, nil
}
