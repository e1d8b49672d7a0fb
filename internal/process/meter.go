package process

// leastBulk is how many bytes a transfer moves before it counts as bulk.
const leastBulk = 4 << 20

// BulkMeter counts the bytes of one transfer and raises the collector's target once they
// are many. The zero value is ready. One goroutine may use it at a time.
type BulkMeter struct{ moved int64 }

// Add counts n bytes.
func (m *BulkMeter) Add(n int) {
	before := m.moved
	if m.moved += int64(n); before < leastBulk && m.moved >= leastBulk {
		raiseTarget()
	}
}

// Close ends the count. Call it when the transfer is over.
func (m *BulkMeter) Close() {
	if m.moved >= leastBulk {
		lowerTarget()
	}
	m.moved = 0
}
