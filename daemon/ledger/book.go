package ledger

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/agbox/agbox/daemon/machine"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// book has the records of one kind, sandboxes or agents.
type book[R record] struct {
	// mu guards the fields below, and those of the struct that the book is a part of. It is
	// held only for map operations, never for I/O.
	mu sync.RWMutex
	// all has the records by id.
	all map[string]R
	// touched has the ids of those with events that retention has not looked at.
	touched map[string]struct{}
	// changed has a channel for each record that somebody waits for. The next commit
	// closes it. The key "" is for any record.
	changed waiters
}

// record is a record that a text may mean.
type record interface {
	// hidden means that no text of a person means it.
	hidden() bool
	referent(match agboxv1.RefMatch) *agboxv1.Referent
}

// init makes an empty book.
func (b *book[R]) init() {
	b.all, b.touched, b.changed = make(map[string]R), make(map[string]struct{}), make(waiters)
}

func (b *book[R]) get(id string) (R, bool) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	r, ok := b.all[id]
	return r, ok
}

// list returns all records, in any order.
func (b *book[R]) list() []R {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return slices.AppendSeq(make([]R, 0, len(b.all)), maps.Values(b.all))
}

// takeTouched returns what is in touched, and empties it.
func (b *book[R]) takeTouched() map[string]struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	touched := b.touched
	b.touched = make(map[string]struct{})
	return touched
}

// beginning returns the first records whose ids begin with a text, but for one, by ascending id.
func (b *book[R]) beginning(text, but string) (list []*agboxv1.Referent) {
	for _, r := range b.beginningWith(text, but) {
		list = append(list, r.referent(agboxv1.RefMatch_REF_MATCH_PREFIX))
	}
	return list
}

func (b *book[R]) beginningWith(text, but string) []R {
	found := make(map[string]R)
	b.mu.RLock()
	for id, r := range b.all {
		if strings.HasPrefix(id, text) && id != but {
			found[id] = r
		}
	}
	b.mu.RUnlock()
	var fits []R
	for _, id := range slices.Sorted(maps.Keys(found)) {
		if r := found[id]; !r.hidden() && len(fits) <= MaxReferents {
			fits = append(fits, r)
		}
	}
	return fits
}

// MaxReferents bounds the candidates for a text.
const MaxReferents = 10

// waiters has a channel for each key that somebody waits for a change of.
type waiters map[string]chan struct{}

// on returns the channel that the next change of a key closes.
func (w waiters) on(key string) <-chan struct{} {
	ch, waiting := w[key]
	if !waiting {
		ch = make(chan struct{})
		w[key] = ch
	}
	return ch
}

// wake tells those who wait for one of the keys.
func (w waiters) wake(keys ...string) {
	for _, key := range keys {
		if ch, waiting := w[key]; waiting {
			delete(w, key)
			close(ch)
		}
	}
}

// agentSets has a set of agents for each key, such as the id of a sandbox.
type agentSets map[string]map[string]struct{}

// all is the key of sets with only one key.
const all = "all"

func (s agentSets) add(key, agentID string) {
	if s[key] == nil {
		s[key] = make(map[string]struct{})
	}
	s[key][agentID] = struct{}{}
}

func (s agentSets) remove(key, agentID string) {
	delete(s[key], agentID)
	if len(s[key]) == 0 {
		delete(s, key)
	}
}

// move takes an agent from one set to another. An empty key is for no set.
func (s agentSets) move(from, to, agentID string) {
	if from == to {
		return
	}
	if from != "" {
		s.remove(from, agentID)
	}
	if to != "" {
		s.add(to, agentID)
	}
}

// Sandbox is a record with the spec of the sandbox. Both are read-only.
type Sandbox struct {
	machine.Record
	// Spec has a placeholder for each secret value; see Reveal.
	Spec *agboxv1.CreateSpec
	// Inherited is the newest sequence that an earlier daemon wrote. It is 0 if the
	// sandbox was created by this daemon.
	Inherited uint64
}

// hidden: nobody has what was made ahead. It is shown while it is removed, as what uses its image is.
func (sb Sandbox) hidden() bool { return sb.Pool != "" && !wantsDeleted(sb.Record) }

func wantsDeleted(r machine.Record) bool { return r.Want == machine.WantDeleted }

// sandboxBook has the records of all sandboxes that are not DELETED, with what is asked about them.
type sandboxBook struct {
	book[Sandbox]
	// byTree has those that agents have asked for from inside, by the trees of these agents.
	byTree agentSets
	// gone has the deleted ones whose records are kept, by tree, and goneAt when that was.
	gone   agentSets
	goneAt map[string]goneSandbox
	// crowded has under the key all the trees of which more than KeptOfTree are gone.
	crowded agentSets
	// ahead has those that were made for a pool and that nobody has, by pool.
	ahead agentSets
	// names maps the names of living sandboxes to their ids.
	names map[string]string
	// running maps running execs to their sandboxes.
	running map[string]runningExec
}

type runningExec struct {
	sandboxID string
	// done is closed once the end of the exec is committed.
	done chan struct{}
}

// goneSandbox is a deleted sandbox that an agent of a tree had asked for.
type goneSandbox struct {
	tree string
	at   time.Time
}

// init makes an empty book.
func (b *sandboxBook) init() {
	b.book.init()
	b.byTree, b.gone, b.crowded, b.ahead = make(agentSets), make(agentSets), make(agentSets), make(agentSets)
	b.goneAt = make(map[string]goneSandbox)
	b.names, b.running = make(map[string]string), make(map[string]runningExec)
}

// putLocked adds a sandbox, or replaces it. One that is over is removed.
func (b *sandboxBook) putLocked(sb Sandbox) {
	b.touched[sb.ID] = struct{}{}
	b.growTreeLocked(sb)
	if pool := sb.Pool; sb.Over() {
		b.ahead.move(b.all[sb.ID].Pool, "", sb.ID)
	} else {
		b.ahead.move(b.all[sb.ID].Pool, pool, sb.ID)
	}
	if freesName(sb) && b.names[sb.Name] == sb.ID {
		delete(b.names, sb.Name)
	}
	if sb.Over() {
		delete(b.all, sb.ID)
	} else {
		if was := b.all[sb.ID].Name; was != sb.Name && b.names[was] == sb.ID {
			delete(b.names, was)
		}
		b.all[sb.ID] = sb
		// One that is being removed may have been replaced by another one with its name.
		if sb.Name != "" && !freesName(sb) && (b.names[sb.Name] == "" || sb.Want != machine.WantDeleted) {
			b.names[sb.Name] = sb.ID
		}
	}
	for id := range sb.Execs {
		if _, known := b.running[id]; !known {
			b.running[id] = runningExec{sandboxID: sb.ID, done: make(chan struct{})}
		}
	}
}

// freesName reports whether another sandbox can have the name of this one: nothing of it runs any more,
// and it is deleted, or will be.
func freesName(sb Sandbox) bool { return sb.Ended || sb.Over() }

// KeptOfTree is how many deleted sandboxes are kept for each tree of agents that has asked for
// them from inside, so that a program which spawns in a loop does not fill the disk with logs.
const KeptOfTree = 8

// growTreeLocked follows the change of a sandbox that an agent has asked for.
func (b *sandboxBook) growTreeLocked(sb Sandbox) {
	tree := sb.Spec.GetDerived().GetTree()
	switch {
	case tree == "":
	case sb.Over():
		b.byTree.remove(tree, sb.ID)
		b.gone.add(tree, sb.ID)
		b.goneAt[sb.ID] = goneSandbox{tree, sb.StateChangedAt}
		b.crowdLocked(tree)
	default:
		b.byTree.add(tree, sb.ID)
	}
}

// crowdLocked follows a change of the deleted sandboxes of a tree.
func (b *sandboxBook) crowdLocked(tree string) {
	if len(b.gone[tree]) > KeptOfTree {
		b.crowded.add(all, tree)
	} else {
		b.crowded.remove(all, tree)
	}
}
