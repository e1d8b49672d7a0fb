package agentcli

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"os/exec"
	"slices"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/agbox/agbox/agents/checkpoint"
	"github.com/agbox/agbox/agents/journal"
)

// hydrated is what "hydrate" prints.
type hydrated struct {
	// Checkpoint is what is known about the checkpoint; nil if the work begins anew. State is
	// what the program has saved in it.
	Checkpoint  *checkpoint.Head `json:"checkpoint"`
	ResumeStep  uint64           `json:"resume_step"`
	ResumePoint string           `json:"resume_point"`
	State       json.RawMessage  `json:"state"`
	// Skip are the calls that have ended since, and Pending those that have begun and may have
	// had their effect.
	Skip    []call `json:"skip"`
	Pending []call `json:"pending"`
	// Previous is how the incarnation before ended; null for the first one.
	Previous json.RawMessage `json:"previous"`
	// Handoff is what agbox knows of the work of an incarnation whose context was used up and that
	// saved nothing since it was AGING; nil if there is none.
	Handoff json.RawMessage `json:"handoff,omitempty"`
	// Observation is what changed while the agent was paused; nil if it was not.
	Observation json.RawMessage `json:"observation,omitempty"`
	// Work is the path of the file with what to do.
	Work string `json:"work,omitempty"`
	// Context is what the context hook has printed.
	Context string `json:"context,omitempty"`
	// Notices say what is missing and is not needed.
	Notices []string `json:"notices"`
}

type call struct {
	Invocation string `json:"invocation"`
	Kind       string `json:"kind"`
	Name       string `json:"name"`
	// Result is what a call in Skip gave, or ResultBase64 if that is no text; nil if nothing is
	// recorded. ResultBytes is the size of all of it, if there is less.
	Result       *string `json:"result,omitempty"`
	ResultBase64 string  `json:"result_base64,omitempty"`
	ResultBytes  uint64  `json:"result_bytes,omitempty"`
}

// ended returns the call with the result in the row of its end. long has those that are too long
// for a row; it may be nil.
func (c call) ended(row journal.Row, long io.ReaderAt) call {
	if row.ResultBytes == nil {
		return c
	}
	if all := longResult(row, long); all != nil {
		row.Result = all
	}
	if whole := uint64(len(row.Result)); *row.ResultBytes > whole {
		c.ResultBytes = *row.ResultBytes
	}
	if utf8.Valid(row.Result) {
		text := string(row.Result)
		c.Result = &text
	} else {
		c.ResultBase64 = base64.StdEncoding.EncodeToString(row.Result)
	}
	return c
}

// longResult reads a result that is too long for its row. It returns nil if it is not there, or
// damaged.
func longResult(row journal.Row, long io.ReaderAt) []byte {
	f := row.ResultFile
	if f == nil || long == nil || *row.ResultBytes > journal.MaxResultFile {
		return nil
	}
	all := make([]byte, *row.ResultBytes)
	if n, _ := long.ReadAt(all, int64(f.At)); n < len(all) || crc32.ChecksumIEEE(all) != f.CRC32 {
		return nil
	}
	return all
}

const (
	// hookLimit is how long the context hook may run.
	hookLimit = 10 * time.Second
	// maxContext is how much it may print, in bytes.
	maxContext = 1 << 20
	// maxWork bounds the file with the work, in bytes. It has at most 64 KiB.
	maxWork = 1 << 20
)

// maxCalls is more than the file with the calls has, in bytes: 1 MiB, and 8 MiB of results in base64.
const maxCalls = 16 << 20

// maxPrevious bounds the description of the incarnation before, in bytes.
const maxPrevious = 1 << 20

// hydrate prints, as one JSON object, what an incarnation needs to go on: first the
// checkpoint, then the calls since then, then what the context hook adds. Only the checkpoint
// is necessary.
func hydrate(ctx context.Context, s session) int {
	env, stderr := s.env, s.stderr
	h := hydrated{State: json.RawMessage("{}"), Skip: []call{}, Pending: []call{}, Previous: json.RawMessage("null"), Notices: []string{}, Work: variable(env, "AGBOX_WORK")}
	if err := h.checkpoint(variable(env, "AGBOX_CHECKPOINT")); err != nil {
		_, _ = fmt.Fprintln(stderr, "agbox-agent: The checkpoint cannot be read:", err)
		return exitFailed
	}
	previous, journal := variable(env, "AGBOX_PREVIOUS"), variable(env, "AGBOX_JOURNAL")
	if err := h.calls(journal, variable(env, "AGBOX_RESULTS")); err != nil && previous+journal != "" { // it is not the first incarnation
		h.Skip, h.Pending = []call{}, []call{}
		h.Notices = append(h.Notices, fmt.Sprintf("The calls since the checkpoint are not known (%v): ask the systems that they went to.", err))
	}
	if err := h.handoff(variable(env, "AGBOX_HANDOFF")); err != nil {
		h.Notices = append(h.Notices, fmt.Sprintf("What the incarnation before did until its context was used up is not known: %v.", err))
	}
	if err := h.previous(previous); err != nil {
		h.Notices = append(h.Notices, fmt.Sprintf("How the incarnation before ended is not known: %v.", err))
	}
	observed, err := h.observation(variable(env, "AGBOX_OBSERVATION"))
	if err != nil {
		_, _ = fmt.Fprintln(stderr, "agbox-agent: What changed while the agent was paused cannot be read:", err)
		return exitFailed
	}
	hook := contextHook{limit: hookLimit, stderr: stderr}
	if err := h.context(ctx, hook, variable(env, "AGBOX_CONTEXT_HOOK")); err != nil {
		h.Notices = append(h.Notices, fmt.Sprintf("The context hook has failed (%v): go on without what it would have added.", err))
	}
	if err := json.NewEncoder(s.stdout).Encode(h); err != nil {
		_, _ = fmt.Fprintln(stderr, "agbox-agent:", err)
		return exitFailed
	}
	if observed > 0 {
		return acknowledge(ctx, s, observed)
	}
	return exitOK
}

func (h *hydrated) checkpoint(name string) error {
	if name == "" {
		return nil
	}
	raw, err := readUpTo(name, checkpoint.MaxFile)
	if err != nil {
		return err
	}
	file, err := checkpoint.Parse(raw)
	if err != nil {
		return err
	}
	h.Checkpoint, h.ResumeStep, h.ResumePoint, h.State = &file.Head, file.Step, file.ResumePoint, file.State
	return nil
}

// calls reads which calls were made after the checkpoint. long is the file with the results that
// are too long for rows, if there is one; without it, their beginnings are known.
func (h *hydrated) calls(name, long string) error {
	if name == "" {
		return errors.New("the journals of earlier incarnations are not there as a whole")
	}
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	var results io.ReaderAt
	if long != "" {
		if r, err := os.Open(long); err == nil {
			defer func() { _ = r.Close() }()
			results = r
		}
	}
	at := make(map[string]int) // in pending
	var pending []*call
	in := bufio.NewScanner(io.LimitReader(f, maxCalls))
	in.Buffer(nil, journal.MaxRow)
	for in.Scan() {
		var row journal.Row
		if err := json.Unmarshal(in.Bytes(), &row); err != nil {
			return err
		}
		if row.Op != journal.Call {
			continue
		}
		i, known := at[row.Invocation]
		if !known {
			i = len(pending)
			at[row.Invocation], pending = i, append(pending, &call{Invocation: row.Invocation, Kind: row.Kind, Name: row.Name})
		}
		if row.Phase == journal.Begin && pending[i] == nil { // a further call with the same id
			h.Skip = slices.DeleteFunc(h.Skip, func(c call) bool { return c.Invocation == row.Invocation })
			pending[i] = &call{Invocation: row.Invocation, Kind: row.Kind, Name: row.Name}
		}
		if row.Phase == journal.End && row.Reason == "" && pending[i] != nil {
			h.Skip = append(h.Skip, pending[i].ended(row, results))
			pending[i] = nil
		}
	}
	for _, c := range pending {
		if c != nil {
			h.Pending = append(h.Pending, *c)
		}
	}
	return in.Err()
}

func (h *hydrated) previous(name string) (err error) {
	if name != "" {
		var raw json.RawMessage
		if raw, err = readJSON(name); err == nil {
			h.Previous = raw
		}
	}
	return err
}

func (h *hydrated) handoff(name string) (err error) {
	if name != "" {
		h.Handoff, err = readJSON(name)
	}
	return err
}

// readJSON reads a file about the incarnation before.
func readJSON(name string) (json.RawMessage, error) {
	raw, err := readUpTo(name, maxPrevious)
	if err == nil && !json.Valid(raw) {
		err = fmt.Errorf("%s is no JSON", name)
	}
	if err != nil {
		return nil, err
	}
	return raw, nil
}

// readUpTo reads a file of at most max bytes.
func readUpTo(name string, max int64) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	raw, err := io.ReadAll(io.LimitReader(f, max+1))
	if err == nil && int64(len(raw)) > max {
		err = fmt.Errorf("%s has more than %d bytes", name, max)
	}
	return raw, err
}

// contextHook runs the context hook of an agent.
type contextHook struct {
	limit  time.Duration
	stderr io.Writer
}

// asked is what the hook gets on standard input.
type asked struct {
	// Work is what the agent has to do, Checkpoint what it goes on from. Both may be null.
	Work       *string          `json:"work"`
	Checkpoint *checkpoint.File `json:"checkpoint"`
}

// context asks the hook, if there is one: a JSON array with its program and arguments.
func (h *hydrated) context(ctx context.Context, hook contextHook, command string) error {
	if command == "" {
		return nil
	}
	var words []string
	if err := json.Unmarshal([]byte(command), &words); err != nil || len(words) == 0 {
		return errors.New("AGBOX_CONTEXT_HOOK is no command")
	}
	var question asked
	if h.Checkpoint != nil {
		question.Checkpoint = &checkpoint.File{Head: *h.Checkpoint, State: h.State}
	}
	if h.Work != "" {
		raw, err := readUpTo(h.Work, maxWork)
		if err != nil {
			return err
		}
		work := string(raw)
		question.Work = &work
	}
	input, err := json.Marshal(question)
	if err != nil {
		return err
	}
	h.Context, err = hook.run(ctx, words, input)
	return err
}

// run returns what the hook prints. It kills the hook, with its process group, when it takes
// too long or prints too much.
func (c contextHook) run(ctx context.Context, words []string, input []byte) (string, error) {
	ctx, tooMuch := context.WithCancelCause(ctx)
	defer tooMuch(nil)
	ctx, cancel := context.WithTimeoutCause(ctx, c.limit, fmt.Errorf("it takes longer than %v", c.limit))
	defer cancel()
	out := &bounded{max: maxContext, full: func() { tooMuch(fmt.Errorf("it prints more than %d bytes", maxContext)) }}
	cmd := exec.CommandContext(ctx, words[0], words[1:]...) //nolint:gosec // the agent's own command
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(input), out, c.stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second // what it has started may have left its group and keep its output open
	err := cmd.Run()
	switch {
	case ctx.Err() != nil:
		return "", context.Cause(ctx)
	case err != nil && !errors.Is(err, syscall.EPIPE): // it need not read its input
		return "", err
	}
	return string(out.kept), nil
}

// bounded keeps what is written to it. It calls full instead of keeping more than max bytes.
type bounded struct {
	kept []byte
	max  int
	full func()
}

func (b *bounded) Write(p []byte) (int, error) {
	if len(b.kept)+len(p) > b.max {
		b.full()
		return 0, io.ErrShortWrite
	}
	b.kept = append(b.kept, p...)
	return len(p), nil
}

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
func acknowledge(ctx context.Context, s session, number uint64) int {
	got, _, err := s.ask(ctx, map[string]any{"op": "observed", "observation": number}, nil)
	switch {
	case err != nil:
		_, _ = fmt.Fprintln(s.stderr, "agbox-agent: The supervisor cannot be told that the observation was taken:", err)
		return exitFailed
	case !got.OK && got.Error.Code != "UNKNOWN_OP": // an older supervisor needs no report
		_, _ = fmt.Fprintln(s.stderr, "agbox-agent:", got.Error.Message)
		return exitCode(got.Error.Code)
	}
	return exitOK
}
