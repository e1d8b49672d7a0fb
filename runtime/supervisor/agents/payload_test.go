package agents

import (
	"testing"
	"time"

	"github.com/agbox/agbox/internal/journal"
)

func TestABeatWithAllItsFields(t *testing.T) {
	s, dir := server(t)
	a := begin(t, s, "e")
	p := dial(t, a)
	beat := func(fields string) reply {
		return p.ask(`{"type":"heartbeat","timestamp":"2025-01-01T00:00:00.000Z",%s"currentStep":3,"metrics":{"heapUsedMb":120,"uptimeSeconds":5,"stepsCompleted":3,"llmCallsTotal":9,"toolCallsTotal":4},"token":%q}`, fields, a.token)
	}
	for _, fields := range []string{``, `"agentId":"agent","jobId":"agent","podName":"e",`, `"lifecycleState":"BOOTING",`, `"lifecycleState":"HYDRATING",`} {
		if r := beat(fields); !r.OK {
			t.Errorf("%s: %+v", fields, r)
		}
	}
	for _, fields := range []string{`"agentId":"other",`, `"jobId":"other",`, `"podName":"agent",`, `"lifecycleState":"EXECUTING",`} {
		if r := beat(fields); r.OK || r.Error.Code != codeReport {
			t.Errorf("%s: %+v", fields, r)
		}
	}
	if got := summary(t, dir, "e"); got.Rows != 2 || got.Lifecycle != journal.Hydrating {
		t.Errorf("the journal has %+v; want a beat and a state", got)
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
