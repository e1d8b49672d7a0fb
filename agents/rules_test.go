package agents

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// The figures are those of the requirements.
func TestTheDefaultsOfCalls(t *testing.T) {
	got := RulesOf(nil).Calls
	if got.Connect != 30*time.Second || got.Response != 120*time.Second || got.LLMTotal != 300*time.Second || got.LLMChunk != 60*time.Second || got.Tool != time.Minute {
		t.Errorf("%+v", got)
	}
	want := map[string]int{
		"kubectl_apply": 30, "kubectl_get": 15, "file_read": 10, "file_write": 10, "browser_navigate": 120, "browser_screenshot": 30,
		"http_request": 120, "git_clone": 300, "git_push": 60,
	}
	seconds := make(map[string]int)
	for name, d := range got.Tools {
		seconds[name] = int(d.Seconds())
	}
	if !maps.Equal(seconds, want) {
		t.Errorf("tools: %v; want %v", seconds, want)
	}
	own := RulesOf(&agboxv1.AgentSpec{Calls: &agboxv1.AgentCalls{
		Tool: durationpb.New(0), Tools: map[string]*durationpb.Duration{"git_clone": durationpb.New(time.Hour), "mine": durationpb.New(time.Second)},
	}}).Calls
	if own.Tool != 0 || own.Tools["git_clone"] != time.Hour || own.Tools["mine"] != time.Second || own.Tools["git_push"] != time.Minute {
		t.Errorf("own figures: %+v", own)
	}
}

// TestTheInvariantOfADrain checks that the phases take at most 65 s together and leave a
// buffer. What is unset has its default: 5, 45, 10 and 5 s.
func TestTheInvariantOfADrain(t *testing.T) {
	const unset = -1
	for _, row := range []struct {
		preStop, step, cleanup, buffer time.Duration // in seconds
		total                          time.Duration
		at, want                       string
	}{
		{unset, unset, unset, unset, 65 * time.Second, "", ""},
		{5, 45, 10, 5, 65 * time.Second, "", ""},
		{0, 0, 0, 1, time.Second, "", ""},
		{6, 44, unset, unset, 65 * time.Second, "", ""},
		{6, unset, unset, unset, 66 * time.Second, "[drain]", "these phases take 1m6s: pre_stop 6s, step 45s, cleanup 10s, buffer 5s"},
		{unset, unset, unset, 6, 66 * time.Second, "[drain]", "these phases take 1m6s"},
		{5, 45, 15, 0, 65 * time.Second, "[drain buffer]", "write more than 0s"},
	} {
		length := func(s time.Duration) *durationpb.Duration {
			if s == unset {
				return nil
			}
			return durationpb.New(s * time.Second)
		}
		spec := &agboxv1.AgentSpec{Drain: &agboxv1.AgentDrain{
			PreStop: length(row.preStop), Step: length(row.step), Cleanup: length(row.cleanup), Buffer: length(row.buffer),
		}}
		at, got := "", ""
		Check(spec, func(path []any, format string, args ...any) { at, got = fmt.Sprint(path), fmt.Sprintf(format, args...) })
		if at != row.at || !strings.Contains(got, row.want) || row.want == "" && got != "" {
			t.Errorf("%v: %s %q; want %s %q", row, at, got, row.at, row.want)
		}
		if total := RulesOf(spec).Drain.Total(); total != row.total {
			t.Errorf("%v: it takes %v; want %v", row, total, row.total)
		}
	}
}

func TestWhatADrainWasFor(t *testing.T) {
	h := working(t)
	if got := DrainedFor(h.r); got != forDrain {
		t.Errorf("of its sandbox: %v", got)
	}
	h.add(&agboxv1.AgentEvent{
		Type:    agboxv1.AgentEventType_AGENT_PAUSE_REQUESTED,
		Details: &agboxv1.AgentEvent_Pause{Pause: &agboxv1.AgentPause{Reason: forRequest}},
	})
	if got := DrainedFor(h.r); got != forRequest {
		t.Errorf("on request: %v", got)
	}
	idle := working(t)
	idle.pauseFor(forApproval)
	if got := DrainedFor(idle.r); got != agboxv1.PauseReason_PAUSE_REASON_IDLE {
		t.Errorf("while it idles: %v", got)
	}
}

func TestTheLadderOfSilence(t *testing.T) {
	ladder := rules().Heartbeat
	for _, row := range []struct {
		silent time.Duration
		want   string
	}{
		{0, "ACTIVE"}, {15 * time.Second, "ACTIVE"}, {16 * time.Second, "ACTIVE"}, {17 * time.Second, "WARNING"},
		{30 * time.Second, "UNHEALTHY"}, {44 * time.Second, "UNHEALTHY"}, {45 * time.Second, "ESCALATED"},
		{90 * time.Second, "ESCALATED"}, {91 * time.Second, "CRASHED"}, {299 * time.Second, "CRASHED"}, {300 * time.Second, "ZOMBIE"},
	} {
		if got := strings.TrimPrefix(Liveness(row.silent, true, ladder).String(), "AGENT_LIVENESS_"); got != row.want {
			t.Errorf("silent for %v it is %s; want %s", row.silent, got, row.want)
		}
		if got := Liveness(row.silent, false, ladder).String(); got != "AGENT_LIVENESS_UNSPECIFIED" {
			t.Errorf("without a beat it is %s", got)
		}
	}
	ladder.Required = true
	if got := Liveness(time.Minute, false, ladder).String(); got != "AGENT_LIVENESS_ESCALATED" {
		t.Errorf("with required beats and none it is %s", got)
	}
}

// TestEachSilenceChangesTheLevel: a millisecond before it the level is the same as after the
// silence before, at it the level is another one.
func TestEachSilenceChangesTheLevel(t *testing.T) {
	odd := rules().Heartbeat
	odd.Interval, odd.Stale, odd.Escalate, odd.Crashed, odd.Zombie = 10*time.Millisecond, 12300*time.Microsecond, 20*time.Millisecond, 30500*time.Microsecond, 40*time.Millisecond
	for _, ladder := range []HeartbeatRules{rules().Heartbeat, odd} {
		before := time.Duration(0)
		for _, silence := range ladder.Silences() {
			if silence != silence.Truncate(time.Millisecond) {
				t.Errorf("%v are no whole milliseconds", silence)
			}
			if Liveness(silence-time.Millisecond, true, ladder) != Liveness(before, true, ladder) || Liveness(silence, true, ladder) == Liveness(before, true, ladder) {
				t.Errorf("the level changes at another silence than %v: %v, then %v, then %v", silence,
					Liveness(before, true, ladder), Liveness(silence-time.Millisecond, true, ladder), Liveness(silence, true, ladder))
			}
			before = silence
		}
		if before < ladder.Zombie || Liveness(ladder.HungAfter(), true, ladder).String() != "AGENT_LIVENESS_CRASHED" {
			t.Errorf("the last silence is %v; processes are looked at after %v", before, ladder.HungAfter())
		}
	}
}

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
