package supervisor

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync"
	"time"

	"github.com/agbox/agbox/runtime/supervisor/files"
	"github.com/agbox/agbox/runtime/supervisor/output"
)

const (
	// memoryPause is the time between two looks at what was allocated.
	memoryPause = 2 * time.Second
	// quietBytes is the most that is allocated in a pause in which memory may be returned.
	quietBytes = 512 << 10
	// worthBytes is how much must have been allocated since memory was last returned, to
	// make it worth doing again.
	worthBytes = 128 << 10
)

// memoryKeeper returns memory to the system when a burst of work is over. The runtime
// collects garbage only when the heap has grown to 2 MB, which is more than a supervisor
// needs, and there is one supervisor per sandbox. Without work it sleeps.
//
// Measured private memory with 10 agents that report every second: 3.3 to 3.45 MB after 10 s.
// A Go program that does nothing, with as many threads and after some collections, has 2.0.
type memoryKeeper struct {
	// worked has a value if there was work since the last look.
	worked chan struct{}
	// allocated is how many bytes were ever allocated.
	allocated func() uint64
	giveBack  func()
}

func newMemoryKeeper() *memoryKeeper {
	return &memoryKeeper{worked: make(chan struct{}, 1), allocated: heapAllocated, giveBack: returnHeap}
}

// work tells the keeper that something was done. It does not wait.
func (k *memoryKeeper) work() {
	select {
	case k.worked <- struct{}{}:
	default: // it is going to look anyway
	}
}

// run looks at the heap after work, until stopping is closed.
func (k *memoryKeeper) run(stopping <-chan struct{}) {
	last, returned := k.allocated(), uint64(0)
	busy := false
	for {
		if !busy {
			select {
			case <-k.worked:
			case <-stopping:
				return
			}
		}
		if waitFor(stopping, memoryPause) {
			return
		}
		now := k.allocated()
		busy = now-last > quietBytes
		if !busy && now-returned >= worthBytes {
			k.giveBack()
			returned = k.allocated()
		}
		last = now
	}
}

// heapAllocated stops nobody and takes microseconds.
func heapAllocated() uint64 {
	sample := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}

// returnHeap collects garbage and returns free memory to the system. What a sync.Pool
// holds survives one collection, so there are two.
func returnHeap() {
	runtime.GC()
	debug.FreeOSMemory()
}

// A container has a PID limit, which counts threads, and a Go program aborts if it cannot
// create a thread. So the supervisor creates all its threads before anybody can reach the
// limit, and bounds how many it can need at once. Each running goroutine needs a thread
// (at most processors), and so does each goroutine in a blocking system call on a file or
// on /proc (bounded by gates). Waiting for pipes and sockets needs no thread. An idle thread
// takes 20 KB of private memory.
const (
	// processors is the maximum number of threads that run Go code at once. Each costs 0.1 MB.
	// Measured: with one, a gate and an exec take as long as with two.
	processors = 2
	// diskThreads bounds the goroutines that wait for the log directory.
	diskThreads = 4
	// fileThreads bounds the goroutines that access files of the container.
	fileThreads = 2
	// lookThreads bounds the goroutines that read /proc for a kill.
	lookThreads = 2
	// callerThreads bounds the goroutines that read /proc for a connection to the agent
	// socket.
	callerThreads = 1
	// otherThreads are the runtime's own (monitor, signals, poller, collector), a fork,
	// and room for short calls without a gate.
	otherThreads = 8
)

// ReserveThreads creates the threads that the supervisor will ever need. The runtime
// never ends idle threads. Call it once, before anything else.
func ReserveThreads() {
	runtime.GOMAXPROCS(min(processors, runtime.NumCPU()))
	const n = processors + diskThreads + fileThreads + lookThreads + callerThreads + files.Threads + output.Threads + otherThreads
	var all, done sync.WaitGroup
	release := make(chan struct{})
	all.Add(n)
	for range n {
		done.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread() // back to the pool; a locked thread would end
			all.Done()
			<-release
		})
	}
	all.Wait()
	close(release)
	done.Wait()
}

// gate bounds the number of goroutines in blocking system calls.
type gate chan struct{}

// do runs fn when the gate has room. Calls of do must not be nested.
func (g gate) do(fn func()) {
	g <- struct{}{}
	defer func() { <-g }()
	fn()
}

// waitFor reports whether the channel was closed within d.
func waitFor(c <-chan struct{}, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-c:
		return true
	case <-timer.C:
		return false
	}
}
