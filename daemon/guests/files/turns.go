package files

import (
	"context"
	"sync"
)

// turns limits the number of concurrent users for each sandbox.
type turns struct {
	// mu guards rooms. It is held only for map operations.
	mu    sync.Mutex
	rooms map[string]*room
}

// room has the turns of one sandbox.
type room struct {
	seats chan struct{}
	// users counts those that have or wait for a turn. The room is removed with the last
	// one.
	users int
}

// enter waits for a turn. The function that it returns ends the turn.
func (t *turns) enter(ctx context.Context, sandboxID string) (leave func(), err error) {
	t.mu.Lock()
	r := t.rooms[sandboxID]
	if r == nil {
		if t.rooms == nil {
			t.rooms = make(map[string]*room)
		}
		r = &room{seats: make(chan struct{}, maxTransfers)}
		t.rooms[sandboxID] = r
	}
	r.users++
	t.mu.Unlock()
	select {
	case r.seats <- struct{}{}:
		return func() { <-r.seats; t.part(sandboxID, r) }, nil
	case <-ctx.Done():
		t.part(sandboxID, r)
		return nil, ctx.Err()
	}
}

func (t *turns) part(sandboxID string, r *room) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if r.users--; r.users == 0 {
		delete(t.rooms, sandboxID)
	}
}
