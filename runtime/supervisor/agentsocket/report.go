package agentsocket

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/agbox/agbox/agents/journal"
)

// report checks a row and appends it to the journal. The error is a *refusal.
func (in *incarnation) report(r journal.Row, now time.Time) (journal.Summary, error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.over {
		return in.sum, refused(codeToken)
	}
	if r.Op == journal.Beat {
		in.server.beaten(in, now)
		in.keepBeat(now)
		if in.armed {
			in.keepTotals(r, now)
			return in.sum, nil
		}
	}
	if r.Op == journal.Step && r.Steps == 0 {
		r.Steps = in.sum.Steps + 1
	}
	if r.Op == journal.State && in.unobserved(r.State) {
		return in.sum, refused(codeObservation)
	}
	context, no, write := in.decide(&r)
	if write {
		if err := in.write(r, now, nil); err != nil {
			return in.sum, err
		}
		in.context = context
	}
	if no != nil {
		return in.sum, no
	}
	return in.sum, nil
}

// keepTotals writes down the totals of a beat that differ from those before. A beat counts also
// if that fails, for example because the journal is full. mu is held.
func (in *incarnation) keepTotals(beat journal.Row, now time.Time) {
	if t := beat.Totals; t != nil && in.sum.Totals.Then(*t) != in.sum.Totals {
		_ = in.write(beat, now, nil)
	}
}

// write appends a row that may follow the rows before it, after first if that is not nil. mu
// is held.
func (in *incarnation) write(r journal.Row, now time.Time, first func() error) error {
	r.At = now.UnixMilli()
	if in.redactor != nil && r.Op != journal.Send { // a message arrives as it was sent
		for _, text := range []*string{&r.Text, &r.Stack, &r.Reason} {
			*text = string(in.redactor.Replace([]byte(*text)))
		}
	}
	next, err := in.sum.Next(r)
	if err != nil {
		return &refusal{codeReport, err.Error()}
	}
	line, err := journal.Encode(r)
	if err != nil {
		return &refusal{codeReport, err.Error()}
	}
	durable := slices.Contains(durable[:], r.Op) || r.Refused
	in.server.cfg.Disk(func() {
		if first != nil {
			err = first()
		}
		if err == nil {
			err = in.append(line, durable)
		}
	})
	if err != nil {
		return unstored(err)
	}
	if r.Op == journal.Beat {
		in.armed = true
	}
	in.sum = next
	in.server.changed(in, func(p *pulse) {
		p.rows, p.lifecycle, p.changes = next.Rows, next.Lifecycle, p.changes+1
		p.save = p.save && r.Op != journal.Checkpoint
	})
	return nil
}

// durable has the reports that are on disk before they are answered.
var durable = [...]string{journal.Usage, journal.Done, journal.Phase, journal.Checkpoint, journal.Send, journal.Observed, journal.Error}

// append writes a row. mu is held.
func (in *incarnation) append(line []byte, durable bool) (err error) {
	if in.file == nil {
		cfg := &in.server.cfg
		if in.file, err = cfg.Logs.CreateJournal(in.execID, cmp.Or(in.journalMax, journal.MaxJournal), cfg.Quota, cfg.Owner); err != nil {
			return err
		}
	}
	return in.file.Append(line, durable)
}

// end refuses further rows.
func (in *incarnation) end() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.over = true
	if in.file != nil {
		in.server.cfg.Disk(func() { _ = in.file.Close() }) // what must last was synced
	}
	if in.beats != nil {
		in.server.cfg.Disk(func() { _ = in.beats.Close() })
	}
}

// believe checks what a beat says about its sender, and reports the state that it has, with the
// states before it: a program that only beats says in which state it is, not which it has left.
// A drain that the program has not noticed is no contradiction. The error is a *refusal.
func (in *incarnation) believe(req request, now time.Time) error {
	for _, claim := range []struct {
		name, is string
		must     []string
	}{
		{"agentId", req.AgentID, []string{in.agentID}}, {"jobId", req.JobID, []string{in.agentID}}, {"podName", req.PodName, []string{in.execID, in.hostname}},
	} {
		if claim.is != "" && !slices.Contains(claim.must, claim.is) {
			return &refusal{codeReport, fmt.Sprintf("The beat has the %s %.64q, and the token is of %s: leave the field out, or give AGBOX_AGENT_ID and, as podName, HOSTNAME or AGBOX_EXEC_ID.", claim.name, claim.is, claim.must[0])}
		}
	}
	in.mu.Lock()
	known, drained := in.sum.Lifecycle, in.sum.Drained
	in.mu.Unlock()
	if req.LifecycleState == "" || req.LifecycleState == known {
		return nil
	}
	way := journal.Between(known, req.LifecycleState)
	switch {
	case way == nil && drained && journal.Between(req.LifecycleState, known) != nil:
		return nil
	case way == nil:
		way = []string{req.LifecycleState} // is refused, with the states that may follow
	}
	for _, state := range way {
		if _, err := in.report(journal.Row{Op: journal.State, State: state}, now); err != nil {
			return err
		}
	}
	return nil
}

// unstored is the refusal of a report that cannot be written down.
func unstored(err error) error {
	return &refusal{codeJournal, "The report cannot be written down (" + err.Error() + "): see that the daemon's log directory has room, and that the logs of the sandbox have not reached their limit."}
}

// unobserved reports whether the program is not ready yet, and may not report that it is,
// because it has not taken the observation of what changed while its agent was paused. mu is
// held.
func (in *incarnation) unobserved(state string) bool {
	begins := in.sum.Phase == journal.Pending && (state == journal.Ready || state == journal.Executing)
	return begins && in.observation > in.sum.Observation
}
