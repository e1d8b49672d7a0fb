package output

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

const (
	// testPage is the length of a page here, in bytes.
	testPage = 100
	// testSlots and grownSlots are how many packets a pipe holds at first, and later.
	testSlots, grownSlots = 8, 16
	// loss stands in the queue for tokens that were lost.
	loss = -1
)

// world is a source in memory: two pipes, a queue of tokens, and a thread that writes.
// Whenever the matcher calls, the writer moves on by some steps, as on another
// processor. The world knows in which order was written.
type world struct {
	*rand.Rand
	m     *matcher
	slots [2]int
	pipes [2][]int // the lengths of packets
	queue []int    // lanes
	aside []int
	wr    writer

	// pace is how many steps the writer makes between two calls, on an average.
	pace float64
	// preempted is how often the matcher gets no processor between two calls, for up to
	// a thousand steps of the writer.
	preempted float64
	// interrupted is how often a writer that waits is interrupted and tries again.
	interrupted float64
	// losses and forged are how often a token is lost, and how often one comes that no
	// writer sent.
	losses, forged float64
	// long is how often a write has up to many pages.
	long float64

	written, passed []packet
	left            [2][]int // packets that were written and not passed
	// raced is true once a pipe was emptied after its writer had found it full, before
	// the matcher could know that.
	raced bool
	// kept is the most packets of a lane that were taken and not passed in one round.
	kept int
}

type packet struct{ lane, bytes int }

// writer is one thread that writes lines, or more.
type writer struct {
	writes int // still to begin
	lane   int
	rest   int // bytes of this write that are not yet in the pipe
	does   step
	// inRow is how many more writes go to the same lane.
	inRow      int
	alternates bool
}

type step int

const (
	begins step = iota
	fills
	tells     // the write
	tellsFull // that there was no room
	waits
)

func newWorld(seed uint64) *world {
	w := &world{Rand: rand.New(rand.NewPCG(seed, 1)), slots: [2]int{testSlots, testSlots}}
	w.m = newMatcher(w, testPage, w.slots)
	w.pace = []float64{0.01, 0.3, 1, 3, 10}[w.IntN(5)]
	w.wr = writer{writes: 10 + w.IntN(3000), alternates: w.IntN(2) == 0}
	return w
}

// move makes one step of the writer, which nothing can interrupt. It returns false if
// there is none.
func (w *world) move() bool {
	wr := &w.wr
	switch wr.does {
	case begins:
		if wr.writes == 0 {
			return false
		}
		wr.writes--
		w.choose()
		wr.does = fills
	case fills:
		for wr.rest > 0 && len(w.pipes[wr.lane]) < w.slots[wr.lane] {
			n := min(wr.rest, testPage)
			w.pipes[wr.lane] = append(w.pipes[wr.lane], n)
			w.left[wr.lane] = append(w.left[wr.lane], n)
			w.written = append(w.written, packet{wr.lane, n})
			wr.rest -= n
		}
		if wr.does = tells; wr.rest > 0 {
			wr.does = tellsFull
		}
	case tells:
		w.send(wr.lane)
		wr.does = begins
	case tellsFull:
		w.send(wr.lane)
		wr.does = waits
	case waits:
		switch {
		case len(w.pipes[wr.lane]) < w.slots[wr.lane]:
			wr.does = fills
		case w.Float64() < w.interrupted:
			wr.does = tellsFull
		default:
			return false
		}
	}
	return true
}

// choose chooses the next write.
func (w *world) choose() {
	wr := &w.wr
	if wr.inRow--; wr.inRow < 0 {
		wr.lane = 1 - wr.lane
		if wr.inRow = 0; !wr.alternates {
			wr.inRow = w.IntN(5) * w.IntN(5)
		}
	}
	wr.rest = 1 + w.IntN(testPage-1)
	if w.Float64() < w.long {
		wr.rest = 1 + w.IntN(20*testPage)
	}
}

func (w *world) send(lane int) {
	if w.Float64() < w.losses {
		w.queue = slices.Insert(w.queue, 0, loss) // its signal comes before all others
		return
	}
	w.queue = append(w.queue, lane)
}

// goOn lets the writer run.
func (w *world) goOn() {
	steps := 0
	for w.Float64() < w.pace/(w.pace+1) {
		steps++
	}
	if w.Float64() < w.preempted {
		steps += w.IntN(1000)
	}
	for ; steps > 0 && w.move(); steps-- {
	}
	if w.Float64() < w.forged {
		w.queue = append(w.queue, w.IntN(2))
	}
}

func (w *world) look() {
	w.goOn()
	for _, lane := range w.queue {
		if lane == loss {
			w.m.lose()
		} else {
			w.m.token(lane)
		}
	}
	w.queue = w.queue[:0]
}

func (w *world) take(i int) bool {
	w.goOn()
	if wr := &w.wr; wr.lane == i && len(w.pipes[i]) == w.slots[i] {
		w.raced = w.raced || wr.does == tellsFull || wr.does == waits && slices.Contains(w.queue, i)
	}
	w.aside, w.pipes[i] = w.pipes[i], nil
	return len(w.aside) > 0
}

func (w *world) empty(i int) bool {
	w.goOn()
	return len(w.pipes[i]) == 0
}

func (w *world) unpack(i int) {
	for _, n := range w.aside {
		w.m.packet(i, n)
	}
}

func (w *world) grow(i int) int {
	w.goOn()
	w.slots[i] = grownSlots
	return grownSlots
}

func (w *world) pass(i, n int) {
	if len(w.left[i]) == 0 || w.left[i][0] != n {
		panic(fmt.Sprintf("%d bytes are passed; %v were written", n, w.left[i]))
	}
	w.left[i] = w.left[i][1:]
	w.passed = append(w.passed, packet{i, n})
}

// finish runs both until all that there is to write is passed.
func (w *world) finish(t *testing.T) {
	t.Helper()
	rests, passed := 0, 0
	for w.wr.writes > 0 || w.wr.does != begins || len(w.left[0])+len(w.left[1]) > 0 {
		more, waits := w.m.round()
		w.kept = max(w.kept, w.m.lanes[0].packets.len(), w.m.lanes[1].packets.len())
		if len(w.passed) > passed {
			rests, passed = 0, len(w.passed)
		}
		if w.m.hurry = false; more {
			continue
		}
		// The matcher rests until a token comes, or for some time if it waits for one.
		for len(w.queue) == 0 && w.move() {
		}
		w.m.hurry = waits && len(w.queue) == 0
		if rests++; rests > 100 {
			t.Fatalf("it stands still: %d writes are left, the writer does %d on lane %d, pipes %v, lanes %+v",
				w.wr.writes, w.wr.does, w.wr.lane, w.pipes, w.m.lanes)
		}
	}
}

// wrong is how many packets are not in their places, from one on.
func (w *world) wrong(from int) (n int) {
	for i, p := range w.passed[from:] {
		if p != w.written[from+i] {
			n++
		}
	}
	return n
}

func TestTheOrderIsExactUnlessAPipeIsEmptiedBeforeItsWriterTells(t *testing.T) {
	raced, wrong := 0, 0
	for _, preempted := range []float64{0, 0.002, 0.01} {
		for seed := range uint64(300) {
			w := newWorld(seed)
			w.preempted = preempted
			w.finish(t)
			n := w.wrong(0)
			if n > 0 && !w.raced {
				t.Fatalf("run %d: %d of %d packets are out of order", seed, n, len(w.written))
			}
			if w.raced {
				raced++
			}
			if n > 0 {
				wrong++
			}
		}
	}
	// Most of the others are found out by counting.
	if t.Logf("of 900 runs %d had a race, %d are out of order", raced, wrong); wrong > raced/40 {
		t.Error("these are too many")
	}
}

// Nobody promises an order here, but each packet is passed once, after those that were
// written to its pipe before it, and the matcher comes to an end.
func TestNothingIsLostWhateverComes(t *testing.T) {
	for name, set := range map[string]func(*world){
		"interrupts":     func(w *world) { w.interrupted = 0.1 },
		"some long":      func(w *world) { w.long = 0.1 },
		"all long":       func(w *world) { w.long = 1 },
		"losses":         func(w *world) { w.losses = 0.01 },
		"all are lost":   func(w *world) { w.losses = 1 },
		"forged":         func(w *world) { w.forged = 0.1 },
		"all of it":      func(w *world) { w.preempted, w.interrupted, w.losses, w.forged, w.long = 0.01, 0.01, 0.01, 0.01, 0.1 },
		"one small pipe": func(w *world) { w.slots[0] = 2; w.m = newMatcher(w, testPage, w.slots); w.long = 0.01 },
	} {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(100) {
				w := newWorld(seed)
				set(w)
				w.finish(t)
			}
		})
	}
}

func TestTheOrderIsExactAgainAfterTokensWereLost(t *testing.T) {
	exact := 0
	for seed := range uint64(300) {
		w := newWorld(seed)
		w.losses, w.wr.writes = 0.1, 100
		w.finish(t)
		for more := true; more; more, _ = w.m.round() { // what was sent after the last packet
		}
		before := len(w.written)
		w.losses, w.wr.writes, w.raced = 0, 1000, false
		w.finish(t)
		if n := w.wrong(before); !w.raced && n > 0 {
			t.Fatalf("run %d: %d packets are out of order", seed, n)
		} else if n == 0 {
			exact++
		}
	}
	if exact < 280 {
		t.Errorf("%d of 300 runs are exact", exact)
	}
}

// The packets of a long write share one token. They do not wait for others, which would
// fill the memory with output.
func TestALongWriteIsPassedWithOneToken(t *testing.T) {
	for _, long := range []float64{0.1, 1} {
		for seed := range uint64(30) {
			w := newWorld(seed)
			w.long, w.wr.writes = long, 2000
			w.finish(t)
			if w.kept > 8*grownSlots {
				t.Fatalf("%d packets were kept", w.kept)
			}
		}
	}
}
