package ledger

import (
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/daemon/machine/agent"
	"github.com/agbox/agbox/store"
)

// Breaker returns the circuit breaker of a class of agents. Agents without a class have
// none, so theirs is always closed.
func (l *Ledger) Breaker(class string) agent.Breaker {
	root, _ := l.Agent(agent.Init)
	return root.Breakers[class]
}

// admits reports whether the event may be appended as far as other agents are concerned: the
// breaker of the class may refuse the begin of a new agent, and only a living agent adopts.
func (t *agentTxn) admits(ev *agboxv1.AgentEvent) bool {
	if heir := ev.GetReparent().GetParent(); heir != "" {
		return t.l.heirIn(t.tx, t.a) == heir
	}
	if ev.GetType() != agboxv1.AgentEventType_AGENT_BEGUN || t.a.State != agent.Pending {
		return true
	}
	return t.l.agentIn(t.tx, agent.Init).Breakers[t.a.Class].Admits(t.a.ID, t.l.now())
}

// tellBreaker appends to init what follows from the change of an agent. It makes init
// before its first event.
func (l *Ledger) tellBreaker(tx *store.Tx, before, after Agent) error {
	if after.Class == "" || after.ID == agent.Init {
		return nil
	}
	breaker := l.agentIn(tx, agent.Init).Breakers[after.Class]
	events := breaker.After(before.Record, after.Record, agent.RulesOf(after.Spec).Breaker, l.now())
	if len(events) == 0 {
		return nil
	}
	_, err := l.withinAgent(tx, agent.Init, func(t *agentTxn) error {
		if !t.a.Exists() {
			if err := t.makeRoot(); err != nil {
				return err
			}
		}
		for _, ev := range events {
			if err := t.append(agent.Init, ev); err != nil {
				return err
			}
		}
		return nil
	})
	if err == nil {
		tx.OnCommit(func() { l.logBreaker(events) })
	}
	return err
}

// makeRoot appends the first event of the agent init.
func (t *agentTxn) makeRoot() error {
	if err := t.tx.ReserveAgent(agent.Init, t.l.now()); err != nil {
		return err
	}
	t.a.Spec = &agboxv1.AgentSpec{Name: agent.Init}
	if err := t.tx.PutAgentConfig(agent.Init, t.a.Spec); err != nil {
		return err
	}
	return t.append(agent.Init, &agboxv1.AgentEvent{
		Type: agboxv1.AgentEventType_AGENT_SPAWNED, Details: &agboxv1.AgentEvent_Spawned{Spawned: &agboxv1.AgentSpawned{Name: agent.Init}},
	})
}

// logBreaker tells the operator that a breaker has opened or closed.
func (l *Ledger) logBreaker(events []*agboxv1.AgentEvent) {
	for _, ev := range events {
		class := ev.GetBreaker().GetClass()
		switch ev.GetType() {
		case agboxv1.AgentEventType_AGENT_BREAKER_OPENED:
			l.log.Warn("agents of a class crash: new ones are refused", "class", class, "until", ev.GetBreaker().GetUntil().AsTime())
		case agboxv1.AgentEventType_AGENT_BREAKER_CLOSED:
			l.log.Info("new agents of a class are begun again", "class", class)
		}
	}
}
