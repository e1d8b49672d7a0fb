// Package diary has the files in which a robot records what it does, for the program that
// writes them and the tests that read them.
package diary

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// What a line is about.
const (
	// Begin: an incarnation has begun. From is the step after which it goes on, and Env its
	// variables of agbox.
	Begin = "begin"
	// Overlap: it has begun while another one still lived.
	Overlap = "overlap"
	// Send: a report is about to be sent.
	Send = "send"
	// Ack: it was accepted. Refused: it was not; Text says why.
	Ack     = "ack"
	Refused = "refused"
	// Skip: a step whose effect an earlier incarnation had is not repeated.
	Skip = "skip"
	// Signal: SIGTERM came, at the time At.
	Signal = "signal"
	// Silent: the last beat was sent, at the time At.
	Silent = "silent"
	// Leased: the robot holds the resource Text, with the fencing number Fence.
	Leased = "leased"
	// Does: the robot is about to do something that is no report, at the time At. Op says what.
	Does = "does"
	// Broke: the robot ends because of an error of its own, Text, at the time At.
	Broke = "broke"
	// Dies: the robot is about to die as planned. Text is how.
	Dies = "dies"
	// End: the incarnation ends by itself.
	End = "end"
)

// Entry is a line of a diary.
type Entry struct {
	Incarnation uint32 `json:"n"`
	What        string `json:"what"`
	// Op is what a report is about, and Report its number in the incarnation.
	Op     string `json:"op,omitempty"`
	Report int    `json:"report,omitempty"`
	// What the report says: usage of the incarnation, its completed steps.
	InputTokens  uint64 `json:"input_tokens,omitempty"`
	OutputTokens uint64 `json:"output_tokens,omitempty"`
	Steps        uint64 `json:"steps,omitempty"`
	// Step is the step of the whole work.
	Step int    `json:"step,omitempty"`
	From int    `json:"from,omitempty"`
	Text string `json:"text,omitempty"`
	// Key is that of a message or a child. Stream is that of a message.
	Key    string `json:"key,omitempty"`
	Stream string `json:"stream,omitempty"`
	// Checkpoint is the number of an acknowledged checkpoint.
	Checkpoint uint64 `json:"checkpoint,omitempty"`
	// Fence is the fencing number of a resource.
	Fence uint64 `json:"fence,omitempty"`
	// At is in milliseconds since 1970.
	At int64 `json:"at,omitempty"`

	Env map[string]string `json:"env,omitempty"`
}

// Name is the path of an agent's diary, and Effects that of its effects.
func Name(folder, agentID string) string { return filepath.Join(folder, agentID+".diary") }

// Effects is the path of the file with the invocation ids of an agent's effects.
func Effects(folder, agentID string) string { return filepath.Join(folder, agentID+".effects") }

// Inbox is the path of the file with the messages that an agent has received. Its lines are
// letters.
func Inbox(folder, agentID string) string { return filepath.Join(folder, agentID+".inbox") }

// Letter is a message as its recipient records it. State is that of the agent that a message
// of agbox is about.
type Letter struct {
	Seq  uint64 `json:"seq"`
	Kind string `json:"kind"`
	From string `json:"from"`
	Key  string `json:"key,omitempty"`
	// Stream is empty if it was sent to the recipient alone.
	Stream string `json:"stream,omitempty"`
	State  string `json:"state,omitempty"`
}

// Letters returns the messages that an agent has received, in the order in which it did.
func Letters(folder, agentID string) ([]Letter, error) {
	lines, err := Lines(Inbox(folder, agentID))
	letters := make([]Letter, len(lines))
	for i, line := range lines {
		if err := json.Unmarshal([]byte(line), &letters[i]); err != nil {
			return nil, fmt.Errorf("the inbox of %s: %q: %w", agentID, line, err)
		}
	}
	return letters, err
}

// Invocation is the invocation id of a step's effect. It is the same in each incarnation.
func Invocation(agentID string, step int) string { return fmt.Sprintf("%s/%d", agentID, step) }

// Append opens one of the files to append to it. A last line without its end is cut off: SIGKILL
// ends a write(2) between two pages, and the next line would go on where it stopped.
func Append(path string) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o666)
	if err != nil {
		return nil, err
	}
	raw, err := io.ReadAll(file)
	if end := bytes.LastIndexByte(raw, '\n') + 1; err == nil && end < len(raw) {
		err = file.Truncate(int64(end))
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

// Read returns the entries of a diary. A last line without its end is left out: its writer
// was killed. A file that does not exist is empty.
func Read(path string) ([]Entry, error) {
	var entries []Entry
	lines, err := Lines(path)
	for _, line := range lines {
		var e Entry
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			return nil, fmt.Errorf("%s: %q: %w", path, line, err)
		}
		entries = append(entries, e)
	}
	return entries, err
}

// Lines returns the complete lines of a file, none if there is no file.
func Lines(path string) ([]string, error) {
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	text := string(raw)
	text = text[:strings.LastIndexByte(text, '\n')+1]
	var lines []string
	in := bufio.NewScanner(strings.NewReader(text))
	for in.Scan() {
		lines = append(lines, in.Text())
	}
	return lines, in.Err()
}
