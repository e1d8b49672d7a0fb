package agentsocket

import (
	"cmp"
	"fmt"
	"strconv"
	"time"

	"github.com/agbox/agbox/agents/gate"
	"github.com/agbox/agbox/agents/journal"
	"github.com/agbox/agbox/runtime/supervisor/probes"
)

const (
	// maxCalls bounds the open calls of an incarnation.
	maxCalls = 64
	// waitTime bounds a request that waits for a call.
	waitTime = 20 * time.Second
	// toolGrace is how long "agbox-agent tool" has to end a tool that takes too long. Then
	// the supervisor kills it.
	toolGrace = 10 * time.Second
	// transient is the class of errors that a call which took too long belongs to. It may be
	// repeated.
	transient = "TRANSIENT_APP"
)

// deadlineLocked is when a call is to be aborted if nothing more is reported, and why. at is
// zero if it has no limit.
func (o *openCalls) deadlineLocked(c *openCall) (at time.Time, reason string) {
	at, reason = c.Deadline(o.limits)
	if !o.until.IsZero() && (at.IsZero() || o.until.Before(at)) {
		return o.until, probes.Shutdown
	}
	return at, reason
}

// drain has all calls aborted at that time. No call begins after it.
func (o *openCalls) drain(in *incarnation, until, now time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.until = until
	o.armLocked(in, now)
}

// call executes the op call.
func (in *incarnation) call(req request, now time.Time) (gate.CallState, error) {
	switch req.Call {
	case "begin":
		return in.calls.begin(in, req, now)
	case "progress":
		return in.calls.progress(in, req, now)
	case "end":
		return in.calls.end(in, req, now)
	case "wait":
		return in.calls.wait(in, req)
	}
	return gate.CallState{}, &refusal{codeBad, fmt.Sprintf("call is begin, progress, end or wait, not %.32q.", req.Call)}
}

func (o *openCalls) begin(in *incarnation, req request, now time.Time) (gate.CallState, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if known := o.byID[req.Invocation]; known != nil && known.abort == "" {
		if known.Kind != req.Kind || known.Name != req.Name {
			return gate.CallState{}, &refusal{codeReport, fmt.Sprintf("The call %.40q is open already, and is another one: give each call an id of its own.", req.Invocation)}
		}
		return o.stateLocked(known, now), nil // asked again
	}
	if len(o.byID) >= maxCalls && !o.forgetAbortedLocked() {
		return gate.CallState{}, &refusal{codeReport, fmt.Sprintf("%d calls are open, which is the limit: report the end of those that have ended.", maxCalls)}
	}
	c := &openCall{Call: probes.Call{Kind: req.Kind, Name: req.Name, Begun: now}, id: req.Invocation, done: make(chan struct{})}
	c.mark = in.execID + "/" + strconv.FormatUint(o.begun+1, 10)
	if c.id == "" {
		c.id = c.mark
	}
	if !o.until.IsZero() && !now.Before(o.until) {
		return gate.CallState{}, &refusal{codeReport, "The incarnation is drained, and its last step is over: begin no call, save the work and exit."}
	}
	if err := in.mayCall(c.Call, now); err != nil {
		return gate.CallState{}, err
	}
	if err := in.reportCall(c, journal.Row{Phase: journal.Begin}, now); err != nil {
		return gate.CallState{}, err
	}
	if o.byID == nil {
		o.byID = make(map[string]*openCall)
	}
	o.begun++
	o.byID[c.id] = c
	o.armLocked(in, now)
	return o.stateLocked(c, now), nil
}

// forgetAbortedLocked drops the oldest call that was to be aborted and of which nothing was
// heard since.
func (o *openCalls) forgetAbortedLocked() bool {
	var oldest *openCall
	for _, c := range o.byID {
		if c.abort != "" && (oldest == nil || c.Begun.Before(oldest.Begun)) {
			oldest = c
		}
	}
	if oldest == nil {
		return false
	}
	delete(o.byID, oldest.id)
	return true
}

func (o *openCalls) progress(in *incarnation, req request, now time.Time) (gate.CallState, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	c, err := o.findLocked(req.Invocation)
	if err != nil {
		return gate.CallState{}, err
	}
	if c.abort == "" {
		c.Call = c.Progress(now, !req.Connected)
		o.armLocked(in, now)
	}
	return o.stateLocked(c, now), nil
}

func (o *openCalls) end(in *incarnation, req request, now time.Time) (gate.CallState, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	c, err := o.findLocked(req.Invocation)
	if err != nil {
		return gate.CallState{}, err
	}
	row := journal.Row{Phase: journal.End, Reason: req.Error}
	row.Result, row.ResultBytes = o.recordLocked(in, req)
	row.ResultFile = req.file
	if err := in.reportCall(c, row, now); err != nil {
		return gate.CallState{}, err
	}
	delete(o.byID, c.id)
	state := o.stateLocked(c, now)
	state.Ended = true
	if c.abort == "" {
		close(c.done)
	}
	o.armLocked(in, now)
	return state, nil
}

// wait returns when the call is to be aborted, when it has ended, and at the latest after
// waitTime.
func (o *openCalls) wait(in *incarnation, req request) (gate.CallState, error) {
	o.mu.Lock()
	c, err := o.findLocked(req.Invocation)
	o.mu.Unlock()
	if err != nil {
		return gate.CallState{}, err
	}
	timer := time.NewTimer(waitTime)
	defer timer.Stop()
	select {
	case <-c.done:
	case <-timer.C:
	case <-in.server.closing:
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	state := o.stateLocked(c, time.Now())
	state.Ended = o.byID[c.id] != c && c.abort == ""
	return state, nil
}

func (o *openCalls) findLocked(id string) (*openCall, error) {
	if c := o.byID[id]; c != nil {
		return c, nil
	}
	return nil, &refusal{codeReport, fmt.Sprintf("The call %.40q is not open: report its begin first.", id)}
}

func (o *openCalls) stateLocked(c *openCall, now time.Time) gate.CallState {
	state := gate.CallState{Invocation: c.id, Mark: c.mark, Abort: c.abort}
	if c.abort != "" {
		if c.abort != probes.Shutdown {
			state.Class = transient
		}
		return state
	}
	if at, _ := o.deadlineLocked(c); !at.IsZero() {
		state.DeadlineMS = max(1, at.Sub(now).Milliseconds())
	}
	return state
}

// reportCall appends a row of a call to the journal.
func (in *incarnation) reportCall(c *openCall, row journal.Row, now time.Time) error {
	row.Op, row.Kind, row.Name, row.Invocation = journal.Call, c.Kind, c.Name, c.id
	_, err := in.report(row, now)
	return err
}

// resultShare is the part of a journal that results may fill: a program whose results are many
// must still be able to report.
const resultShare = 4

// recordLocked returns what is recorded of the result of a call, and how many bytes that has.
// size is nil if there is none.
func (o *openCalls) recordLocked(in *incarnation, req request) (result []byte, size *uint64) {
	switch {
	case req.ResultBase64 != nil:
		result = *req.ResultBase64
	case req.Result != nil:
		result = []byte(*req.Result)
	default:
		return nil, nil
	}
	whole := max(uint64(len(result)), req.ResultBytes)
	if len(result) > journal.MaxResult {
		result = result[:journal.MaxResult]
	}
	if o.recorded += int64(len(result)); o.recorded > cmp.Or(in.journalMax, journal.MaxJournal)/resultShare {
		result = nil
	}
	return result, &whole
}

// armLocked sets the timer to the next deadline.
func (o *openCalls) armLocked(in *incarnation, now time.Time) {
	if o.timer != nil {
		o.timer.Stop()
		o.timer = nil
	}
	var next time.Time
	for _, c := range o.byID {
		if at, _ := o.deadlineLocked(c); c.abort == "" && !at.IsZero() && (next.IsZero() || at.Before(next)) {
			next = at
		}
	}
	if !next.IsZero() && !o.over {
		o.timer = in.server.after(next.Sub(now), func() { o.expire(in, time.Now()) })
	}
}

// expire has the calls aborted that have taken too long.
func (o *openCalls) expire(in *incarnation, now time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.over {
		return
	}
	for _, c := range o.byID {
		if at, reason := o.deadlineLocked(c); c.abort == "" && !at.IsZero() && !now.Before(at) {
			o.abortLocked(in, c, reason, now)
		}
	}
	o.armLocked(in, now)
}

// abortLocked tells the program to abort a call. The row is for people and for the next
// incarnation: without it the call is aborted too.
func (o *openCalls) abortLocked(in *incarnation, c *openCall, reason string, now time.Time) {
	_ = in.reportCall(c, journal.Row{Phase: journal.Aborted, Reason: reason}, now)
	c.abort = reason
	close(c.done)
	if kill := in.server.cfg.KillCall; kill != nil && c.Kind == journal.Tool {
		in.server.after(toolGrace, func() { kill(c.mark) })
	}
}

// close ends all calls: their program has ended. It returns the marks of the tools that may still
// run: one that had its effect later would have it beside the next incarnation.
func (o *openCalls) close() (tools []string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.over = true
	if o.timer != nil {
		o.timer.Stop()
	}
	for id, c := range o.byID {
		if c.abort == "" {
			close(c.done)
		}
		if c.Kind == journal.Tool {
			tools = append(tools, c.mark)
		}
		delete(o.byID, id)
	}
	return tools
}

// after calls fn later, unless the server is closed by then.
func (s *Server) after(d time.Duration, fn func()) *time.Timer {
	return time.AfterFunc(d, func() {
		s.mu.Lock()
		closed := s.closed
		if !closed {
			s.work.Add(1)
		}
		s.mu.Unlock()
		if closed {
			return
		}
		defer s.work.Done()
		defer func() { _ = recover() }() // as for connections
		fn()
	})
}

// mayCall refuses calls that the op gate refuses, whatever it is asked. So programs that do
// not ask are stopped here. A final call is one for which gate has said yes; without that,
// gate is asked now.
func (in *incarnation) mayCall(c probes.Call, now time.Time) error {
	if no := in.mayAct(c.Kind, c.Name, now); no != nil && gate.HasVerdict(c.Kind) {
		return no
	}
	switch c.Kind {
	case journal.LLM:
		return in.mayAskModel()
	case journal.Tool:
		if in.beginTool() {
			return nil
		}
		if _, err := in.report(journal.Row{Op: journal.Gate, Kind: c.Kind, Name: c.Name}, now); err != nil {
			return err
		}
		in.beginTool()
	}
	return nil
}

// mayAskModel refuses a call to a model of which nobody knows what it will use.
func (in *incarnation) mayAskModel() error {
	in.mu.Lock()
	defer in.mu.Unlock()
	row := journal.Row{Op: journal.Gate, Kind: journal.LLM}
	if _, no, _ := in.decide(&row); no != nil {
		return no
	}
	return nil
}

// beginTool reports whether the call of a tool may begin, and counts it if it is a final one.
func (in *incarnation) beginTool() (allowed bool) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.context, allowed = in.context.Began(in.bounds.Context)
	return allowed
}
