package output

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
