package agentsocket

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/agbox/agbox/agents/checkpoint"
	"github.com/agbox/agbox/agents/gate"
	"github.com/agbox/agbox/agents/journal"
)

// request is a request. Fields that it does not need are ignored.
type request struct {
	Op    string          `json:"op"`
	ID    json.RawMessage `json:"id"`
	Token string          `json:"token"`
	// State is for the ops state and phase.
	State string `json:"state"`
	// Of the op usage, for the incarnation since its start.
	InputTokens  uint64 `json:"input_tokens"`
	OutputTokens uint64 `json:"output_tokens"`
	// CostUSD is a decimal with at most six places, as text.
	CostUSD string `json:"cost_usd"`
	// Steps is for the op step: how many steps are complete. nil means one more.
	Steps *uint64 `json:"steps"`
	// Observation is for the op observed.
	Observation uint64 `json:"observation"`
	// Text is for the ops say and send. To, Stream and Key are for the op send.
	Text   string `json:"text"`
	To     string `json:"to"`
	Stream string `json:"stream"`
	Key    string `json:"key"`
	// Of the op error, beside Text.
	ErrorStack   string `json:"error_stack"`
	RetryAfterMS uint64 `json:"retry_after_ms"`
	// Outcome and Message are for the op done.
	Outcome string `json:"outcome"`
	Message string `json:"message"`
	// ContextPct is for the ops turn, context and gate: how full the context is, in percent.
	ContextPct *float64 `json:"context_pct"`
	// Of the op gate. Kind is tool or llm; empty means tool.
	Kind     string    `json:"kind"`
	Tool     string    `json:"tool"`
	Final    bool      `json:"final"`
	Estimate *estimate `json:"estimate"`
	// Of the op beat. All but Metrics are optional, and checked against the token. A request
	// with the Type heartbeat needs no Op.
	Type           string `json:"type"`
	AgentID        string `json:"agentId"`
	JobID          string `json:"jobId"`
	PodName        string `json:"podName"`
	LifecycleState string `json:"lifecycleState"`
	// CurrentStep is nil if the program is in no step.
	CurrentStep *float64 `json:"currentStep"`
	// Metrics is for the op beat.
	Metrics *metrics `json:"metrics"`
	// Of the op call: begin, progress, end or wait; the program's own id of the call, which
	// the supervisor makes if it is empty; its name; that there is a connection and no part of
	// the answer; and how it failed. Kind is tool, llm or network.
	Call       string `json:"call"`
	Invocation string `json:"invocation"`
	Name       string `json:"name"`
	Connected  bool   `json:"connected"`
	Error      string `json:"error"`
	// Of the end of a call: its result, as text or in base64, and how many bytes it has, if this
	// is only the beginning.
	Result       *string `json:"result"`
	ResultBase64 *[]byte `json:"result_base64"`
	ResultBytes  uint64  `json:"result_bytes"`
	// file is where the whole result is, if that is too long for a row.
	file *journal.ResultFile
	// Of the op checkpoint, whose Kind is turn, step or pause; empty means step. Its state has Bytes
	// bytes, which follow the line. The op turn saves one of its kind if there are Bytes. The result
	// of a call can follow its end in the same way.
	Turn        uint64 `json:"turn"`
	Step        uint64 `json:"step"`
	ResumePoint string `json:"resume_point"`
	Bytes       uint64 `json:"bytes"`
	// TimeoutMs is how long a request to the daemon may wait for its answer, in milliseconds. 0
	// means for ever.
	TimeoutMs uint64 `json:"timeout_ms"`
}

// opHealth asks about the health of the program. It reports nothing.
const opHealth = "health"

// maxID bounds the id of a request.
const maxID = 128

// accepted is the answer to a report that was accepted.
type accepted struct {
	AgentID     string       `json:"agent_id"`
	Incarnation uint32       `json:"incarnation"`
	State       string       `json:"state"`
	Phase       string       `json:"phase"`
	Used        journal.Used `json:"used"`
	Steps       uint64       `json:"steps"`
	Outcome     string       `json:"outcome,omitempty"`
	// Of the ops turn and context.
	Turns      uint64 `json:"turns,omitempty"`
	Context    string `json:"context,omitempty"`
	ContextPct uint32 `json:"context_pct,omitempty"`
	// Stored is the number of the checkpoint that a turn has saved. It is 0 if the turn came
	// without one: then it is only counted. Nil for other ops.
	Stored *uint64 `json:"stored,omitempty"`
	// Notice is what the program should know at the end of a turn.
	Notice string `json:"notice,omitempty"`
	// Checkpoint is the newest one.
	Checkpoint *journal.Mark `json:"checkpoint,omitempty"`
}

// The codes of refusals. Package agentcli makes exit codes of them.
const (
	codeBusy    = "TOO_MANY_CONNECTIONS"
	codeLong    = "LINE_TOO_LONG"
	codeBad     = "BAD_REQUEST"
	codeToken   = "WRONG_TOKEN" //nolint:gosec // no token
	codeCaller  = "WRONG_CALLER"
	codeOp      = "UNKNOWN_OP"
	codeReport  = "NOT_ALLOWED"
	codeJournal = "NOT_STORED"
	codeLarge   = "TOO_LARGE"
	codeSaving  = "CHECKPOINT_IN_PROGRESS"

	codeObservation = "OBSERVATION_PENDING"
	codeMany        = "TOO_MANY_REQUESTS"
	codeBig         = "REQUEST_TOO_LARGE"
	codeLate        = "NO_ANSWER_IN_TIME"
)

// sentences has what to do about a code.
var sentences = map[string]string{
	codeBusy:        fmt.Sprintf("The program has %d connections to the agent socket, which is the limit: close some, or try again.", maxOwned),
	codeLong:        fmt.Sprintf("A request is one line of at most %d bytes. The connection is closed.", maxLine),
	codeToken:       "The token belongs to no running incarnation: use AGBOX_TOKEN from the environment of the agent's program.",
	codeCaller:      "The process that has made the connection is none of the agent's program: only the program and what it has started may use its token. A daemon that is no child of the program any more can connect as long as it has the limit on file locks that it was started with.",
	codeLarge:       fmt.Sprintf("The state of a checkpoint has at most %d bytes: save less, for example names of files. The connection is closed.", checkpoint.MaxState),
	codeMany:        fmt.Sprintf("The program has %d open requests, which is the limit: wait for an answer.", maxOpen),
	codeBig:         fmt.Sprintf("A request has at most %d bytes: send less, for example names of files.", maxAsked),
	codeLate:        "There was no answer in the time that the request allows. It may be repeated.",
	codeObservation: "Things may have changed while the agent was paused: read the file AGBOX_OBSERVATION and report its observation with the op observed, or call \"agbox-agent hydrate\", which does both.",
	codeSaving:      "Another checkpoint of this incarnation is being saved: save one after the other.",
}

// refusal is the answer to a request that was refused.
type refusal struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

func (r *refusal) Error() string { return r.Message }

func refused(code string) *refusal { return &refusal{code, sentences[code]} }

// envelope is what is sent as the answer to a request.
func envelope(id json.RawMessage, reply any, also orders) any {
	type answer struct {
		ID json.RawMessage `json:"id,omitempty"`
		OK bool            `json:"ok"`
		orders
		Result any `json:"result,omitempty"`
		Error  any `json:"error,omitempty"`
	}
	if no, ok := reply.(*refusal); ok {
		return answer{ID: id, orders: also, Error: no}
	}
	return answer{ID: id, OK: true, orders: also, Result: reply}
}

// decoded has requests to decode into. One that is made for each line would be a third of
// the garbage of a program that only beats.
var decoded = sync.Pool{New: func() any { return new(request) }}

func (r *request) decode(line []byte) error {
	into := decoded.Get().(*request)
	defer func() {
		*into = request{}
		decoded.Put(into)
	}()
	err := json.Unmarshal(line, into)
	*r = *into
	return err
}

// parse reads a request and the row that it asks for. The error is a *refusal.
func parse(line []byte) (req request, row journal.Row, err error) {
	if err := req.decode(line); err != nil {
		return request{}, row, &refusal{codeBad, "A request is a JSON object on one line, as {\"op\": \"hello\", \"token\": \"...\"}: " + err.Error() + "."}
	}
	if len(req.ID) > maxID {
		return request{}, row, &refusal{codeBad, fmt.Sprintf("The id of a request has at most %d bytes.", maxID)}
	}
	if req.Op == "" && req.Type == "heartbeat" {
		req.Op = journal.Beat
	}
	row.Op = req.Op
	switch req.Op {
	case journal.Beat:
		row.Totals = req.totals()
	case journal.Hello, journal.Call, journal.Checkpoint, opHealth, opDrained:
	case journal.State, journal.Phase:
		row.State = req.State
	case journal.Usage:
		cost, err := microUSD(req.CostUSD)
		if err != nil {
			return req, row, err
		}
		row.Used = &journal.Used{InputTokens: req.InputTokens, OutputTokens: req.OutputTokens, CostMicroUSD: cost}
	case journal.Step:
		if req.Steps != nil && *req.Steps == 0 {
			return req, row, &refusal{codeReport, "Before the first step is complete, there is nothing to report: the number is 1 or more, and without it one more step is complete."}
		}
		if req.Steps != nil {
			row.Steps = *req.Steps
		}
	case journal.Say:
		row.Text = req.Text
	case journal.Error:
		row.Text, row.Stack, row.RetryAfterMS = req.Text, req.ErrorStack, req.RetryAfterMS
	case journal.Send:
		row.To, row.Stream, row.Key, row.Text = req.To, req.Stream, req.Key, req.Text
	case journal.Observed:
		row.Observation = req.Observation
	case journal.Done:
		row.Outcome, row.Text = req.Outcome, req.Message
	case journal.Turn, journal.Context, journal.Gate:
		row, err = rowOfContext(req)
	default:
		if !gate.ByDaemon(req.Op) {
			err = &refusal{codeOp, fmt.Sprintf("There is no op %.32q. There are: %s.", req.Op, strings.Join(gate.Names(), ", "))}
		}
	}
	return req, row, err
}

// microUSD converts an amount of dollars to millionths.
func microUSD(amount string) (uint64, error) {
	if amount == "" {
		return 0, nil
	}
	whole, fraction, _ := strings.Cut(amount, ".")
	if len(fraction) <= 6 && len(whole) <= 9 {
		if micro, err := strconv.ParseUint(whole+(fraction + "000000")[:6], 10, 64); err == nil {
			return micro, nil
		}
	}
	return 0, &refusal{codeBad, fmt.Sprintf("The cost %.32q is no amount in dollars as text, like \"0.0125\": at most nine digits, and six after the point.", amount)}
}

// The codes of refused calls. Package agentcli makes an exit code of its own of them.
const (
	codeFenced = "FENCED"
	codeBudget = "BUDGET_EXHAUSTED"
	// codeDraining refuses the calls of a step that a drained incarnation must not begin.
	codeDraining = "DRAINING"
)

// estimate is what a call to a model will use, as the program says.
type estimate struct {
	InputTokens uint64 `json:"input_tokens"`
	CostUSD     string `json:"cost_usd"`
}

// rowOfContext makes the row of an op of the context.
func rowOfContext(req request) (journal.Row, error) {
	row := journal.Row{Op: req.Op}
	if req.ContextPct == nil {
		if req.Op == journal.Context {
			return row, &refusal{codeBad, "Say with \"context_pct\" how full the context is, in percent."}
		}
	} else if row.Percent = percent(*req.ContextPct); row.Percent > gate.MaxPercent {
		return row, &refusal{codeBad, fmt.Sprintf("\"context_pct\" is how full the context is, from 0 to %d percent.", gate.MaxPercent)}
	}
	if req.Op != journal.Gate {
		return row, nil
	}
	row.Kind, row.Name, row.Final = req.Kind, req.Tool, req.Final
	if row.Kind == "" {
		row.Kind = journal.Tool
	}
	if e := req.Estimate; e != nil {
		cost, err := microUSD(e.CostUSD)
		if err != nil {
			return row, err
		}
		row.Used = &journal.Used{InputTokens: e.InputTokens, CostMicroUSD: cost}
	}
	return row, nil
}

// percent cuts a percentage to a whole number, so that it reaches no threshold too early.
// More than 100 stays more than 100. It returns more than gate.MaxPercent for what is no
// percentage.
func percent(of float64) uint32 {
	switch {
	case of > 100 && of < 101:
		return 101
	case of >= 0 && of <= gate.MaxPercent:
		return uint32(math.Floor(of))
	}
	return gate.MaxPercent + 1
}

// opDrained is the request that only asks whether the incarnation is drained. It has no row.
const opDrained = "drained"

// orders is what each answer tells an incarnation to do.
type orders struct {
	// Drain: save the work, begin no further step and exit.
	Drain bool `json:"drain,omitempty"`
	// DeadlineMs is the time in milliseconds in which the step under way must end. When it is
	// over, abort calls.
	DeadlineMs *int64 `json:"deadline_ms,omitempty"`
	// Paused: the agent is paused, and calls are refused until it goes on.
	Paused bool `json:"paused,omitempty"`
	// Checkpoint: the incarnation was UNHEALTHY, and has saved no checkpoint since. Save one.
	Checkpoint bool `json:"checkpoint,omitempty"`
}

// metrics are what a beat says about the health of its program.
type metrics struct {
	// EventLoopLag is how late the timers of its event loop were.
	EventLoopLag float64 `json:"event_loop_lag_seconds"`
	// FreeConnections is the number of free connections to its database. Nil if it has none.
	FreeConnections *int64 `json:"db_connections_available"`
	// HeapUsed is the size of its heap in MB. Nil if it does not say so.
	HeapUsed *float64 `json:"heapUsedMb"`
	// Totals of the incarnation since its start.
	StepsCompleted float64 `json:"stepsCompleted"`
	LLMCalls       float64 `json:"llmCallsTotal"`
	ToolCalls      float64 `json:"toolCallsTotal"`
}

const (
	// maxOwned bounds the connections of an incarnation, so that none takes those of others.
	maxOwned = 32
	// maxFresh bounds the connections that belong to no incarnation. One more ends the
	// oldest: a program sends its first request at once, so those that stay are idle.
	maxFresh = 64
	// firstRequest is how long a connection may belong to no incarnation.
	firstRequest = 10 * time.Second
)

const (
	// maxLine bounds a request, with its line end.
	maxLine = 64 << 10
	// usualLine is enough for most requests. It is small because agbox-agent makes a
	// connection, with a buffer, for each.
	usualLine = 512
	// sendTimeout is how long an answer may stay unread.
	sendTimeout = 10 * time.Second
	// burstGap is the time after which a request belongs to no burst any more.
	burstGap = 20 * time.Millisecond
)

const (
	// maxOpen bounds the open requests of an incarnation.
	maxOpen = 64
	// maxAsked bounds the bytes of a request, and of the requests that are told together.
	maxAsked = 62 << 10
	// goneEvery is how often a connection is looked at whose program sends nothing more. It
	// may still read.
	goneEvery = time.Second
)

// maxTotal bounds what is believed of a number of a beat.
const maxTotal = 1e12

// totals are those of a beat, or nil if it has none.
func (r *request) totals() *journal.Totals {
	if r.Metrics == nil && r.CurrentStep == nil {
		return nil
	}
	t := new(journal.Totals)
	if r.CurrentStep != nil {
		t.Step, t.InStep = count(*r.CurrentStep), true
	}
	if m := r.Metrics; m != nil {
		t.Steps, t.LLMCalls, t.ToolCalls = count(m.StepsCompleted), count(m.LLMCalls), count(m.ToolCalls)
	}
	return t
}

// count is a number of a beat as a count. Some languages write it with a fraction.
func count(of float64) uint64 { return uint64(math.Round(min(max(0, of), maxTotal))) }
