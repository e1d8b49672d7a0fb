package agents

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/agbox/agbox/e2e/internal/harness"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// heartbeat is a ladder in milliseconds.
func heartbeat(interval, stale, escalate, crashed, zombie int64) *agboxv1.AgentHeartbeat {
	ms := func(n int64) *durationpb.Duration { return durationpb.New(time.Duration(n) * time.Millisecond) }
	return &agboxv1.AgentHeartbeat{Interval: ms(interval), Stale: ms(stale), Escalate: ms(escalate), Crashed: ms(crashed), Zombie: ms(zombie)}
}

func TestASilentAgentIsReplaced(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	in.Create(t, "demo", harness.ImageBusybox)
	const again = `[ $AGBOX_INCARNATION = 1 ] || { agbox-agent done complete; exit; }; agbox-agent beat; `
	// Of two levels that come together only the second is recorded, so they are far apart.
	hung := heartbeat(400, 600, 3000, 6000, 600_000)
	zombie := heartbeat(400, 600, 3000, 6000, 9000)
	rows := []struct {
		name, script string
		beat         *agboxv1.AgentHeartbeat
		id           string
	}{
		{name: "stopped", script: again + `kill -STOP $$`, beat: hung},
		{name: "asleep", script: again + `sleep 1000`, beat: hung},
		{name: "busy", script: again + `while :; do :; done`, beat: zombie},
	}
	for i, row := range rows {
		rows[i].id = spawnSpec(t, in, row.script, &agboxv1.AgentSpec{
			Heartbeat: row.beat, Retry: &agboxv1.AgentRetry{Delays: []*durationpb.Duration{durationpb.New(10 * time.Millisecond)}},
		})
	}
	for _, row := range rows {
		id := row.id
		a := await(t, in, id, "COMPLETED")
		if a.GetCrashes() != 1 || a.GetIncarnation() != 2 {
			t.Errorf("%s: %d crashes in %d incarnations", row.name, a.GetCrashes(), a.GetIncarnation())
		}
		var levels []string
		for ev, err := range in.Client(t).WatchAgents(harness.Bounded(t), id, 0) {
			if err != nil {
				t.Fatal(err)
			}
			if g := ev.GetGauge(); g != nil {
				levels = append(levels, strings.TrimPrefix(g.GetLiveness().String(), "AGENT_LIVENESS_"))
			}
			if end := ev.GetEnd(); end != nil && end.GetKind() != agboxv1.IncarnationEndKind_INCARNATION_END_KIND_ZOMBIE {
				t.Errorf("%s: the incarnation ended as %v", row.name, end)
			}
			if p := ev.GetPause(); p != nil {
				if p.GetMessage() != "It sent no beat for too long." {
					t.Errorf("%s: %q", row.name, p.GetMessage())
				}
				break
			}
		}
		want := "ACTIVE, ESCALATED, CRASHED"
		if row.beat == zombie {
			want += ", ZOMBIE"
		}
		if got := strings.Join(levels, ", "); got != want {
			t.Errorf("%s: the levels are %s; want %s", row.name, got, want)
		}
	}
}

// TestNoAlarmAfterTheDaemonWasAway: the supervisor measures the silence, so the absence of
// a daemon is none.
func TestNoAlarmAfterTheDaemonWasAway(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	box := in.Create(t, "demo", harness.ImageBusybox)
	id := spawnSpec(t, in, gated+`while [ ! -e /var/log/agents-sandbox/gate1 ]; do agbox-agent api beat '{"metrics":{"heapUsedMb":12}}'; sleep 0.1; done
		agbox-agent done complete`, &agboxv1.AgentSpec{Heartbeat: heartbeat(1000, 5000, 6000, 7000, 8000)})
	active := func(a *agboxv1.Agent) bool { return a.GetLiveness() == agboxv1.AgentLiveness_AGENT_LIVENESS_ACTIVE }
	until(t, in, id, "it beats", active)
	in.KillDaemon(t)
	since := time.Now()
	harness.Eventually(t, "the daemon is away for longer than a zombie is silent", func() bool { return time.Since(since) > 9*time.Second })
	in.Must(t, "agent", "ls") // starts the daemon
	until(t, in, id, "it is seen to beat", func(a *agboxv1.Agent) bool {
		return active(a) && a.GetLastBeat().AsTime().After(since) && a.GetHeapUsedMb() == 12
	})
	open(t, in, box, 1)
	if a := await(t, in, id, "COMPLETED"); a.GetIncarnation() != 1 || a.GetCrashes() != 0 {
		t.Errorf("%d incarnations, %d crashes", a.GetIncarnation(), a.GetCrashes())
	}
	wantHistory(t, in, id, "SPAWNED, BEGUN, PHASE, PHASE, LIVENESS, DONE_REPORTED, INCARNATION_ENDED EXITED, ENDED")
}
