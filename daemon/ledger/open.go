package ledger

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/agents/lease"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/store"
)

// Open loads all living sandboxes. A sandbox whose record cannot be read is logged and
// left out, and the others are still loaded.
func Open(ctx context.Context, s *store.Store, now func() time.Time, log *slog.Logger) (*Ledger, error) {
	l := &Ledger{
		store:      s,
		now:        now,
		log:        log,
		unreadable: make(map[string]error),
	}
	l.sandboxes.init()
	ids, err := look(ctx, l, (*store.Tx).SandboxIDs)
	if err != nil {
		return nil, fmt.Errorf("list sandboxes: %w", err)
	}
	for _, id := range ids {
		l.sandboxes.touched[id] = struct{}{}
		sb, err := l.load(ctx, id)
		switch {
		case errors.Is(err, context.Canceled):
			return nil, err
		case err != nil:
			log.Error("a sandbox record cannot be read and is left out; \"agbox doctor\" tells more", "sandbox_id", id, "error", err)
			l.unreadable[id] = err
		case !sb.Over() && sb.Exists():
			sb.Inherited = sb.LastSequence
			l.sandboxes.putLocked(sb) // nobody else uses the ledger yet
		case sb.Over():
			l.sandboxes.growTreeLocked(sb)
		}
	}
	if err := l.openPools(ctx); err != nil {
		return l, err
	}
	return l, l.openAgents(ctx)
}

// openAgents loads all agents. An agent whose record cannot be read is logged and left
// out.
func (l *Ledger) openAgents(ctx context.Context) error {
	l.agents.init()
	ids, err := look(ctx, l, func(tx *store.Tx) []string {
		l.agents.published = tx.LastAgentPosition()
		return tx.AgentIDs()
	})
	if err != nil {
		return fmt.Errorf("list agents: %w", err)
	}
	var loaded []*Agent
	var records []*agents.Record
	for _, id := range ids {
		l.agents.touched[id] = struct{}{}
		a, err := l.loadAgent(ctx, id)
		switch {
		case errors.Is(err, context.Canceled):
			return err
		case err != nil:
			l.log.Error("the record of an agent cannot be read and is left out", "agent_id", id, "error", err)
		case a.Exists():
			loaded, records = append(loaded, &a), append(records, &a.Record)
		}
	}
	agents.GiveBorders(records)
	for _, a := range loaded {
		if a.Deleted {
			l.agents.offspring.move("", a.Origin, a.ID)
		} else {
			l.agents.putLocked(*a) // nobody else uses the ledger yet
		}
	}
	l.openLeases()
	if err := l.openInboxes(ctx); err != nil {
		return err
	}
	return l.settleLeases(ctx)
}

// openInboxes counts what is in the inboxes of all agents.
func (l *Ledger) openInboxes(ctx context.Context) error {
	l.mail.inboxes, l.mail.changed, l.mail.stacks = make(map[string]inbox), make(waiters), make(map[string]int)
	l.mail.shares = make(map[string]map[string]load)
	for _, id := range append(idsOfAgents(l.Agents(nil)), agents.Init) {
		var box inbox
		for page := (store.Page[*agboxv1.AgentMessage]{More: true}); page.More; {
			var err error
			page, err = look(ctx, l, func(tx *store.Tx) store.Page[*agboxv1.AgentMessage] { return tx.Messages(id, page.Next, loadPage, 0) })
			if err != nil {
				return fmt.Errorf("read the inbox of agent %s: %w", id, err)
			}
			for _, bad := range page.Bad {
				l.log.Error("a message cannot be read and is left out", "agent_id", id, "error", bad)
			}
			for _, m := range page.Records {
				box = box.with(m, 1).awaits(m, l.now())
				for _, of := range sharers(m) {
					l.mail.shareLocked(id, of, l.mail.shares[id][of].with(m, 1)) // nobody else uses the ledger yet
				}
			}
		}
		if !box.empty() {
			l.mail.inboxes[id] = box
		}
		a, _ := l.Agent(id)
		l.mail.addLocked(a.StackRoots, box.sentBytes) // nobody else uses the ledger yet
	}
	return nil
}

// openLeases makes the book from the records.
func (l *Ledger) openLeases() {
	l.leases.book = lease.NewBook()
	for _, a := range l.leased(func(Agent) bool { return true }) {
		l.leases.book.Put(inBook(a))
	}
	l.leases.book.Keep()
}

// settleLeases grants what agents wait for without need, and calls those that died without need:
// in the database of an older daemon, what they ask for may be that of another border now.
func (l *Ledger) settleLeases(ctx context.Context) error {
	if waiting := l.leased(func(a Agent) bool { return len(inBook(a).Wants) > 0 }); len(waiting) == 0 {
		return nil
	}
	return l.store.Update(ctx, func(tx *store.Tx) error {
		l.leasesIn(tx).Recheck()
		return l.passLeases(tx)
	})
}
