// Package execs runs commands in sandboxes: it passes accepted execs to the supervisors
// and records how they end.
package execs

import (
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/agbox/agbox/daemon/guests/links"
	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/internal/paths"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"
)

// Runner runs commands over the links to supervisors.
type Runner struct {
	links  *links.Links
	ledger *ledger.Ledger
	paths  paths.Install
	now    func() time.Time
	log    *slog.Logger

	// looked counts the journals whose sizes were read. Tests bound it.
	looked atomic.Uint64
}

// New makes a Runner. It receives the reports of all links. It has no goroutines of its
// own: Links.Close waits for its work.
func New(l *links.Links, book *ledger.Ledger, install paths.Install, now func() time.Time, log *slog.Logger) *Runner {
	r := &Runner{links: l, ledger: book, paths: install, now: now, log: log}
	l.SendReports(r)
	return r
}

// DefaultGrace is the default time between SIGTERM and SIGKILL.
const DefaultGrace = 5 * time.Second

// limit copies the limits of an exec to its start request. The supervisor enforces them,
// even while no daemon runs.
func limit(out *guestv1.StartRequest, req *agboxv1.CreateExecRequest) {
	out.MaxLogBytes = req.GetMaxLogBytes()
	out.TimeoutMs, out.IdleTimeoutMs = inMilliseconds(req.GetTimeout()), inMilliseconds(req.GetIdleTimeout())
	if out.TimeoutMs == 0 && out.IdleTimeoutMs == 0 {
		return
	}
	out.GraceMs = uint32(DefaultGrace.Milliseconds())
	if req.GetGrace() != nil {
		out.GraceMs = uint32(req.GetGrace().AsDuration().Milliseconds())
	}
}

// inMilliseconds rounds up: a limit must not expire early, and must not become 0.
func inMilliseconds(d *durationpb.Duration) uint64 {
	return roundedUp(d.AsDuration())
}

// takesLimits refuses limits if the supervisor is too old for them. It would run the
// command without them.
func takesLimits(lk *links.Link, req *agboxv1.CreateExecRequest) error {
	limited := req.GetTimeout() != nil || req.GetIdleTimeout() != nil || req.GetMaxLogBytes() != 0
	if !limited || lk.Conn.Limits() {
		return nil
	}
	return fault.New(errdefs.ErrFailedPrecondition, agboxv1.ErrorReason_UNSUPPORTED_SPEC,
		"Sandbox %s was started by an older agbox, whose supervisor knows no limits of a command. Create a new sandbox, or leave the limits out.",
		req.GetSandboxId()).With("sandbox_id", req.GetSandboxId())
}

// roundedUp returns milliseconds. Nothing that is set becomes 0.
func roundedUp(d time.Duration) uint64 {
	return uint64(max(0, d+time.Millisecond-1) / time.Millisecond)
}
