package supervisor

import (
	"syscall"
	"time"

	guestv1 "github.com/agbox/agbox/proto/guestlite/v1"
	"github.com/agbox/agbox/runtime/supervisor/probes"
)

// callLimits converts how long the calls of a program may take.
func callLimits(c *guestv1.CallLimits) probes.Limits {
	limits := probes.Limits{
		Connect: milliseconds(c.GetConnectMs()), Response: milliseconds(c.GetResponseMs()),
		LLMTotal: milliseconds(c.GetLlmTotalMs()), LLMChunk: milliseconds(c.GetLlmChunkMs()),
		Tool: milliseconds(c.GetToolMs()), Tools: make(map[string]time.Duration, len(c.GetToolsMs())),
	}
	for name, ms := range c.GetToolsMs() {
		limits.Tools[name] = milliseconds(ms)
	}
	return limits
}

// killCall kills the processes of a tool that "agbox-agent tool" has not ended in time, and
// what they have started.
func (s *Supervisor) killCall(mark string) {
	t := &tree{leader: -1, marker: probes.CallVariable + "=" + mark, known: make(map[key]bool)}
	s.killRepeatedly(func() int {
		found := t.look(false)
		for _, p := range found {
			p.kill(syscall.SIGKILL)
		}
		return len(found)
	})
}
