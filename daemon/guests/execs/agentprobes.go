package execs

import (
	"time"

	guestv1 "github.com/agbox/agbox/proto/guest/v1"

	"github.com/agbox/agbox/daemon/machine/agent"
)

// probesOf converts the probes of a program for its supervisor.
func probesOf(p agent.Probes) *guestv1.Probes {
	return &guestv1.Probes{
		Liveness: probeOf(p.Liveness), Readiness: probeOf(p.Readiness), Startup: probeOf(p.Startup),
		AwaitReport: p.AwaitReport, AwaitReady: p.AwaitReady,
	}
}

func probeOf(p agent.Probe) *guestv1.Probe {
	return &guestv1.Probe{
		Port: uint32(p.Port), Path: p.Path, Command: p.Command, Report: p.Report, MaxSilenceMs: roundedUp(p.MaxSilence),
		PeriodMs: roundedUp(p.Period), TimeoutMs: roundedUp(p.Timeout), Failures: p.Failures,
	}
}

// roundedUp returns milliseconds. Nothing that is set becomes 0.
func roundedUp(d time.Duration) uint64 {
	return uint64(max(0, d+time.Millisecond-1) / time.Millisecond)
}
