package lease

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
)

// history is a table that is changed as a daemon does, beside a Book with the same agents.
type history struct {
	t       *testing.T
	r       *rand.Rand
	table   map[string]Party
	book    *Book
	counter uint64
	// due are the verdicts of parked agents that were not told since they changed.
	due map[string]Verdict
}

func (h *history) parties() []Party { return slices.Collect(maps.Values(h.table)) }

// put changes an agent in both, and notes of which parked agents the verdict is another now.
func (h *history) put(p Party) {
	h.t.Helper()
	before := h.verdicts()
	h.table[p.ID] = p
	h.book.Put(p)
	for id, verdict := range h.verdicts() {
		if old, was := before[id]; !was || old != verdict {
			h.due[id] = verdict
		}
	}
	h.same()
}

// verdicts are what Decide says to those that are parked.
func (h *history) verdicts() map[string]Verdict {
	all := make(map[string]Verdict)
	for _, id := range theParked(h.parties()) {
		all[id], _ = Decide(h.parties(), h.table[id], h.table[id].Wants)
	}
	return all
}

// same compares what the Book says of every agent with what the rule says.
func (h *history) same() {
	h.t.Helper()
	table := h.parties()
	for _, p := range table {
		manifest := h.manifest()
		verdict, blockers := Decide(table, p, manifest)
		got, count := h.book.Blockers(p, manifest, 2)
		if h.book.Verdict(p, manifest) != verdict || count != len(blockers) || !slices.Equal(got, blockers[:min(len(blockers), 2)]) {
			h.t.Fatalf("%+v asks for %v of %+v: the book says %v against %d, first %v; want %v against %v", p, manifest, table, h.book.Verdict(p, manifest), count, got, verdict, blockers)
		}
		if got, want := h.book.WaitsFor(p.ID), waitsFor(table, p); !slices.Equal(got, want) {
			h.t.Fatalf("%s waits for %v in %+v; want %v", p.ID, got, table, want)
		}
	}
}

// settle grants and calls until nothing is left to do, and compares each step.
func (h *history) settle() {
	h.t.Helper()
	for {
		id, ok := h.book.Next()
		if want, any := next(h.parties()); id != want || ok != any {
			h.t.Fatalf("next is %q in %+v; want %q", id, h.parties(), want)
		}
		if !ok {
			break
		}
		p := h.table[id]
		h.counter++
		p.Holds, p.Wants, p.Queued = Merge(p.Holds, p.Wants, h.counter), nil, 0
		h.put(p)
	}
	last := uint64(0)
	for {
		id, verdict, ok := h.book.Unblocked()
		if !ok {
			break
		}
		p := h.table[id]
		if want, _ := Decide(h.parties(), p, p.Wants); want != verdict || verdict == Die {
			h.t.Fatalf("%+v is called with %v in %+v; want %v", p, verdict, h.parties(), want)
		}
		if p.Age < last {
			h.t.Fatalf("%s is called after a younger one", id)
		}
		last = p.Age
		if delete(h.due, id); verdict == Wait && h.r.IntN(2) == 0 {
			h.counter++
			p.Queued = h.counter
			h.put(p)
			last = 0 // others may have to wait now
		}
	}
	for id, verdict := range h.due {
		if verdict != Die && h.table[id].parked() {
			h.t.Fatalf("%+v is not called, though it is %v in %+v", h.table[id], verdict, h.parties())
		}
	}
	clear(h.due)
}

// manifest is one to three of four resources.
func (h *history) manifest() (list []Claim) {
	for _, n := range h.r.Perm(4)[:1+h.r.IntN(3)] {
		list = append(list, Claim{fmt.Sprint("r", n), Mode(1 + h.r.IntN(2))})
	}
	return Normal(list)
}

// step has one agent do what agents do: ask, release a part, lose all, or lose its request.
func (h *history) step() {
	h.t.Helper()
	age := h.r.Uint64N(8) + 1
	id := fmt.Sprint("a", age)
	p, known := h.table[id]
	if !known {
		p = Party{ID: id, Age: age, Scope: []string{"", "inner"}[age%4/3]}
	}
	switch n := h.r.IntN(6); {
	case n == 0:
		p.Holds, p.Wants, p.Queued = nil, nil, 0
	case n == 1 && p.Queued > 0:
		p.Wants, p.Queued = nil, 0
	case n == 2 && len(p.Holds) > 0: // also of what it waits for in another mode
		p.Holds = slices.Delete(slices.Clone(p.Holds), 0, 1)
	case p.Queued > 0:
		return
	default:
		manifest := h.manifest()
		if p.parked() {
			manifest = p.Wants
		}
		h.counter++
		switch h.book.Verdict(p, manifest) {
		case Granted:
			p.Holds, p.Wants = Merge(p.Holds, manifest, h.counter), nil
		case Wait:
			p.Wants, p.Queued = manifest, h.counter
		case Die:
			p.Holds, p.Wants = nil, manifest
		}
	}
	h.put(p)
}

func TestTheBookDecidesAsTheRuleInAnyHistory(t *testing.T) {
	for seed := range uint64(30) {
		h := &history{t: t, r: rand.New(rand.NewPCG(seed, 23)), table: make(map[string]Party), book: NewBook(), due: make(map[string]Verdict)}
		for range 300 {
			h.step()
			h.settle()
			if h.book.Keep(); h.r.IntN(8) > 0 {
				continue
			}
			table, counter := maps.Clone(h.table), h.counter // a transaction that is rolled back
			for range h.r.IntN(4) {
				h.step()
				h.settle()
			}
			h.book.TakeBack()
			h.table, h.counter = table, counter
			h.same()
			h.settle()
			h.book.Keep()
		}
		for id, p := range h.table {
			p.Holds, p.Wants, p.Queued = nil, nil, 0
			h.put(p)
			h.settle()
			delete(h.table, id)
		}
		if !reflect.DeepEqual(h.book.places, NewBook().places) || len(h.book.parties) > 0 {
			t.Fatalf("seed %d: of agents without leases the book has %v and %v", seed, h.book.places, h.book.parties)
		}
	}
}

// TestWorkOfTheBookDoesNotGrowWithTheAgentsAtAResource counts what it looks at beside few and
// beside many: holders, waiters and parked ones that nothing changes for.
func TestWorkOfTheBookDoesNotGrowWithTheAgentsAtAResource(t *testing.T) {
	shared, whole := []Claim{{"db", Shared}}, []Claim{{"db", Exclusive}}
	look := func(crowd int) (ask, release, grant int) {
		b := NewBook()
		b.Put(Party{ID: "oldest", Age: 1, Holds: Merge(nil, []Claim{{"other", Exclusive}}, 1)})
		for i := range crowd {
			n := uint64(1000 + 10*i)
			b.Put(Party{ID: fmt.Sprint("holder-", i), Age: n, Holds: Merge(nil, shared, 1)})
			b.Put(Party{ID: fmt.Sprint("waiter-", i), Age: n + 1, Wants: Normal([]Claim{{"db", Shared}, {"other", Exclusive}}), Queued: n})
			b.Put(Party{ID: fmt.Sprint("parked-", i), Age: n + 2, Wants: whole})
			b.Put(Party{ID: fmt.Sprint("elsewhere-", i), Age: n + 3, Wants: []Claim{{"busy", Exclusive}}, Queued: n + 1})
		}
		drain := func() {
			for _, ok := b.Next(); ok; _, ok = b.Next() {
			}
			for _, _, ok := b.Unblocked(); ok; _, _, ok = b.Unblocked() {
			}
		}
		counted := func(work func()) int {
			drain()
			before := b.looked
			work()
			drain()
			return b.looked - before
		}
		self := Party{ID: "self", Age: 100}
		ask = counted(func() {
			if b.Verdict(self, shared) != Granted {
				t.Error("a shared lease is not granted")
			}
			self.Holds = Merge(nil, shared, 2)
			b.Put(self)
		})
		release = counted(func() {
			self.Holds = nil
			b.Put(self)
		})
		waiting := Party{ID: "old", Age: 2, Wants: []Claim{{"solo", Exclusive}}, Queued: 5}
		b.Put(Party{ID: "young", Age: 1 << 40, Holds: Merge(nil, waiting.Wants, 1)})
		b.Put(waiting)
		grant = counted(func() {
			b.Put(Party{ID: "young"})
			if id, ok := b.Next(); !ok || id != "old" {
				t.Errorf("%q is granted", id)
			}
		})
		return ask, release, grant
	}
	ask, release, grant := look(2)
	manyAsk, manyRelease, manyGrant := look(1000)
	if manyAsk > 4*ask || manyGrant > 4*grant {
		t.Errorf("beside 2 agents of each kind a request, a release and a grant look at %d, %d and %d; beside 1000 at %d, %d and %d", ask, release, grant, manyAsk, manyRelease, manyGrant)
	}
	if manyRelease > 4*release {
		t.Errorf("a release looks at %d seats beside 1000 agents of each kind, and at %d beside 2", manyRelease, release)
	}
}

// TestWhoWasCalledIsCalledAgainIfThatIsTakenBack: the transaction with the call may fail.
func TestWhoWasCalledIsCalledAgainIfThatIsTakenBack(t *testing.T) {
	b, whole := NewBook(), []Claim{{"db", Exclusive}}
	parked := Party{ID: "parked", Age: 1, Wants: whole}
	b.Put(parked)
	b.Keep()
	for range 2 {
		if id, verdict, ok := b.Unblocked(); !ok || id != "parked" || verdict != Granted {
			t.Errorf("%q is called with %v; want parked", id, verdict)
		}
		b.Put(Party{ID: "parked", Age: 1})
		b.TakeBack()
	}
}

// TestAPlaceInTheQueueThatWasTakenBackIsOfAnotherAgent: positions of a transaction that failed
// are given again.
func TestAPlaceInTheQueueThatWasTakenBackIsOfAnotherAgent(t *testing.T) {
	b, whole := NewBook(), []Claim{{"db", Exclusive}}
	holder := Party{ID: "holder", Age: 9, Holds: Merge(nil, whole, 1)}
	b.Put(holder)
	b.Keep()
	for _, id := range []string{"first", "second"} {
		b.TakeBack()
		b.Put(Party{ID: id, Age: 1, Wants: whole, Queued: 5})
		b.Put(Party{ID: "holder"}) // and nobody asks who is next
	}
	if id, ok := b.Next(); !ok || id != "second" {
		t.Errorf("%q is granted; want second", id)
	}
}
