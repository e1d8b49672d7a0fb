package incarnations

import (
	"context"

	"github.com/agbox/agbox/agents/journal"
	"github.com/agbox/agbox/daemon/ledger"
)

// One transaction records no more of a journal than this, so that others write in between:
// all updates wait for the one transaction. A row is not divided.
const (
	// maxPiece is the number of events and of copies of messages. The database takes about
	// 10 us for each.
	maxPiece = 1000
	// maxPieceBytes is the size of the copies of messages.
	maxPieceBytes = 1 << 20
)

// piece is how much has been read of a journal.
type piece struct{ copies, bytes int }

// addMessage counts the copies of a message.
func (p *piece) addMessage(row journal.Row, copies int) {
	p.copies += copies
	p.bytes += copies * (len(row.Text) + len(row.Key))
}

// full reports whether a piece, from which that many events follow, is large enough.
func (p piece) full(events int) bool { return p.copies+events >= maxPiece || p.bytes >= maxPieceBytes }

// copies is how many inboxes a message goes to: one, or those of all who have its stream open.
func (r *Runner) copies(stream string) int {
	if stream == "" {
		return 1
	}
	return max(1, r.ledger.Subscribers(stream))
}

// Consume records what the agent's incarnation, which runs, has reported since the last
// time. Each row counts once, however often Consume is called: the events have their row
// numbers, and the ledger leaves those out that it has.
func (r *Runner) Consume(ctx context.Context, a ledger.Agent) error {
	a, last, err := r.lastPiece(ctx, a)
	if err == nil {
		_, err = r.record(ctx, a, last)
	}
	return err
}

// lastPiece records what the agent's incarnation has reported, one piece after the other, but
// for the last one. It returns that, and the agent as it is before it.
func (r *Runner) lastPiece(ctx context.Context, a ledger.Agent) (ledger.Agent, reports, error) {
	for {
		found := r.reports(a)
		err := r.take(a, found)
		if err != nil || !found.more {
			return a, found, err
		}
		if a, err = r.record(ctx, a, found); err != nil {
			return a, found, err
		}
	}
}

// record records one piece.
func (r *Runner) record(ctx context.Context, a ledger.Agent, found reports) (after ledger.Agent, err error) {
	execID := a.Incarnation.ExecID
	if events := found.ordered(); len(events) > 0 {
		if a, err = r.ledger.RecordReports(ctx, a.ID, ledger.Reports{Events: events, Sent: found.sent}); err != nil {
			return a, err
		}
		if len(found.checkpoints) > 0 {
			r.tidy(a, nil)
		}
	}
	r.advance(execID, found.at)
	return a, nil
}
