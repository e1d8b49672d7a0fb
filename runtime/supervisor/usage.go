package supervisor

import (
	"bytes"
	"math"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// usage is the resource usage of the processes of an exec.
//
// The times cover every process of the exec that has ended and was reaped, by its parent
// or by the supervisor. They do not cover a process that left both session and process
// group of the exec and then lost its parent, nor one that outlives the exec's first
// process.
//
// The peak is the greater of two numbers. One is the greatest peak of a single one of
// these processes, which the kernel keeps. For the exec's first process that is at least
// the memory of the supervisor when it started the process, about 10 MB. The other is the
// greatest sampled sum over the living processes. The sum counts a shared page once per
// process.
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

// oomFiles have the number of processes that the kernel has killed in the container's
// control group because memory was short: version 2, then version 1.
var oomFiles = []string{"/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control"}

// oomCounter reads the number of those kills. It keeps the file open, so a command in the
// container cannot replace it.
type oomCounter struct{ f *os.File }

// openOOMCounter opens the first of the files that exists. If none does, the count is
// always 0.
func openOOMCounter(files []string) oomCounter {
	for _, name := range files {
		if f, err := os.Open(name); err == nil {
			return oomCounter{f}
		}
	}
	return oomCounter{}
}

// kills returns the number of kills so far.
func (c oomCounter) kills() uint64 {
	if c.f == nil {
		return 0
	}
	buf := make([]byte, 512)
	n, _ := c.f.ReadAt(buf, 0) // an error means the end of the file
	for line := range bytes.Lines(buf[:n]) {
		if rest, ok := bytes.CutPrefix(line, []byte("oom_kill ")); ok {
			kills, _ := strconv.ParseUint(string(bytes.TrimSpace(rest)), 10, 64)
			return kills
		}
	}
	return 0
}

// limitFiles have the memory limit of the container: version 2, then version 1.
var limitFiles = []string{"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}

// bigShare is used when several execs run: a killed process is attributed to an exec only
// if the exec has held 1/bigShare of the memory limit.
const bigShare = 8

// oomJudge finds the exec to which a killed process belonged. The kernel counts kills
// only for the whole container. If a process of an exec ended by SIGKILL while that count
// rose, it is that exec. Otherwise a child was killed whose parent continued: then it is
// the exec that runs alone, or one that has held much of the memory.
type oomJudge struct {
	counter oomCounter
	limit   func() uint64

	// mu guards the fields below.
	mu sync.Mutex
	// running counts the execs between begin and end.
	running int
	// blamed is the count up to which kills are attributed to an exec.
	blamed uint64
}

// oomMark is the kernel's count when an exec began.
type oomMark uint64

func newOOMJudge() *oomJudge {
	return &oomJudge{counter: openOOMCounter(oomFiles), limit: memoryLimit}
}

// begin must be called right before an exec is started.
func (j *oomJudge) begin() oomMark {
	j.mu.Lock()
	j.running++
	j.mu.Unlock()
	return oomMark(j.counter.kills())
}

// end reports whether the kernel killed a process of an exec that has ended. killed means
// that a process ended by a SIGKILL that the supervisor did not send. peak is the peak
// memory of the exec in bytes.
func (j *oomJudge) end(began oomMark, killed bool, peak uint64) bool {
	kills := j.counter.kills()
	rose := kills > uint64(began)
	big := rose && peak >= j.limit()/bigShare
	j.mu.Lock()
	defer j.mu.Unlock()
	j.running--
	if !rose || !killed && (kills <= j.blamed || j.running > 0 && !big) {
		return false
	}
	j.blamed = max(j.blamed, kills)
	return true
}

// memoryLimit returns the memory limit of the container in bytes, or the greatest number
// if there is none.
func memoryLimit() uint64 {
	for _, name := range limitFiles {
		if raw, err := os.ReadFile(name); err == nil {
			if n, err := strconv.ParseUint(string(bytes.TrimSpace(raw)), 10, 64); err == nil {
				return n
			}
			break
		}
	}
	return math.MaxUint64
}

const (
	// killedCode is the exit code of a process that SIGKILL ended. A shell returns the
	// same code for a child that SIGKILL ended.
	killedCode = 137
	oomMessage = "The kernel killed a process because the sandbox had reached its memory limit: give the sandbox more memory, or let the command use less."
)
