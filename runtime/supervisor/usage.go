package supervisor

import (
	"os"
	"sync"
	"time"
)

// firstSample is the time until the first sample of the memory of a tree. After that, the
// interval doubles each time. So sampling costs a short exec nothing and a long one very
// little, and does not keep the processor awake for an idle one.
const firstSample = time.Second

// sampler samples the memory of an exec's tree.
type sampler struct {
	s     *Supervisor
	child *child

	// mu guards the fields below.
	mu    sync.Mutex
	timer *time.Timer
	most  uint64
	over  bool
	// busy counts the samples being taken.
	busy sync.WaitGroup
}

// sample starts sampling the processes of a child.
func (s *Supervisor) sample(ch *child) *sampler {
	m := &sampler{s: s, child: ch}
	m.mu.Lock() // the timer may fire at once
	defer m.mu.Unlock()
	m.timer = time.AfterFunc(firstSample, func() { m.look(firstSample) })
	return m
}

// look takes one sample and schedules the next one.
func (m *sampler) look(after time.Duration) {
	m.mu.Lock()
	if m.over {
		m.mu.Unlock()
		return
	}
	m.busy.Add(1)
	m.mu.Unlock()
	defer m.busy.Done()

	var sum uint64
	m.s.look.do(func() { sum = memoryOf(m.child.pid) })
	m.mu.Lock()
	defer m.mu.Unlock()
	m.most = max(m.most, sum)
	if !m.over {
		m.timer = time.AfterFunc(2*after, func() { m.look(2 * after) })
	}
}

// memoryOf returns the resident memory of the processes below a leader and in its
// session.
func memoryOf(leader int) (sum uint64) {
	all := processes()
	parents, belongs := make(map[int]int, len(all)), make(map[int]bool)
	for _, p := range all {
		parents[p.pid] = p.parent
		if p.session == leader || p.group == leader {
			belongs[p.pid] = true
		}
	}
	for _, p := range all {
		if p.pid != os.Getpid() && hasAncestor(p.pid, parents, belongs) {
			sum += p.memory
		}
	}
	return sum
}

// stop ends the sampling. It does not block; wait does.
func (m *sampler) stop() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.over = true
	m.timer.Stop()
}

// wait returns when no sample is being taken.
func (m *sampler) wait() { m.busy.Wait() }

// peak returns the largest sample so far.
func (m *sampler) peak() uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.most
}
