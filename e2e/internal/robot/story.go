package robot

import (
	"encoding/json"
	"testing"

	"github.com/agbox/agbox/e2e/internal/robot/diary"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// Story is what a robot did in all its incarnations.
type Story struct {
	agentID string
	entries []diary.Entry
	effects []string
}

// Story reads what an agent's robot did so far.
func (f Folder) Story(t *testing.T, agentID string) Story {
	t.Helper()
	s := Story{agentID: agentID}
	var err error
	if s.entries, err = diary.Read(diary.Name(string(f), agentID)); err == nil {
		s.effects, err = diary.Lines(diary.Effects(string(f), agentID))
	}
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Count returns how many entries say that something happened.
func (s Story) Count(what string) (n int) {
	for _, e := range s.entries {
		if e.What == what {
			n++
		}
	}
	return n
}

// Last returns the newest entries as lines for people, without the variables of an incarnation.
func (s Story) Last(n int) (lines []string) {
	for _, e := range s.entries[max(0, len(s.entries)-n):] {
		e.Env = nil
		line, err := json.Marshal(e)
		if err != nil {
			line = []byte(err.Error())
		}
		lines = append(lines, string(line))
	}
	return lines
}

// Env returns the variables of agbox that an incarnation had, nil if it did not begin.
func (s Story) Env(incarnation uint32) map[string]string {
	for _, e := range s.entries {
		if e.What == diary.Begin && e.Incarnation == incarnation {
			return e.Env
		}
	}
	return nil
}

// Effects returns how many effects there are.
func (s Story) Effects() int { return len(s.effects) }

// reported is the highest figures of each incarnation, added up.
type reported struct{ input, output, steps uint64 }

// sum adds up what the incarnations have sent, or what was acknowledged.
func (s Story) sum(what string) (total reported) {
	highest := make(map[uint32]reported)
	for _, e := range s.entries {
		if e.What == what {
			h := highest[e.Incarnation]
			highest[e.Incarnation] = reported{max(h.input, e.InputTokens), max(h.output, e.OutputTokens), max(h.steps, e.Steps)}
		}
	}
	for _, h := range highest {
		total.input, total.output, total.steps = total.input+h.input, total.output+h.output, total.steps+h.steps
	}
	return total
}

// Check checks an agent without a running incarnation against what its robot did: one
// incarnation at a time, each effect once and in order, all that was acknowledged in the
// record, and nothing there that was never sent.
func (s Story) Check(t *testing.T, a *agboxv1.Agent) {
	t.Helper()
	if n := s.Count(diary.Overlap); n > 0 {
		t.Errorf("agent %s: %d incarnations began while another one lived", s.agentID, n)
	}
	last := uint32(0)
	for _, e := range s.entries {
		if e.What == diary.Begin {
			if e.Incarnation <= last {
				t.Errorf("agent %s: incarnation %d began after %d", s.agentID, e.Incarnation, last)
			}
			last = e.Incarnation
		}
	}
	if last > a.GetIncarnation() {
		t.Errorf("agent %s: incarnation %d ran, and the record has %d", s.agentID, last, a.GetIncarnation())
	}
	s.checkCheckpoints(t, a)
	for i, id := range s.effects {
		if want := diary.Invocation(s.agentID, i+1); id != want {
			t.Errorf("agent %s: effect %d is %q; want %q, once and in order", s.agentID, i+1, id, want)
		}
	}
	acked, sent, p := s.sum(diary.Ack), s.sum(diary.Send), a.GetProgress()
	recorded := reported{p.GetTotal().GetInputTokens(), p.GetTotal().GetOutputTokens(), p.GetSteps()}
	for _, row := range []struct {
		what                  string
		acked, recorded, sent uint64
	}{
		{"input tokens", acked.input, recorded.input, sent.input},
		{"output tokens", acked.output, recorded.output, sent.output},
		{"steps", acked.steps, recorded.steps, sent.steps},
	} {
		if row.recorded < row.acked || row.recorded > row.sent {
			t.Errorf("agent %s: %d %s are recorded; %d were acknowledged, and %d were sent", s.agentID, row.recorded, row.what, row.acked, row.sent)
		}
	}
}

// checkCheckpoints checks that each incarnation went on after the newest checkpoint that was
// acknowledged, or after a newer one that was sent, and that the record has it.
func (s Story) checkCheckpoints(t *testing.T, a *agboxv1.Agent) {
	t.Helper()
	acked, sent := diary.Entry{}, 0
	for _, e := range s.entries {
		switch {
		case e.What == diary.Begin && acked.Checkpoint > 0 && (e.From < acked.Step || e.From > sent && e.Env["AGBOX_CHECKPOINT"] != ""):
			t.Errorf("agent %s: incarnation %d went on after step %d; the newest checkpoint was of step %d", s.agentID, e.Incarnation, e.From, acked.Step)
		case e.Op != "checkpoint":
		case e.What == diary.Send:
			sent = e.Step
		case e.What == diary.Ack:
			acked = e
		}
	}
	if a.GetCheckpoint().GetSeq() < acked.Checkpoint {
		t.Errorf("agent %s: checkpoint %d is recorded; %d was acknowledged", s.agentID, a.GetCheckpoint().GetSeq(), acked.Checkpoint)
	}
}

// CheckCompleted is Check of an agent that has completed its work.
func (s Story) CheckCompleted(t *testing.T, a *agboxv1.Agent, p Plan) {
	t.Helper()
	if a.GetState() != agboxv1.AgentState_AGENT_STATE_COMPLETED {
		t.Errorf("agent %s is %s (%s); want it COMPLETED", s.agentID, a.GetWord(), a.GetMessage())
	}
	if len(s.effects) != p.Steps {
		t.Errorf("agent %s has %d effects; want %d", s.agentID, len(s.effects), p.Steps)
	}
	s.Check(t, a)
}
