package agentsocket

import (
	"testing"
	"time"

	"github.com/agbox/agbox/agents/journal"
)

func TestABeatWithAllItsFields(t *testing.T) {
	s, dir := server(t)
	a, err := s.Begin(Boot{ExecID: "e", AgentID: "agent", Number: 1, Hostname: "box"})
	if err != nil {
		t.Fatal(err)
	}
	p := dial(t, a)
	beat := func(fields string) reply {
		return p.ask(`{"type":"heartbeat","timestamp":"2025-01-01T00:00:00.000Z",%s"currentStep":3,"metrics":{"heapUsedMb":120,"uptimeSeconds":5,"stepsCompleted":3,"llmCallsTotal":9,"toolCallsTotal":4},"token":%q}`, fields, a.token)
	}
	for _, fields := range []string{``, `"agentId":"agent","jobId":"agent","podName":"e",`, `"podName":"box",`, `"lifecycleState":"BOOTING",`, `"lifecycleState":"HYDRATING",`} {
		if r := beat(fields); !r.OK {
			t.Errorf("%s: %+v", fields, r)
		}
	}
	for _, fields := range []string{`"agentId":"other",`, `"jobId":"other",`, `"podName":"agent",`, `"lifecycleState":"BOOTING",`, `"lifecycleState":"DANCING",`} {
		if r := beat(fields); r.OK || r.Error.Code != codeReport {
			t.Errorf("%s: %+v", fields, r)
		}
	}
	if got := summary(t, dir, "e"); got.Rows != 2 || got.Lifecycle != journal.Hydrating {
		t.Errorf("the journal has %+v; want a beat and a state", got)
	}
	if got := summary(t, dir, "e").Totals; got != (journal.Totals{InStep: true, Step: 3, Steps: 3, LLMCalls: 9, ToolCalls: 4}) {
		t.Errorf("the journal has the totals %+v", got)
	}
	heap := func() uint64 {
		s.mu.Lock()
		defer s.mu.Unlock()
		if used := s.byToken[a.token].news(time.Now()).HeapUsedMB; used != nil {
			return *used
		}
		return 0
	}
	if got := heap(); got != 120 {
		t.Errorf("the news have a heap of %d MB", got)
	}
	for value, want := range map[string]uint64{"-1": 0, "1e300": maxHeap, "2.6": 3} {
		if r := p.ask(`{"op":"beat","metrics":{"heapUsedMb":%s},"token":%q}`, value, a.token); !r.OK || heap() != want {
			t.Errorf("a beat with %s: %+v, %d", value, r, heap())
		}
	}
	if r := p.ask(`{"type":"other","token":%q}`, a.token); r.OK || r.Error.Code != codeOp {
		t.Errorf("another type: %+v", r)
	}
}

func TestAProgramThatOnlyBeatsSaysInWhichStateItIs(t *testing.T) {
	s, dir := server(t)
	a := begin(t, s, "e")
	p := dial(t, a)
	beat := func(state string, step, calls string) {
		t.Helper()
		r := p.ask(`{"type":"heartbeat","timestamp":"2025-01-01T00:00:00.000Z","agentId":"agent","jobId":"agent","lifecycleState":%q,"currentStep":%s,"metrics":{"heapUsedMb":120.5,"uptimeSeconds":5.5,"stepsCompleted":0,"llmCallsTotal":%s,"toolCallsTotal":4.0},"token":%q}`, state, step, calls, a.token)
		if !r.OK {
			t.Errorf("a beat in %s: %+v", state, r)
		}
	}
	beat("BOOTING", "null", "0")
	beat("EXECUTING", "0", "0")
	before := summary(t, dir, "e")
	if before.Rows != 5 || before.Lifecycle != journal.Executing || !before.Totals.InStep || before.Totals.ToolCalls != 4 {
		t.Errorf("the journal has %+v", before)
	}
	beat("EXECUTING", "0", "0")
	beat("EXECUTING", "0", "-1")
	if got := summary(t, dir, "e"); got != before {
		t.Errorf("beats without news made it %+v; want %+v", got, before)
	}
	_, write := s.Drain("e", func(string) time.Time { return time.Now().Add(time.Hour) })
	write()
	beat("EXECUTING", "1", "1e300") // has not noticed the drain
	if got := summary(t, dir, "e"); got.Lifecycle != journal.Draining || got.Totals.Step != 1 || got.Totals.LLMCalls != maxTotal {
		t.Errorf("during a drain it is %+v", got)
	}
}
