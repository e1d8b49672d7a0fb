package daemon

import (
	"errors"
	"runtime"
	"sync"
	"time"
)

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
