package supervisor

import (
	"runtime"
	"sync"

	"github.com/agbox/agbox/runtime/supervisor/files"
	"github.com/agbox/agbox/runtime/supervisor/output"
)

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
