package supervisor

import (
	"context"
	"errors"
	"math"
	"syscall"
	"time"

	guestv1 "github.com/agbox/agbox/proto/guest/v1"
	"github.com/agbox/agbox/runtime/supervisor/agentsocket"
	"github.com/agbox/agbox/runtime/supervisor/probes"
)

// startGrace is the time between SIGTERM and SIGKILL for a program that did not start in
// time. One that fails its liveness probe gets SIGKILL at once: it would not react.
const startGrace = 5 * time.Second

// probe begins to check the program of an incarnation. It returns nil if there is nothing
// to check.
func (s *Supervisor) probe(e *execution, req *guestv1.StartRequest, access *agentsocket.Access) *probes.Prober {
	rules := probeRules(req.GetAgent().GetProbes())
	if rules.Empty() {
		return nil
	}
	if rules.Readiness.Set() {
		s.agents.Ready(e.id, false)
	}
	return probes.Start(rules, probes.Host{
		Check: func(ctx context.Context, t probes.Target) probes.Result {
			switch {
			case t.Report:
				return s.agents.Reported(e.id).Check(t)
			case len(t.Command) > 0:
				return s.probeByCommand(ctx, req, access, t.Command)
			}
			return probes.HTTP(ctx, t.Port, t.Path)
		},
		Reported: func() bool { return s.agents.Reported(e.id).Started() },
		Ready:    func(ready bool) { s.agents.Ready(e.id, ready) },
		End: func(c probes.Cause) {
			select {
			case <-s.stopping: // everything ends, with a grace period
				return
			default:
			}
			if c == probes.NotStarted {
				s.cancel(e, startGrace, guestv1.EndCause_END_CAUSE_STARTUP)
				return
			}
			s.cancel(e, 0, guestv1.EndCause_END_CAUSE_LIVENESS)
		},
	})
}

// probeRules converts the probes of a request.
func probeRules(p *guestv1.Probes) probes.Rules {
	one := func(p *guestv1.Probe) probes.Probe {
		return probes.Probe{
			Target: probes.Target{
				Port: uint16(min(p.GetPort(), math.MaxUint16)), Path: p.GetPath(), Command: p.GetCommand(),
				Report: p.GetReport(), MaxSilence: milliseconds(p.GetMaxSilenceMs()),
			},
			Period: max(time.Millisecond, milliseconds(p.GetPeriodMs())), Timeout: milliseconds(p.GetTimeoutMs()), Failures: int(max(1, p.GetFailures())),
		}
	}
	return probes.Rules{
		Liveness: one(p.GetLiveness()), Readiness: one(p.GetReadiness()), Startup: one(p.GetStartup()),
		AwaitReport: p.GetAwaitReport(), AwaitReady: p.GetAwaitReady(),
	}
}

// probeByCommand runs a command as the program of an incarnation runs. Its output is not
// kept. What it leaves running is killed.
func (s *Supervisor) probeByCommand(ctx context.Context, of *guestv1.StartRequest, access *agentsocket.Access, command []string) probes.Result {
	req := of.CloneVT()
	req.Command, req.Tty = command, false
	var p *plan
	var fail *startError
	s.files.do(func() { p, fail = s.plan(req, access) })
	if fail != nil {
		return probes.Failed
	}
	null := s.devNull.Fd()
	ch, err := s.children.start(of.GetExecId(), p.path, p.argv, &syscall.ProcAttr{
		Dir: p.dir, Env: p.env, Files: []uintptr{null, null, null},
		Sys: &syscall.SysProcAttr{Setsid: true, Credential: p.credential},
	})
	switch {
	case errors.Is(err, errEnding), errors.Is(err, syscall.EAGAIN), errors.Is(err, syscall.ENOMEM):
		return probes.Unknown
	case err != nil:
		return probes.Failed
	}
	preferForOOM(ch.pid)
	t := &tree{leader: ch.pid, mark: ch.mark, known: make(map[key]bool)}
	var end exit
	ended := false
	select {
	case end = <-ch.exited:
		ended = true
	case <-ctx.Done():
		s.look.do(func() { t.look(true) })
	}
	s.killTree(ch, t)
	if ended && end.status.Exited() && end.status.ExitStatus() == 0 {
		return probes.Passed
	}
	return probes.Failed
}
