package daemon

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync"
	"syscall"
	"time"
)

// stopSignals are the signals that stop a daemon: SIGTERM and SIGINT end ctx.
type stopSignals struct {
	ctx    context.Context
	forget context.CancelFunc
	// caught has signals that may not have ended ctx yet.
	caught chan os.Signal
}

// catchStop catches the signals until release.
func catchStop(parent context.Context) *stopSignals {
	s := &stopSignals{caught: make(chan os.Signal, 1)}
	signal.Notify(s.caught, syscall.SIGTERM, syscall.SIGINT)
	s.ctx, s.forget = signal.NotifyContext(parent, syscall.SIGTERM, syscall.SIGINT)
	return s
}

// release reports whether a signal was caught. Later signals end the process, as by
// default, so no signal is lost in between.
func (s *stopSignals) release() (caught bool) {
	s.forget()
	signal.Stop(s.caught) // when it returns, all caught signals are in the channel
	return len(s.caught) > 0
}

// leaveAfter is how long abandoned calls, and steps whose context has ended, get to
// notice that. Only a blocked system call does not notice, for example on a file system
// that does not answer. Tests replace it.
var leaveAfter = 5 * time.Second

// errLeft says why a process must not become another program: execve waits for the end of
// all its threads, and not even SIGKILL ends one that waits for a dead file system. Until
// then nobody would be served, and no other daemon could get the lock.
var errLeft = errors.New("something that agboxd is at does not end, perhaps because a file system of this machine does not answer; its log says what")

// within reports whether a channel was closed within the limit.
func within(limit time.Duration, ch <-chan struct{}) bool {
	timeout := time.NewTimer(limit)
	defer timeout.Stop()
	select {
	case <-ch:
		return true
	case <-timeout.C:
		return false
	}
}

// waited returns a channel that is closed when a group is done.
func waited(group *sync.WaitGroup) <-chan struct{} {
	ended := make(chan struct{})
	go func() { // ends with the group
		defer close(ended)
		group.Wait()
	}()
	return ended
}

// ended reports whether a channel is closed.
func ended(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

// stacks returns the stacks of all goroutines, at most 64 KiB.
func stacks() string {
	buf := make([]byte, 64<<10)
	return string(buf[:runtime.Stack(buf, true)])
}

const (
	// memoryPause is the pause between two looks at what the daemon has allocated.
	memoryPause = 10 * time.Second
	// quietBytes is the most that an idle daemon allocates in a pause. Measured: its
	// look at the engine takes 0.1 MB without sandboxes and 0.9 MB with 60.
	quietBytes = 8 << 20
	// worthBytes is how much must have been allocated since memory was last returned
	// to make it worth doing again.
	worthBytes = 16 << 20
)

// memoryKeeper returns memory to the system when a burst of work is over. The runtime
// collects the garbage of a burst only after as much again was allocated, which an
// idle daemon does not do for hours, and keeps part of what is free.
//
// About 6 MB more than in a new daemon remain. No sandbox holds them. Measured anonymous
// memory: 7.2 MB new, 11.8 MB after the first sandbox was made and removed, 13.1 MB after 40
// more, 13.5 MB after another 40; of that, 4.5, 5.4, 5.8 and 5.8 MB are live. The first
// requests leave compiled rules of protovalidate (1.5 MB) and tables of protobuf and JSON;
// the rest is partly used spans, which the runtime cannot compact, and its own tables.
type memoryKeeper struct {
	// allocated is how many bytes were ever allocated.
	allocated func() uint64
	giveBack  func()
}

// run looks at the heap until ctx ends.
func (k memoryKeeper) run(ctx context.Context) {
	tick := time.NewTicker(memoryPause)
	defer tick.Stop()
	last, returned := k.allocated(), uint64(0)
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		now := k.allocated()
		if now-last <= quietBytes && now-returned >= worthBytes {
			k.giveBack()
			returned = now
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
