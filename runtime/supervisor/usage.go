package supervisor

import (
	"os"
	"sync"
	"syscall"
	"time"
)

// usage is what the processes of an exec have used.
//
// The times are those of every process of the exec that has ended and was waited
// for, by its parent or by the supervisor. What left both session and process
// group of the exec and then lost its parent is not in it, nor what outlives the
// exec's first process.
//
// The peak is the largest of two numbers. One is the most that a single one of
// those processes ever had in memory, which the kernel keeps; for the exec's
// first process that is never less than what the supervisor had in memory when it
// started it, some 10 MB. The other is the largest sum over the living processes
// that was seen by a sampler, in which a page that several share counts for each.
type usage struct {
	user, system time.Duration
	// peak is in bytes.
	peak uint64
}

func (u *usage) add(r *syscall.Rusage) {
	u.user += time.Duration(r.Utime.Nano())
	u.system += time.Duration(r.Stime.Nano())
	u.peak = max(u.peak, uint64(r.Maxrss)<<10)
}

// firstSample is when the memory of a tree is looked at for the first time; from
// then on always after twice as long. So a short exec costs nothing, a long one
// next to nothing, and an idle one does not keep the processor awake.
const firstSample = time.Second

// sampler looks at the memory of an exec's tree now and then.
type sampler struct {
	s     *Supervisor
	child *child

	// mu guards the fields below.
	mu    sync.Mutex
	timer *time.Timer
	most  uint64
	over  bool
	// busy counts the looks.
	busy sync.WaitGroup
}

// sample begins to look at the processes of a child.
func (s *Supervisor) sample(ch *child) *sampler {
	m := &sampler{s: s, child: ch}
	m.mu.Lock() // the timer may be quick
	defer m.mu.Unlock()
	m.timer = time.AfterFunc(firstSample, func() { m.look(firstSample) })
	return m
}

// look takes one sample and plans the next one.
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

// memoryOf sums up what is in memory of the processes below a leader and in its
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

// stop ends the looks. It waits for nothing; wait does.
func (m *sampler) stop() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.over = true
	m.timer.Stop()
}

// wait returns when nobody looks any more.
func (m *sampler) wait() { m.busy.Wait() }

// peak returns the largest sample so far.
func (m *sampler) peak() uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.most
}
