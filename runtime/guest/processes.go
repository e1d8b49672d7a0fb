package guest

import (
	"context"
	"math"
	"time"

	"github.com/agbox/agbox/internal/ids"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"
	"github.com/agbox/agbox/runtime/guest/wire"
)

// MaxProcesses is the greatest number of processes that Processes lists.
const MaxProcesses = 4096

// maxUser is more than the length of the name of a user in a list of processes, in bytes.
const maxUser = 256

// Processes lists the processes of the container, ordered by pid. more means that there are
// more than MaxProcesses, which are left out. A supervisor that is too old fails with
// errdefs.ErrNotImplemented.
func (c *Conn) Processes(ctx context.Context) (list []*guestv1.Process, at time.Time, more bool, err error) {
	for after := uint32(0); ; {
		page, err := c.client.Processes(ctx, &guestv1.ProcessesRequest{AfterPid: after})
		if err != nil {
			return nil, time.Time{}, false, c.explain(ctx, err)
		}
		for _, p := range page.GetProcesses() {
			if what := invalidProcess(p, after); what != "" {
				return nil, time.Time{}, false, c.violation("it sent " + what)
			}
			after = p.GetPid()
		}
		if page.GetAt().CheckValid() != nil || page.GetMore() && len(page.GetProcesses()) == 0 {
			return nil, time.Time{}, false, c.violation("it sent a list of processes that is not valid")
		}
		if at.IsZero() {
			at = page.GetAt().AsTime()
		}
		list, more = append(list, page.GetProcesses()...), page.GetMore()
		if len(list) >= MaxProcesses {
			more = more || len(list) > MaxProcesses
			return list[:MaxProcesses], at, more, nil
		}
		if !more {
			return list, at, false, nil
		}
	}
}

// invalidProcess describes the first invalid field of a process that stands after the one with
// the pid after in a list; it is empty if the process is valid.
func invalidProcess(p *guestv1.Process, after uint32) string {
	switch {
	case p.GetPid() <= after:
		return "processes in a wrong order"
	case len(p.GetUser()) > maxUser, len(p.GetState()) > maxState, len(p.GetCommand()) > wire.MaxRecordedText:
		return "a process with a text that is too long"
	case p.GetExecId() != "" && !ids.Valid(p.GetExecId()):
		return "a process of an exec with an id that is not valid"
	case p.GetStartedAt().CheckValid() != nil:
		return "a process with a start that does not exist"
	case p.GetCpuMs() > uint64(math.MaxInt64/time.Millisecond), p.GetMemoryBytes() > math.MaxInt64:
		return "a process with a usage that is too large"
	}
	return ""
}
