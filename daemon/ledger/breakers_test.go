package ledger

import (
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/agents"
)

// classed is an agent of the class c, whose breaker opens at the third crash.
func classed(id string) NewAgent {
	n := agentOf(id, "", "s")
	n.Spec.Class = "c"
	n.Spec.Breaker = &agboxv1.AgentBreakerLimits{Cooldown: durationpb.New(time.Hour)}
	return n
}

// crashed begins an agent and lets it crash once.
func crashed(t *testing.T, l *Ledger, a Agent) Agent {
	t.Helper()
	a = emitAgent(t, l, a.Record, begun(1))
	a = emitAgent(t, l, a.Record, &agboxv1.AgentEvent{
		Type: agboxv1.AgentEventType_AGENT_INCARNATION_ENDED, Incarnation: 1,
		Details: &agboxv1.AgentEvent_End{End: &agboxv1.IncarnationEnd{Kind: agboxv1.IncarnationEndKind_INCARNATION_END_KIND_EXITED, ExitCode: 1}},
	})
	return emitAgent(t, l, a.Record, agents.Ending(a.Record, agents.RulesOf(a.Spec)))
}

func TestABreakerOpensWithTheCrashAndStaysOpenOverARestart(t *testing.T) {
	dir := t.TempDir()
	l, stop := open(t, dir)
	ready(t, l, "s")
	for n := range 3 {
		if l.Breaker("c").Open() {
			t.Fatalf("the breaker is open after %d crashes", n)
		}
		a := crashed(t, l, spawn(t, l, classed(fmt.Sprint("a", n))))
		root, ok := l.Agent(agents.Init)
		if !ok || root.Position == 0 || root.LastSequence != uint64(n+2)+uint64(n/2) {
			t.Fatalf("after crash %d of agent %s the record of init is %+v", n+1, a.ID, root.Record)
		}
	}
	fourth := spawn(t, l, classed("a3"))
	for range 2 {
		if a := emitAgent(t, l, fourth.Record, begun(1)); a.Incarnation != nil || l.Breaker("c").Admits("a3", l.now()) {
			t.Error("a new agent has begun although the breaker is open")
		}
		stop()
		l, stop = open(t, dir)
	}
	defer stop()
	other := classed("a4")
	other.Spec.Class = "d"
	if a := emitAgent(t, l, spawn(t, l, other).Record, begun(1)); a.Incarnation == nil {
		t.Error("the breaker of another class keeps an agent from its begin")
	}
}

func TestOfTwoAgentsThatBeginAtOnceOneIsTheCanary(t *testing.T) {
	l := fresh(t)
	ready(t, l, "s")
	for n := range 3 {
		n := classed(fmt.Sprint("a", n))
		n.Spec.Breaker.Cooldown = durationpb.New(time.Nanosecond)
		crashed(t, l, spawn(t, l, n))
	}
	const many = 8
	agents := make([]Agent, many)
	for n := range agents {
		agents[n] = spawn(t, l, classed(fmt.Sprint("n", n)))
	}
	for !l.now().After(l.Breaker("c").Until) {
		runtime.Gosched()
	}
	var wg sync.WaitGroup
	for n := range agents {
		wg.Go(func() {
			a, err := l.EmitAgent(t.Context(), agents[n].Record, begun(1))
			if err != nil {
				t.Error(err)
			}
			agents[n] = a
		})
	}
	wg.Wait()
	began := 0
	for _, a := range agents {
		if a.Incarnation != nil {
			began++
			if l.Breaker("c").Canary != a.ID {
				t.Errorf("%s has begun; the canary is %s", a.ID, l.Breaker("c").Canary)
			}
		}
	}
	if began != 1 {
		t.Errorf("%d agents have begun; want the canary only", began)
	}
}

func TestTheRootOfAllAgentsCannotBeTakenOrChanged(t *testing.T) {
	l := fresh(t)
	ready(t, l, "s")
	for _, n := range []NewAgent{agentOf(agents.Init, "", "s"), agentOf("a", agents.Init, "s")} {
		_, err := l.SpawnAgent(t.Context(), n)
		wantReason(t, err, agboxv1.ErrorReason_AGENT_ID_ALREADY_EXISTS)
	}
	crashed(t, l, spawn(t, l, classed("b")))
	_, err := l.SpawnAgent(t.Context(), agentOf(agents.Init, "", "s"))
	wantReason(t, err, agboxv1.ErrorReason_AGENT_ID_ALREADY_EXISTS)
	_, err = l.RequestKill(t.Context(), agents.Init, &agboxv1.AgentKill{})
	wantReason(t, err, agboxv1.ErrorReason_AGENT_WRONG_STATE)
	_, err = l.DeleteAgent(t.Context(), agents.Init)
	wantReason(t, err, agboxv1.ErrorReason_AGENT_WRONG_STATE)
	_, err = l.ResolveAgent(t.Context(), agents.Init, agboxv1.AgentVerdict_AGENT_VERDICT_REAP)
	wantReason(t, err, agboxv1.ErrorReason_AGENT_WRONG_STATE)
}
