package supervisor

import (
	"runtime"
	"sync"

	"github.com/agbox/agbox/runtime/supervisor/files"
	"github.com/agbox/agbox/runtime/supervisor/output"
)

// A container has a PID limit, threads count, and a Go program that cannot get a
// thread aborts. So the supervisor makes all its threads before anybody can fill
// the limit and bounds how many it can ever need at once: a thread is needed for
// each running goroutine (at most processors) and for each that waits in a
// system call on a file or on /proc (bounded by gates). Pipes and sockets are
// waited for without threads.
const (
	// processors is the most threads that run Go code at once.
	processors = 4
	// diskThreads bounds the goroutines that wait for the log directory.
	diskThreads = 8
	// fileThreads bounds the goroutines that look at files of the container.
	fileThreads = 4
	// lookThreads bounds the goroutines that read /proc for a kill.
	lookThreads = 2
	// otherThreads are the runtime's own (monitor, signals, poller, collector), a
	// fork, and room for short calls that no gate guards.
	otherThreads = 12
)

// ReserveThreads makes the threads that the supervisor will ever need. The
// runtime keeps idle threads for ever. Call it once, before anything else.
func ReserveThreads() {
	runtime.GOMAXPROCS(min(processors, runtime.NumCPU()))
	const n = processors + diskThreads + fileThreads + lookThreads + files.Threads + output.Threads + otherThreads
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

// gate lets a bounded number of goroutines into blocking system calls.
type gate chan struct{}

// do runs fn when there is room. Calls of do must not be nested.
func (g gate) do(fn func()) {
	g <- struct{}{}
	defer func() { <-g }()
	fn()
}
