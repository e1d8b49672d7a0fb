package ledger

import "slices"

// AgentWait waits for the end of an agent, or of it and all agents that were spawned below it. It
// learns of each change as it is committed, so it reads no events and looks at no other agents.
type AgentWait struct {
	// Changed has a value when Take has more agents.
	Changed chan struct{}

	// The mutex of the book guards the fields below.
	book *agentBook
	tree bool
	// living has the agents that it waits for, and known those and the ones that have ended.
	living, known map[string]struct{}
	// ended has those that Take has not returned.
	ended []string
}

// WaitForEnd begins to wait for the end of an agent, with tree also of those below it, also those
// that are spawned later and those that others have adopted. The caller closes the AgentWait.
func (l *Ledger) WaitForEnd(id string, tree bool) *AgentWait {
	b := &l.agents
	w := &AgentWait{Changed: make(chan struct{}, 1), book: b, tree: tree, living: make(map[string]struct{}), known: make(map[string]struct{})}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.waits[w] = struct{}{}
	w.addLocked(id)
	slices.SortFunc(w.ended, func(x, y string) int { return b.all[x].EndedAt.Compare(b.all[y].EndedAt) })
	return w
}

// addLocked adds an agent and those below it. One that was removed leads to those below it only.
func (w *AgentWait) addLocked(id string) {
	w.known[id] = struct{}{}
	if a, exists := w.book.all[id]; exists {
		w.living[id] = struct{}{}
		w.followLocked(a)
	}
	if !w.tree {
		return
	}
	for child := range w.book.offspring[id] {
		if _, known := w.known[child]; !known {
			w.addLocked(child)
		}
	}
}

// Spawner reports whether an agent, which may have been removed, has spawned one that was not
// removed, or one of those below it has.
func (l *Ledger) Spawner(id string) bool {
	b := &l.agents
	b.mu.RLock()
	defer b.mu.RUnlock()
	seen := map[string]bool{id: true}
	for below := []string{id}; len(below) > 0; below = below[1:] {
		for child := range b.offspring[below[0]] {
			if _, exists := b.all[child]; exists {
				return true
			}
			if !seen[child] { // damaged records may name each other
				seen[child] = true
				below = append(below, child)
			}
		}
	}
	return false
}

// followLocked follows the change of an agent. The spawn of a child is committed before the end of
// its parent, so there are no others once all known ones have ended.
func (w *AgentWait) followLocked(a Agent) {
	_, known := w.known[a.ID]
	if _, below := w.known[a.Origin]; !known && below && w.tree {
		w.known[a.ID], w.living[a.ID] = struct{}{}, struct{}{}
	}
	if _, awaited := w.living[a.ID]; !awaited || !a.Over() {
		return
	}
	delete(w.living, a.ID)
	w.ended = append(w.ended, a.ID)
	select {
	case w.Changed <- struct{}{}:
	default:
	}
}

// Take returns the agents that have ended since the call before, as they ended, and whether there
// are others to wait for. Those that were removed are left out.
func (w *AgentWait) Take() (ended []Agent, more bool) {
	w.book.mu.Lock()
	defer w.book.mu.Unlock()
	for _, id := range w.ended {
		if a, exists := w.book.all[id]; exists {
			ended = append(ended, a)
		}
	}
	w.ended = nil
	return ended, len(w.living) > 0
}

// Close ends the wait.
func (w *AgentWait) Close() {
	w.book.mu.Lock()
	defer w.book.mu.Unlock()
	delete(w.book.waits, w)
}
