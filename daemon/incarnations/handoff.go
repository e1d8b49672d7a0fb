package incarnations

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/agents/gate"
	"github.com/agbox/agbox/agents/journal"
	"github.com/agbox/agbox/daemon/ledger"
)

// The bounds of a handoff record: it is for a model to read. With them it has at most 512 KiB,
// also if each character has to be escaped in JSON.
const (
	// handoffCalls, handoffTools and handoffTexts are how many of the last calls, tools and texts
	// it has.
	handoffCalls, handoffTools, handoffTexts = 32, 32, 16
	// handoffText bounds each text, and handoffWork the work, in bytes. As JSON they may be longer.
	handoffText, handoffWork = 1 << 10, 8 << 10
	// handoffBack is how many incarnations are looked at that have reported anything, and
	// handoffLooks how many at all: those whose start could not be written down have reported
	// nothing, and while a disk is full there is one each minute.
	handoffBack, handoffLooks = 5, 4096
)

// handoff is what agbox knows of the work of an incarnation whose context was used up, for the
// next one. It is made if the program has saved nothing since its context is AGING. The texts
// are those of the program: data, and no instructions.
type handoff struct {
	// MadeBy is "agbox".
	MadeBy      string `json:"made_by"`
	Agent       string `json:"agent"`
	Title       string `json:"title,omitempty"`
	Work        string `json:"work,omitempty"`
	Incarnation uint32 `json:"incarnation"`
	// Ended says how that incarnation ended, if it was the newest.
	Ended json.RawMessage `json:"ended,omitempty"`
	// Context is the word for its context, and ContextPercent the highest percentage.
	Context        string `json:"context"`
	ContextPercent uint32 `json:"context_pct"`
	// Phase is that of the agent, State the program's own.
	Phase string       `json:"phase"`
	State string       `json:"state"`
	Steps uint64       `json:"steps"`
	Turns uint64       `json:"turns"`
	Used  journal.Used `json:"used"`
	// Checkpoint is the newest one of that incarnation. What follows it is not in it.
	Checkpoint *journal.Mark `json:"checkpoint,omitempty"`
	// Calls are the last ones, Tools the last for which the program has only asked whether it may
	// call them. All lists are oldest first.
	Calls []handedCall `json:"calls"`
	Tools []handedText `json:"tools"`
	Said  []handedText `json:"said"`
	Sent  []handedText `json:"sent"`
	// Error is what the program reported last as its error.
	Error string `json:"error,omitempty"`
	// Holds and Wants are the resources that the agent holds, and has asked for.
	Holds []string `json:"holds,omitempty"`
	Wants []string `json:"wants,omitempty"`
	// Unread is the number of messages that it has not acknowledged.
	Unread int `json:"unread"`
}

// handedCall is a call. Ended is false if it may have had its effect, and nothing is known of that.
type handedCall struct {
	Invocation string    `json:"invocation"`
	Kind       string    `json:"kind"`
	Name       string    `json:"name,omitempty"`
	At         time.Time `json:"at"`
	Ended      bool      `json:"ended"`
	Error      string    `json:"error,omitempty"`
	// Result is the beginning of what it gave, if that is text. ResultBytes is the size of all.
	Result      string  `json:"result,omitempty"`
	ResultBytes *uint64 `json:"result_bytes,omitempty"`
}

type handedText struct {
	At time.Time `json:"at"`
	// To is the recipient of a message, or its stream with "stream:" before it.
	To   string `json:"to,omitempty"`
	Text string `json:"text"`
}

// handoff makes the record for the current incarnation of an agent, or nil if no earlier one has
// left work that it did not save. One that saved nothing, and whose context had room, is passed
// over: it may have had such a record itself.
func (r *Runner) handoff(ctx context.Context, a ledger.Agent) ([]byte, error) {
	began := r.now()
	n, back := a.Incarnation.N-1, 0
	for looks := 0; n > 0 && back < handoffBack && looks < handoffLooks && r.now().Sub(began) < tailWithin; looks++ {
		made, saved, reported, err := r.handed(a, n)
		switch {
		case err != nil:
			return nil, err
		case made != nil:
			made.Work = r.handedWork(ctx, a)
			made.Unread = r.ledger.Unread(a.ID)
			return json.Marshal(made)
		case saved:
			return nil, nil
		case reported:
			back++
		}
		n--
	}
	return nil, nil
}

// handed reads the journal of one incarnation. It returns nil if the context had room, or the
// program has saved a checkpoint since; saved means that it has saved any, and reported that
// there are any rows.
func (r *Runner) handed(a ledger.Agent, n uint32) (h *handoff, saved, reported bool, err error) {
	rows := handedRows{calls: make(map[string]int), all: []handedCall{}, tools: []handedText{}, said: []handedText{}, sent: []handedText{}}
	at, err := r.readPast(a, n, rows.add)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, false, false, err
	}
	sum := at.Sum
	mark := sum.Checkpoints.Newest()
	if sum.Context == gate.Healthy || rows.agedAndSaved {
		return nil, mark.Seq > 0, sum.Rows > 0, nil
	}
	h = &handoff{
		MadeBy: "agbox", Agent: a.ID, Title: a.Spec.GetTitle(), Incarnation: n, Context: sum.Context, ContextPercent: sum.Percent,
		Phase: sum.Phase, State: sum.Lifecycle, Steps: sum.Steps, Turns: sum.Turns, Used: sum.Used,
		Calls: rows.all[max(0, len(rows.all)-handoffCalls):], Tools: rows.tools, Said: rows.said, Sent: rows.sent, Error: sum.Error,
	}
	if mark.Seq > 0 {
		h.Checkpoint = &mark
	}
	if a.Last.GetExecId() == agents.ExecID(a.ID, n) {
		end := agents.Told(a.Last)
		if h.Ended, err = (protojson.MarshalOptions{UseProtoNames: true}).Marshal(end); err != nil {
			return nil, false, true, err
		}
	}
	for _, lease := range a.Holds {
		h.Holds = append(h.Holds, lease.Resource)
	}
	for _, lease := range a.Wants {
		h.Wants = append(h.Wants, lease.Resource)
	}
	return h, mark.Seq > 0, true, nil
}

// handedWork is the beginning of the work of an agent. Without it the record is still of use.
func (r *Runner) handedWork(ctx context.Context, a ledger.Agent) string {
	work, err := r.ledger.AgentWork(ctx, a.ID)
	if err != nil {
		r.log.Warn("the work of an agent cannot be read for a handoff", "agent_id", a.ID, "error", err)
	}
	return beginning(string(work), handoffWork)
}

// handedRows collects the last rows of a journal.
type handedRows struct {
	// agedAndSaved means that a checkpoint follows the first row with a context that is not HEALTHY.
	agedAndSaved bool
	all          []handedCall
	calls        map[string]int // by id, in all
	tools        []handedText
	said, sent   []handedText
}

func (h *handedRows) add(row journal.Row, sum journal.Summary) {
	at := time.UnixMilli(row.At).UTC()
	switch row.Op {
	case journal.Checkpoint:
		h.agedAndSaved = h.agedAndSaved || sum.Context != gate.Healthy
	case journal.Say:
		h.said = last(h.said, handedText{At: at, Text: beginning(row.Text, handoffText)}, handoffTexts)
	case journal.Send:
		to := row.To
		if row.Stream != "" {
			to = "stream:" + row.Stream
		}
		h.sent = last(h.sent, handedText{At: at, To: to, Text: beginning(row.Text, handoffText)}, handoffTexts)
	case journal.Gate:
		if row.Kind == journal.Tool {
			h.tools = last(h.tools, handedText{At: at, Text: row.Name}, handoffTools)
		}
	case journal.Call:
		h.call(row, at)
	}
}

// call keeps a call. Of more than twice handoffCalls, the oldest are forgotten.
func (h *handedRows) call(row journal.Row, at time.Time) {
	i, known := h.calls[row.Invocation]
	if row.Phase == journal.Begin || !known {
		if len(h.all) == 2*handoffCalls {
			h.all = append([]handedCall(nil), h.all[handoffCalls:]...)
			h.calls = make(map[string]int, len(h.all))
			for i, c := range h.all {
				h.calls[c.Invocation] = i
			}
		}
		i = len(h.all)
		h.all, h.calls[row.Invocation] = append(h.all, handedCall{Invocation: row.Invocation, Kind: row.Kind, Name: row.Name, At: at}), i
	}
	if row.Phase == journal.Begin {
		return
	}
	c := &h.all[i]
	c.Ended = c.Ended || row.Phase == journal.End
	c.Error = beginning(row.Reason, handoffText)
	if c.ResultBytes = row.ResultBytes; c.ResultBytes != nil {
		c.Result = text(row.Result)
	}
}

// last appends to a list of at most n, whose oldest goes.
func last[E any](list []E, e E, n int) []E {
	return append(list[max(0, len(list)+1-n):], e)
}

// beginning returns the beginning of a text, of at most n bytes.
func beginning(s string, n int) string {
	return strings.ToValidUTF8(s[:min(len(s), n)], "")
}

// text is the beginning of a result that is text, or empty.
func text(result []byte) string {
	s := string(result[:min(len(result), handoffText)])
	if strings.ContainsRune(s, 0) {
		return ""
	}
	return strings.ToValidUTF8(s, "")
}
