package agentsocket

import (
	"math"
	"time"

	"github.com/agbox/agbox/runtime/supervisor/probes"
)

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

// maxHeap bounds what is believed of a heap, in MB.
const maxHeap = 1e9

// felt keeps what a beat says about the health of its program.
func (in *incarnation) felt(m metrics) {
	in.server.changed(in, func(p *pulse) {
		p.lag = time.Duration(min(max(0, m.EventLoopLag), time.Hour.Seconds()) * float64(time.Second))
		p.poolEmpty = m.FreeConnections != nil && *m.FreeConnections < 1
		if m.HeapUsed != nil {
			heap := uint64(math.Round(min(max(0, *m.HeapUsed), maxHeap)))
			p.heap = &heap
		}
	})
}

// health is the answer to the op health.
type health struct {
	State    string `json:"state"`
	SilentMS int64  `json:"silent_ms"`
	Alive    bool   `json:"alive"`
	Ready    bool   `json:"ready"`
}

// health answers the op health. It is no report: that somebody asks does not show that the
// program works.
func (in *incarnation) health(now time.Time) health {
	r := in.reported(now)
	return health{State: r.State, SilentMS: r.Silent.Milliseconds(), Alive: r.Alive(), Ready: r.Ready()}
}

// reported is what the program has reported last.
func (in *incarnation) reported(now time.Time) probes.Reported {
	in.server.mu.Lock()
	defer in.server.mu.Unlock()
	return probes.Reported{State: in.pulse.lifecycle, Silent: in.news(now).Silent, Lag: in.pulse.lag, PoolEmpty: in.pulse.poolEmpty}
}

// Reported returns what the program of an exec has reported last. It is zero for an exec
// that is no running incarnation.
func (s *Server) Reported(execID string) probes.Reported {
	if in := s.of(execID); in != nil {
		return in.reported(time.Now())
	}
	return probes.Reported{}
}

// Ready tells followers the result of the readiness probe of an exec.
func (s *Server) Ready(execID string, ready bool) {
	if in := s.of(execID); in != nil {
		s.changed(in, func(p *pulse) { p.ready, p.changes = &ready, p.changes+1 })
	}
}

// of returns the running incarnation that is an exec, or nil.
func (s *Server) of(execID string) *incarnation {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byToken[s.byExec[execID]]
}
