package ledger

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/containerd/errdefs"

	"github.com/agbox/agbox/store"
)

// pastBook keeps deleted sandboxes whose history is long, because to fold it again for each list
// and each read costs milliseconds. Their records do not change any more. A short history is
// read in less than 0.1 ms and not kept.
type pastBook struct {
	mu   sync.Mutex // guards the fields below
	kept map[string]Sandbox
	// dropped counts the sandboxes that were removed for good, so that a reader of before keeps
	// nothing of one.
	dropped uint64

	// folded counts the events that were read to make records. Tests bound it.
	folded atomic.Uint64
}

const (
	// longHistory is the number of events from which on a deleted sandbox is kept.
	longHistory = 64
	// maxPast bounds how many are kept, of a few KB each.
	maxPast = 1024
)

func (b *pastBook) get(id string) (sb Sandbox, kept bool, dropped uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	sb, kept = b.kept[id]
	return sb, kept, b.dropped
}

// put keeps a sandbox that was read when so many had been dropped.
func (b *pastBook) put(sb Sandbox, dropped uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !sb.Over() || sb.LastSequence < longHistory || dropped != b.dropped {
		return
	}
	for id := range b.kept {
		if len(b.kept) < maxPast {
			break
		}
		delete(b.kept, id) // any: each costs the same
	}
	if b.kept == nil {
		b.kept = make(map[string]Sandbox)
	}
	b.kept[sb.ID] = sb
}

func (b *pastBook) drop(id string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.kept, id)
	b.dropped++
}

// Past returns a sandbox that is not in memory: a deleted one whose history is kept.
// Otherwise the error is errdefs.ErrNotFound.
func (l *Ledger) Past(ctx context.Context, id string) (Sandbox, error) {
	sb, kept, dropped := l.past.get(id)
	if kept {
		return sb, nil
	}
	sb, err := l.load(ctx, id)
	if err == nil && !sb.Exists() || errdefs.IsNotFound(err) {
		return Sandbox{}, notFound(id)
	}
	if err == nil {
		l.past.put(sb, dropped)
	}
	return sb, err
}

// PastIDs returns the ids of deleted sandboxes whose history is kept.
func (l *Ledger) PastIDs(ctx context.Context) ([]string, error) {
	var all []string
	err := l.store.View(ctx, func(tx *store.Tx) error {
		all = tx.SandboxIDs()
		return nil
	})
	past := all[:0]
	for _, id := range all {
		if _, living := l.Sandbox(id); !living {
			past = append(past, id)
		}
	}
	return past, err
}
