package ledger

import (
	"fmt"
	"maps"
	"slices"
	"time"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/store"
)

// Breaker returns the circuit breaker of a class of agents. Agents without a class have
// none, so theirs is always closed.
func (l *Ledger) Breaker(class string) agents.Breaker {
	root, _ := l.Agent(agents.Init)
	return root.Breakers[class]
}

// admits reports whether the event may be appended as far as other agents are concerned: the
// breaker of the class may refuse the begin of a new agent, and only a living agent adopts.
func (t *agentTxn) admits(ev *agboxv1.AgentEvent) bool {
	if heir := ev.GetReparent().GetParent(); heir != "" {
		return t.l.heirIn(t.tx, t.a) == heir
	}
	if ev.GetType() != agboxv1.AgentEventType_AGENT_BEGUN || t.a.State != agents.Pending {
		return true
	}
	return t.l.agentIn(t.tx, agents.Init).Breakers[t.a.Class].Admits(t.a.ID, t.l.now())
}

// tellBreaker appends to init what follows from the change of an agent. It makes init
// before its first event.
func (l *Ledger) tellBreaker(tx *store.Tx, before, after Agent) error {
	if after.Class == "" || after.ID == agents.Init {
		return nil
	}
	breaker := l.agentIn(tx, agents.Init).Breakers[after.Class]
	events := breaker.After(before.Record, after.Record, agents.RulesOf(after.Spec).Breaker, l.now())
	if len(events) == 0 {
		return nil
	}
	_, err := l.withinAgent(tx, agents.Init, func(t *agentTxn) error {
		if !t.a.Exists() {
			if err := t.makeRoot(); err != nil {
				return err
			}
		}
		for _, ev := range events {
			if err := t.append(ev); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	tx.OnCommit(func() { l.logBreaker(events) })
	crashed := append(breaker.Crashed(), l.agentIn(tx, agents.Init).Breakers[after.Class].Crashed()...)
	for _, ev := range events {
		if err := l.tellOfBreaker(tx, after, ev, crashed); err != nil {
			return err
		}
	}
	return nil
}

// The words for the state of a breaker in the body of a message.
const openWord, closedWord = "BREAKER_OPEN", "BREAKER_CLOSED"

// tellOfBreaker tells init and the parents of the agents that have crashed that a breaker has
// opened or closed. Its event is that of init, from the change of an agent.
func (l *Ledger) tellOfBreaker(tx *store.Tx, cause Agent, ev *agboxv1.AgentEvent, crashed []string) error {
	class := ev.GetBreaker().GetClass()
	news := kinNews{Agent: cause.ID, Name: cause.Name, Class: class, State: closedWord}
	text := fmt.Sprintf("[BREAKER] The circuit breaker of class %s has closed: %s is COMPLETED, and new agents begin again.", class, cause.Called())
	switch ev.GetType() {
	case agboxv1.AgentEventType_AGENT_BREAKER_OPENED:
		until := ev.GetBreaker().GetUntil().AsTime()
		news.State, news.Until = openWord, &until
		text = fmt.Sprintf("[BREAKER] The circuit breaker of class %s is open until %s: new agents of the class fail. %s was the last to crash.", class, until.UTC().Format(time.RFC3339), cause.Called())
	case agboxv1.AgentEventType_AGENT_BREAKER_CLOSED:
	default:
		return nil
	}
	kind, told := agboxv1.MessageKind_MESSAGE_KIND_BREAKER, make(map[string]bool)
	for _, id := range append(crashed, cause.ID) {
		a := l.agentIn(tx, id)
		if !a.Exists() || a.Deleted {
			continue
		}
		heir, tells := l.heirIn(tx, a), a.Spec.GetTells()
		if a.ToParent(kind, tells, heir == agents.Init) == kind {
			told[heir] = true
		}
		if a.ToInit(kind, tells) == kind {
			told[agents.Init] = true
		}
	}
	for _, to := range slices.Sorted(maps.Keys(told)) {
		err := l.deliverNews(tx, to, &agboxv1.AgentMessage{
			Kind: kind, From: agents.Init, Key: fmt.Sprintf("%s/%d %s", cause.ID, cause.LastSequence, class), Text: text,
		}, news)
		if err != nil {
			return err
		}
	}
	return nil
}

// makeRoot appends the first event of the agent init.
func (t *agentTxn) makeRoot() error {
	if err := t.tx.ReserveAgent(agents.Init, t.l.now()); err != nil {
		return err
	}
	t.a.Spec = &agboxv1.AgentSpec{Name: agents.Init}
	if err := t.tx.PutAgentConfig(agents.Init, t.a.Spec); err != nil {
		return err
	}
	return t.append(&agboxv1.AgentEvent{
		Type: agboxv1.AgentEventType_AGENT_SPAWNED, Details: &agboxv1.AgentEvent_Spawned{Spawned: &agboxv1.AgentSpawned{Name: agents.Init}},
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
