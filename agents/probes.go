package agents

import (
	"strconv"
	"strings"
	"time"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// Probes are the checks that the supervisor makes of a program.
type Probes struct {
	Liveness, Readiness, Startup Probe
	// AwaitReport and AwaitReady count to the start until the program has reported that it
	// is ready, or until its readiness probe has succeeded.
	AwaitReport, AwaitReady bool
}

// Probe is one check. It has at most one target: an HTTP server, a command or the reports
// of the program itself.
type Probe struct {
	Port    uint16
	Path    string
	Command []string
	Report  bool
	// MaxSilence is how old the newest beat may be if Report is set. 0 means that beats do
	// not count.
	MaxSilence time.Duration
	// Period is the time between two checks, Timeout how long one may take, Failures how
	// many in a row count.
	Period, Timeout time.Duration
	Failures        uint32
}

// The defaults of probes, rows 64 to 67 of the requirements.
var (
	defaultLiveness  = Probe{Port: 8086, Path: "/healthz", Period: 10 * time.Second, Timeout: 5 * time.Second, Failures: 3}
	defaultReadiness = Probe{Port: 8086, Path: "/readyz", Period: 5 * time.Second, Timeout: 3 * time.Second, Failures: 2}
	defaultStartup   = Probe{Period: 5 * time.Second, Timeout: 5 * time.Second, Failures: 12}
)

// probesOf returns the probes of a spec with every default.
func probesOf(s *agboxv1.AgentSpec, beat HeartbeatRules) Probes {
	p := Probes{
		Startup:     probeOf(s.GetProbes().GetStartup(), defaultStartup),
		AwaitReport: s.GetReady() == agboxv1.AgentReady_AGENT_READY_REPORT,
		AwaitReady:  s.GetReady() == agboxv1.AgentReady_AGENT_READY_PROBE,
	}
	if live := s.GetProbes().GetLiveness(); live != nil {
		p.Liveness = probeOf(live, defaultLiveness)
		if p.Liveness.Report {
			p.Liveness.MaxSilence = beat.Interval + p.Liveness.Timeout
		}
	}
	if ready := s.GetProbes().GetReadiness(); ready != nil || p.AwaitReady {
		p.Readiness = probeOf(ready, defaultReadiness)
	}
	return p
}

// probeOf returns a probe. What it leaves open is as in unset.
func probeOf(p *agboxv1.AgentProbe, unset Probe) Probe {
	probe := unset
	if p.GetHttp() != "" || len(p.GetExec()) > 0 || p.GetReport() {
		probe.Port, probe.Path = endpoint(p.GetHttp())
		probe.Command, probe.Report = p.GetExec(), p.GetReport()
	}
	probe.Period, probe.Timeout = length(p.GetPeriod(), unset.Period), length(p.GetTimeout(), unset.Timeout)
	probe.Failures = or(p.GetFailures(), unset.Failures)
	return probe
}

// endpoint splits "8086/healthz". The port is 0 if there is none.
func endpoint(text string) (port uint16, path string) {
	number, path, _ := strings.Cut(text, "/")
	n, err := strconv.ParseUint(number, 10, 16)
	if err != nil {
		return 0, ""
	}
	return uint16(n), "/" + path
}

// checkProbes checks that a probe has one target that exists.
func checkProbes(s *agboxv1.AgentSpec, problem Report) {
	names := [...]string{"liveness", "readiness", "startup"}
	for i, p := range []*agboxv1.AgentProbe{s.GetProbes().GetLiveness(), s.GetProbes().GetReadiness(), s.GetProbes().GetStartup()} {
		path := []any{"probes", names[i]}
		targets := 0
		for _, set := range []bool{p.GetHttp() != "", len(p.GetExec()) > 0, p.GetReport()} {
			if set {
				targets++
			}
		}
		switch port, _ := endpoint(p.GetHttp()); {
		case targets > 1:
			problem(path, "http, exec and report exclude each other: keep one of them")
		case p.GetHttp() != "" && port == 0:
			problem(append(path, "http"), "%.40q has no port that exists: write PORT/PATH with a port from 1 to 65535, for example 8086/healthz", p.GetHttp())
		case len(p.GetExec()) > 0 && p.GetExec()[0] == "":
			problem(append(path, "exec", 0), "The command has no name: write one first, for example [test, -e, /tmp/ready]")
		}
		for i, word := range p.GetExec() {
			if strings.Contains(word, "\x00") {
				problem(append(path, "exec", i), "The word has a NUL byte, which no command can take: remove it")
			}
		}
	}
}
