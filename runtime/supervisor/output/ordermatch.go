package output

import (
	"time"

	"github.com/agbox/agbox/logs"
)

// match passes on the packets in the order of the tokens, then those that have no
// token yet. It returns true if there are tokens left.
func (x *ordered) match() bool {
	for left := stepPackets; ; {
		if x.matchTokens(&left) {
			return left <= 0 || !x.lanes[x.runs.at(0).lane].held // what ends a hold wakes the sequencer
		}
		if x.lanes[0].packets.len()+x.lanes[1].packets.len() == 0 {
			return false
		}
		// What has no token after this was written last.
		if x.look(); x.runs.len() == 0 && !x.tokenComes() {
			break
		}
	}
	for i := range x.lanes {
		x.passRest(i)
	}
	return false
}

// tokenComes waits for the token of a packet that may also be the end of a write
// of more than a page, which has none. One more packet is sure to be.
func (x *ordered) tokenComes() bool {
	if !x.lanes[0].mayGoOn() && !x.lanes[1].mayGoOn() {
		return false
	}
	for range looks {
		if x.look(); x.runs.len() > 0 {
			return true
		}
	}
	return false
}

func (l *lane) mayGoOn() bool { return l.whole && l.packets.len() == 1 && !l.bulk }

// matchTokens passes on the packets whose tokens have come. It returns true if it
// has to leave some; left is how many packets it may still pass on.
func (x *ordered) matchTokens(left *int) bool {
	for x.runs.len() > 0 {
		i := x.runs.at(0).lane
		l := &x.lanes[i]
		if x.runs.at(0).n == 0 {
			x.runs.pop()
			continue
		}
		if *left <= 0 {
			return true
		}
		if l.packets.len() == 0 {
			x.fill(i)
			x.look()
			if l.packets.len() > 0 || x.runs.len() == 0 || x.runs.at(0).lane != i {
				continue // lost tokens change what comes first
			}
			if !l.empty && !l.ended {
				return true // the batch is full
			}
		}
		x.runs.at(0).n--
		l.waiting--
		if l.packets.len() == 0 {
			l.expected-- // in vain after all
			continue
		}
		*left--
		x.pass(i)
		// Pages that are more than the tokens can explain are of the same write; for
		// one packet the token may still be under way.
		for l.whole && l.packets.len() > l.waiting+1 {
			l.expected++
			x.pass(i)
		}
	}
	return false
}

// passRest passes on packets whose tokens have not come. They were written after
// all those whose tokens have.
func (x *ordered) passRest(i int) {
	l := &x.lanes[i]
	for l.packets.len() > 0 {
		if !l.whole {
			l.debt, l.since = true, time.Now()
		}
		l.expected++
		x.pass(i)
	}
	l.expected = l.read
}

// pass puts the next packet of a lane behind what is in the batch.
func (x *ordered) pass(i int) {
	l := &x.lanes[i]
	n := *l.packets.at(0)
	l.packets.pop()
	l.whole = n == packetSize
	b := x.batch
	if k := len(b.runs); k > 0 && b.runs[k-1].Stream == streamOf[i] {
		b.runs[k-1].Length += n
	} else {
		b.runs = append(b.runs, logs.Run{Stream: streamOf[i], Length: n})
	}
	l.start += n
	b.ends[i] = l.start
}

// send hands the batch over to run. Packets that were not passed on move to the next.
func (x *ordered) send() {
	b := x.batch
	if b == nil {
		return
	}
	if len(b.runs) == 0 {
		if x.lanes[0].end+x.lanes[1].end == 0 {
			x.batch = nil
			b.release()
		}
		return
	}
	x.batch = nil
	for i := range x.lanes {
		l := &x.lanes[i]
		rest := 0
		if l.start < l.end {
			x.room(i)
			rest = copy(*x.batch.bufs[i], (*b.bufs[i])[l.start:l.end])
		}
		l.start, l.end = 0, rest
	}
	b.at = time.Now()
	x.batches++
	x.out <- b
}
