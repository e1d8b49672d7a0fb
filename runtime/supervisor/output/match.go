package output

// quietLooks is how many looks in a row without a token show that the writer pauses:
// about ten microseconds.
const quietLooks = 16

// source is what a matcher works on: two pipes in packet mode, called lanes 0 and 1,
// and one queue of tokens for both.
//
// A write of less than a page adds one packet to its pipe, and then one token to the
// queue. A longer write is several packets, all but the last of a page, and one token.
// A writer that finds the pipe full adds a spurious token, which has no packet, before
// it waits for room.
type source interface {
	// look calls token for each token in the queue, oldest first, or lose if some were
	// lost.
	look()
	// take removes all packets from a pipe at one moment. It returns false if there was
	// none.
	take(lane int) bool
	// empty tells whether there is nothing in a pipe.
	empty(lane int) bool
	// unpack calls packet for each packet of the last take, oldest first.
	unpack(lane int)
	// grow is called when a pipe was full. It may enlarge the pipe, and returns how many
	// packets the pipe holds.
	grow(lane int) (slots int)
	// pass appends the oldest packet of a lane that was not yet passed, of n bytes, to
	// the output.
	pass(lane, n int)
}

// matcher puts the packets of two pipes into the order in which they were written. It
// loses nothing, whatever the source does.
//
// The order is that of the tokens: each stands for the oldest packet of its lane.
// Spurious tokens must be dropped. One is sent only while its pipe is full, and a pipe
// is emptied at one moment. So a token that was there when its pipe was emptied, and
// for which no packet came out, is spurious.
//
// A writer may find a pipe full before it is emptied, and send the token afterwards. So
// the matcher leaves a pipe that is nearly full alone until its writer pauses, or waits
// for room. A pipe that is full nevertheless is in doubt: the matcher leaves it alone
// likewise, and then compares the tokens with the packets.
//
// The order is exact for one thread that writes less than a page at a time, but for
// rare races of a writer that is interrupted by signals while it waits for room.
type matcher struct {
	src   source
	lanes [2]lane
	// page is the length of the longest packet, in bytes.
	page int
	// order holds the tokens that have not met their packets, oldest first.
	order queue[tokens]
	// heard counts all tokens.
	heard int
	// last is the lane that was emptied last.
	last int
	// byReading is true from a loss of tokens until both pipes are empty. Meanwhile the
	// order is that of reading.
	byReading bool
	// hurry has the next round wait for nothing.
	hurry bool
}

// tokens are consecutive tokens of one lane.
type tokens struct{ lane, n int }

// lane is what a matcher knows of one pipe.
type lane struct {
	// slots is how many packets the pipe holds.
	slots int
	// tokens counts those of the lane in order.
	tokens int
	// packets are the lengths of those that were taken and not yet passed.
	packets queue[int]
	// due is true when there may be something in the pipe.
	due bool
	// doubt is true when the pipe was full unexpectedly: the next token may be spurious.
	doubt bool
	// pages is true when there was a page in what was taken last. The order of writes
	// that long is not promised, so no doubt about them is worth a wait.
	pages bool
	// whole is true when the last packet that was passed was a page: the next one may
	// belong to the same write.
	whole bool
}

// inside is how many packets are in the pipe as far as the tokens tell.
func (l *lane) inside() int { return l.tokens - l.packets.len() }

// blocked tells whether the writer is known to wait for room: a token more has come
// than the packets that the pipe holds.
func (l *lane) blocked() bool {
	if l.doubt {
		return l.inside() > l.slots+1
	}
	return l.inside() > l.slots
}

func newMatcher(src source, page int, slots [2]int) *matcher {
	return &matcher{src: src, page: page, lanes: [2]lane{{slots: slots[0]}, {slots: slots[1]}}}
}

// token notes a token.
func (m *matcher) token(i int) {
	m.heard++
	m.lanes[i].due = true
	if m.byReading {
		return
	}
	m.lanes[i].tokens++
	if k := m.order.len(); k > 0 && m.order.at(k-1).lane == i {
		m.order.at(k-1).n++
	} else {
		m.order.push(tokens{i, 1})
	}
}

// lose notes that tokens were lost.
func (m *matcher) lose() {
	m.byReading = true
	m.order.clear()
	for i := range m.lanes {
		l := &m.lanes[i]
		l.tokens, l.doubt, l.due = 0, false, true
	}
}

// packet notes a packet of n bytes.
func (m *matcher) packet(i, n int) {
	l := &m.lanes[i]
	l.packets.push(n)
	l.pages = l.pages || n >= m.page
}

// lookAtBoth has the next rounds look into both pipes, whether tokens came or not.
func (m *matcher) lookAtBoth() { m.lanes[0].due, m.lanes[1].due = true, true }

// round empties one pipe, and passes on what it can. It returns more if there may be
// more to do at once, and waits if it needs a token or hurry to go on.
func (m *matcher) round() (more, waits bool) {
	m.src.look()
	if !m.hurry && m.hold() {
		return false, true
	}
	i := 1 - m.last
	if !m.lanes[i].due || m.lanes[m.last].doubt {
		i = m.last
	}
	if m.last = i; m.lanes[i].due {
		m.empty(i)
	}
	m.match()
	more = m.lanes[0].due || m.lanes[1].due
	if m.byReading || m.hurry && !more {
		m.passRest()
		m.byReading = m.byReading && more
	}
	return more, !more && m.lanes[0].packets.len()+m.lanes[1].packets.len() > 0
}

// hold looks for tokens while a pipe is nearly full or in doubt. It returns true if the
// writer may be about to tell that it found the pipe full.
func (m *matcher) hold() bool {
	for quiet := 0; quiet < quietLooks; quiet++ {
		if !m.some(func(l *lane) bool { return l.doubt || !l.pages && l.inside() >= l.slots-l.slots/4 }) {
			return false
		}
		heard := m.heard
		if m.src.look(); m.heard > heard {
			quiet = 0
		}
	}
	return m.some(func(l *lane) bool { return !l.pages && l.inside() == l.slots })
}

// some tells whether a lane is so, and no writer is known to wait for room.
func (m *matcher) some(so func(*lane) bool) bool {
	return !m.blocked() && (so(&m.lanes[0]) || so(&m.lanes[1]))
}

func (m *matcher) blocked() bool { return m.lanes[0].blocked() || m.lanes[1].blocked() }

// empty empties a pipe, and drops its spurious tokens.
func (m *matcher) empty(i int) {
	l := &m.lanes[i]
	m.growBlocked(l, i)
	expected, before, seen := m.blocked(), l.packets.len(), l.tokens
	l.pages = false
	if l.due = m.src.take(i); l.due {
		m.src.look()
		if l.tokens > seen && m.src.empty(i) {
			seen = l.tokens // there is no packet for what came meanwhile either
		}
		m.src.unpack(i)
	}
	full := l.packets.len()-before >= l.slots
	spurious := min(seen, l.tokens) - l.packets.len()
	if spurious > 0 {
		if l.doubt && (spurious > 1 || !full) {
			m.drop(i, l.tokens-before-1, 1) // that was the next token
			spurious--
			seen--
		}
		m.drop(i, l.tokens-seen, spurious) // the writer waited, so nothing came after them
	}
	l.doubt = full && !expected && spurious <= 0 && !l.pages
	if full && l.pages {
		l.slots = m.src.grow(i)
	}
}

// growBlocked enlarges a pipe while its writer waits for room: then the number of its
// spurious tokens is known, and none of the old size comes later.
func (m *matcher) growBlocked(l *lane, i int) {
	if l.doubt || !l.blocked() {
		return
	}
	if slots := m.src.grow(i); slots > l.slots {
		m.drop(i, 0, l.inside()-l.slots)
		l.slots = slots
	}
}

// drop removes n tokens of a lane: the newest ones but for those that came later.
func (m *matcher) drop(i, later, n int) {
	m.lanes[i].tokens -= n
	for k := m.order.len() - 1; k >= 0 && n > 0; k-- {
		if t := m.order.at(k); t.lane == i {
			some := min(n, max(t.n-later, 0))
			later = max(later-t.n, 0)
			t.n -= some
			n -= some
		}
	}
}

// match passes on the packets whose tokens have come.
func (m *matcher) match() {
	for m.order.len() > 0 {
		t := m.order.at(0)
		if t.n == 0 {
			m.order.pop()
			continue
		}
		l := &m.lanes[t.lane]
		if l.packets.len() == 0 {
			return // the packet is still in the pipe
		}
		t.n--
		l.tokens--
		m.pass(t.lane)
		m.passWrite(t.lane)
	}
	m.passWrite(0)
	m.passWrite(1)
}

// passWrite passes on the rest of a write of several pages. Packets beyond the tokens
// are taken for that.
func (m *matcher) passWrite(i int) {
	for l := &m.lanes[i]; l.whole && l.packets.len() > l.tokens; {
		m.pass(i)
	}
}

// passRest passes on all packets, whether their tokens have come or not. What has no
// token yet was written last.
func (m *matcher) passRest() {
	for i := range m.lanes {
		for m.lanes[i].packets.len() > 0 {
			m.pass(i)
		}
	}
}

// pass passes on the oldest packet of a lane.
func (m *matcher) pass(i int) {
	l := &m.lanes[i]
	n := *l.packets.at(0)
	l.packets.pop()
	l.whole = n >= m.page
	m.src.pass(i, n)
}

// queue is a queue that keeps its memory.
type queue[T any] struct {
	all  []T
	head int
}

func (q *queue[T]) len() int    { return len(q.all) - q.head }
func (q *queue[T]) at(i int) *T { return &q.all[q.head+i] }
func (q *queue[T]) push(v T) {
	if len(q.all) == cap(q.all) && q.head > len(q.all)/2 {
		q.all, q.head = q.all[:copy(q.all, q.all[q.head:])], 0
	}
	q.all = append(q.all, v)
}

func (q *queue[T]) clear() { q.all, q.head = q.all[:0], 0 }

func (q *queue[T]) pop() {
	if q.head++; q.head == len(q.all) {
		q.all, q.head = q.all[:0], 0
	}
}
