package ledger

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/agents/lease"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/store"
)

// Short names for the verdicts.
const (
	granted = agboxv1.LeaseVerdict_LEASE_VERDICT_GRANTED
	waits   = agboxv1.LeaseVerdict_LEASE_VERDICT_WAIT
	dies    = agboxv1.LeaseVerdict_LEASE_VERDICT_DIE
)

// maxBlockers is how many agents an event about a conflict names.
const maxBlockers = 16

// followLeases commits what follows from the change of an agent for the leases of all:
// others get what they wait for, and those that need not die any more are woken or queued.
func (l *Ledger) followLeases(tx *store.Tx, before, after Agent) error {
	if after.LeaseSeq == before.LeaseSeq && len(inBook(after).Wants) == len(inBook(before).Wants) {
		return nil
	}
	if err := l.notifyAncestors(tx, before, after); err != nil {
		return err
	}
	return l.passLeases(tx)
}

// passLeases commits what agents get, and who is called, because of what has changed.
func (l *Ledger) passLeases(tx *store.Tx) error {
	book := l.leasesIn(tx)
	for {
		if id, ok := book.Next(); ok {
			if err := l.grant(tx, id); err != nil {
				return err
			}
			continue
		}
		id, verdict, ok := book.Unblocked()
		if !ok {
			return nil
		}
		if err := l.callParked(tx, id, verdict); err != nil {
			return err
		}
	}
}

// grant gives an agent what it waits for, and wakes it if it was paused for that alone.
func (l *Ledger) grant(tx *store.Tx, id string) error {
	_, err := l.withinAgent(tx, id, func(t *agentTxn) error {
		if err := t.lease(agboxv1.AgentEventType_AGENT_GRANTED, &agboxv1.AgentLeases{Leases: agents.Given(t.a.Holds, t.a.Wants)}); err != nil {
			return err
		}
		return t.wakeFromConflict("its leases")
	})
	l.enqueue(tx, id)
	return err
}

// callParked wakes an agent that died and would be granted its manifest now: it asks again. One
// that could wait for it now is queued; otherwise younger agents, which do not have to wait for
// one that is parked, could keep it from its turn for ever.
func (l *Ledger) callParked(tx *store.Tx, id string, verdict lease.Verdict) error {
	_, err := l.withinAgent(tx, id, func(t *agentTxn) error {
		if verdict == lease.Granted {
			return t.wakeFromConflict("the end of the conflict")
		}
		blockers, _ := l.leasesIn(tx).Blockers(t.a.LeaseParty(), t.a.Wants, maxBlockers)
		return t.lease(agboxv1.AgentEventType_AGENT_CONFLICT, &agboxv1.AgentLeases{
			Leases: agents.Wanted(t.a.Wants), Verdict: waits, Blockers: blockers,
		})
	})
	l.enqueue(tx, id)
	return err
}

// wakeFromConflict wakes an agent that is paused because of a conflict.
func (t *agentTxn) wakeFromConflict(by string) error {
	if p := t.a.Pause; t.a.State != agents.Paused || p.Woken || p.Reason != agboxv1.PauseReason_PAUSE_REASON_CONFLICT {
		return nil
	}
	return t.wake(&agboxv1.AgentWake{By: by})
}

// notifyAncestors tells the ancestors of an agent that it is paused because of what they hold
// or wait for. One that waits for the end of that agent would otherwise wait for ever.
func (l *Ledger) notifyAncestors(tx *store.Tx, before, after Agent) error {
	if after.LeaseSeq == before.LeaseSeq || len(after.Wants) == 0 || after.State != agents.Paused {
		return nil
	}
	for id := after.Parent; id != "" && id != agents.Init; id = l.agentIn(tx, id).Parent {
		blocker := []lease.Party{l.agentIn(tx, id).LeaseParty()}
		if verdict, _ := lease.Decide(blocker, after.LeaseParty(), after.Wants); verdict == lease.Granted {
			continue
		}
		err := l.deliver(tx, id, &agboxv1.AgentMessage{
			Kind: agboxv1.MessageKind_MESSAGE_KIND_CHILD, From: after.ID, Key: fmt.Sprintf("conflict-%d", after.LeaseSeq),
			Text: fmt.Sprintf("Agent %s is PAUSED because of what you hold or wait for. It needs %s.", cmp.Or(after.Name, after.ID), resourceList(after.Wants)),
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// resourceList names the resources of a manifest, at most three of them.
func resourceList(manifest []lease.Claim) string {
	var names []string
	for _, c := range manifest[:min(len(manifest), 3)] {
		names = append(names, c.Resource)
	}
	if len(manifest) > 3 {
		names = append(names, "...")
	}
	return strings.Join(names, ", ")
}
