package bulk

// least is how many bytes a transfer moves before it counts as bulk.
const least = 4 << 20

// Meter counts the bytes of one transfer and raises the collector's target once they
// are many. The zero value is ready. One goroutine may use it at a time.
type Meter struct{ moved int64 }

// Add counts n bytes.
func (m *Meter) Add(n int) {
	before := m.moved
	if m.moved += int64(n); before < least && m.moved >= least {
		raise()
	}
}

// Close ends the count. Call it when the transfer is over.
func (m *Meter) Close() {
	if m.moved >= least {
		lower()
	}
	m.moved = 0
}
