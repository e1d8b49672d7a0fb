package agents

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// problems lists what Check reports.
func problems(spec *agboxv1.AgentSpec) []string {
	var all []string
	Check(spec, func(path []any, format string, args ...any) {
		all = append(all, fmt.Sprint(path)+" "+fmt.Sprintf(format, args...))
	})
	return all
}

func TestFiguresThatDoNotFitTogetherAreReported(t *testing.T) {
	seconds := func(n int) *durationpb.Duration { return durationpb.New(time.Duration(n) * time.Second) }
	for name, row := range map[string]struct {
		spec *agboxv1.AgentSpec
		want string
	}{
		"defaults":         {&agboxv1.AgentSpec{}, ""},
		"no interval":      {&agboxv1.AgentSpec{Heartbeat: &agboxv1.AgentHeartbeat{Interval: seconds(0)}}, "[heartbeat interval] The time between two beats must be above zero"},
		"above a default":  {&agboxv1.AgentSpec{Heartbeat: &agboxv1.AgentHeartbeat{Interval: seconds(60)}}, "[heartbeat interval] interval is 1m0s and stale is 30s, but"},
		"below a default":  {&agboxv1.AgentSpec{Heartbeat: &agboxv1.AgentHeartbeat{Zombie: seconds(90)}}, "[heartbeat zombie] crashed is 1m30s and zombie is 1m30s, but"},
		"the whole ladder": {&agboxv1.AgentSpec{Heartbeat: &agboxv1.AgentHeartbeat{Interval: seconds(1), Stale: seconds(2), Escalate: seconds(3), Crashed: seconds(4), Zombie: seconds(5)}}, ""},
		"dying at once":    {&agboxv1.AgentSpec{Context: &agboxv1.AgentContextLimits{Dying: 60}}, "[context dying] aging is 70 and dying is 60, but"},
		"aging too late":   {&agboxv1.AgentSpec{Context: &agboxv1.AgentContextLimits{Aging: 90}}, "[context aging] aging is 90 and dying is 90, but"},
		"a small context":  {&agboxv1.AgentSpec{Context: &agboxv1.AgentContextLimits{Aging: 1, Dying: 2}}, ""},
		"a negative delay": {&agboxv1.AgentSpec{Retry: &agboxv1.AgentRetry{Delays: []*durationpb.Duration{seconds(1), seconds(-1)}}}, "[retry delays 1] The pause is below zero"},
		"a hook":           {&agboxv1.AgentSpec{ContextHook: []string{"memory", "query"}, Ready: agboxv1.AgentReady_AGENT_READY_REPORT}, ""},
		"a nameless hook":  {&agboxv1.AgentSpec{ContextHook: []string{"", "query"}}, "[context_hook 0] The command has no name"},
		"a bad hook":       {&agboxv1.AgentSpec{ContextHook: []string{"memory", "a\x00b"}}, "[context_hook 1] The word has a NUL byte"},
		"a short start": {&agboxv1.AgentSpec{
			ContextHook: []string{"memory"}, Ready: agboxv1.AgentReady_AGENT_READY_REPORT, Probes: &agboxv1.AgentProbes{Startup: &agboxv1.AgentProbe{Period: seconds(7), Failures: 3}},
		}, "[probes startup] The program has 21s to start, and hydration with a context_hook may take 21s"},
		"a start that is long enough": {&agboxv1.AgentSpec{
			ContextHook: []string{"memory"}, Probes: &agboxv1.AgentProbes{Liveness: &agboxv1.AgentProbe{}, Startup: &agboxv1.AgentProbe{Period: seconds(11), Failures: 2}},
		}, ""},
		"a short start without a bound": {&agboxv1.AgentSpec{ContextHook: []string{"memory"}, Probes: &agboxv1.AgentProbes{Readiness: &agboxv1.AgentProbe{}}}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got := problems(row.spec)
			if (row.want == "") != (len(got) == 0) || len(got) > 1 || len(got) == 1 && !strings.HasPrefix(got[0], row.want) {
				t.Errorf("got %q, want %q", got, row.want)
			}
		})
	}
}
