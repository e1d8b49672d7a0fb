package agents

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// The figures are those of the requirements.
func TestTheDefaultsOfProbes(t *testing.T) {
	if p := RulesOf(new(agboxv1.AgentSpec)).Probes; p.Liveness.Failures != 0 || p.Readiness.Failures != 0 || p.AwaitReport || p.AwaitReady {
		t.Errorf("without any probe: %+v", p)
	}
	p := RulesOf(&agboxv1.AgentSpec{Probes: &agboxv1.AgentProbes{Liveness: new(agboxv1.AgentProbe), Readiness: new(agboxv1.AgentProbe)}}).Probes
	for _, row := range []struct {
		name            string
		got             Probe
		port            uint16
		path            string
		period, timeout time.Duration
		failures        uint32
		within          time.Duration
	}{
		{"liveness", p.Liveness, 8086, "/healthz", 10 * time.Second, 5 * time.Second, 3, 30 * time.Second},
		{"readiness", p.Readiness, 8086, "/readyz", 5 * time.Second, 3 * time.Second, 2, 10 * time.Second},
		{"startup", p.Startup, 0, "", 5 * time.Second, 5 * time.Second, 12, time.Minute},
	} {
		got := row.got
		if got.Port != row.port || got.Path != row.path || got.Period != row.period || got.Timeout != row.timeout || got.Failures != row.failures ||
			got.Period*time.Duration(got.Failures) != row.within {
			t.Errorf("%s: %+v", row.name, got)
		}
	}
}

func TestWhatASpecSaysOfProbes(t *testing.T) {
	s := &agboxv1.AgentSpec{
		Ready:     agboxv1.AgentReady_AGENT_READY_PROBE,
		Heartbeat: &agboxv1.AgentHeartbeat{Interval: durationpb.New(2 * time.Second)},
		Probes: &agboxv1.AgentProbes{
			Liveness: &agboxv1.AgentProbe{Report: true, Timeout: durationpb.New(time.Second), Failures: 7},
			Startup:  &agboxv1.AgentProbe{Http: "80", Period: durationpb.New(time.Minute)},
		},
	}
	p := RulesOf(s).Probes
	if l := p.Liveness; !l.Report || l.Port != 0 || l.MaxSilence != 3*time.Second || l.Period != 10*time.Second || l.Failures != 7 {
		t.Errorf("liveness: %+v", l)
	}
	if l := p.Startup; l.Port != 80 || l.Path != "/" || l.Period != time.Minute || l.Failures != 12 {
		t.Errorf("startup: %+v", l)
	}
	if l := p.Readiness; !p.AwaitReady || l.Port != 8086 || l.Path != "/readyz" {
		t.Errorf("the readiness that ready: probe needs: %+v", l)
	}
	s.Probes.Readiness = &agboxv1.AgentProbe{Exec: []string{"test", "-e", "/x"}}
	if l := RulesOf(s).Probes.Readiness; l.Port != 0 || l.Path != "" || !slices.Equal(l.Command, s.GetProbes().GetReadiness().GetExec()) {
		t.Errorf("readiness by a command: %+v", l)
	}
	s.Ready = agboxv1.AgentReady_AGENT_READY_REPORT
	if p := RulesOf(s).Probes; !p.AwaitReport || p.AwaitReady {
		t.Errorf("ready: report: %+v", p)
	}
}

func TestWrongProbes(t *testing.T) {
	for _, row := range []struct {
		in   *agboxv1.AgentProbe
		want []string
	}{
		{nil, nil}, {&agboxv1.AgentProbe{}, nil}, {&agboxv1.AgentProbe{Http: "1/x"}, nil}, {&agboxv1.AgentProbe{Http: "65535"}, nil},
		{&agboxv1.AgentProbe{Http: "65536/x"}, []string{"[probes readiness http]"}},
		{&agboxv1.AgentProbe{Http: "1", Report: true}, []string{"[probes readiness]"}},
		{&agboxv1.AgentProbe{Exec: []string{"x"}, Report: true}, []string{"[probes readiness]"}},
		{&agboxv1.AgentProbe{Exec: []string{"", "x\x00"}}, []string{"[probes readiness exec 0]", "[probes readiness exec 1]"}},
	} {
		var got []string
		checkProbes(&agboxv1.AgentSpec{Probes: &agboxv1.AgentProbes{Readiness: row.in}}, func(path []any, format string, args ...any) {
			if len(fmt.Sprintf(format, args...)) < 30 {
				t.Errorf("%v: the sentence %q does not help", row.in, format)
			}
			got = append(got, fmt.Sprint(path))
		})
		if !slices.Equal(got, row.want) {
			t.Errorf("%v: problems %q; want %q", row.in, got, row.want)
		}
	}
}
