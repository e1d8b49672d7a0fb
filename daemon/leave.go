package daemon

import (
	"errors"
	"runtime"
	"sync"
	"time"
)

// leaveAfter is how long calls that were cut, and steps whose context has ended, get
// to notice. Only what waits for the kernel does not, such as for a path on a file
// system that does not answer. Replaced by tests.
var leaveAfter = 5 * time.Second

// errLeft is why a process must not become another program: execve waits for the end
// of all its threads, and not even SIGKILL ends one that waits for a dead file system.
// Until then nobody would be served, and no other daemon could have the lock.
var errLeft = errors.New("something that agboxd is at does not end, perhaps because a file system of this machine does not answer; its log says what")

// within tells whether a channel was closed in time.
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

// waited returns a channel that is closed when a group has ended.
func waited(group *sync.WaitGroup) <-chan struct{} {
	ended := make(chan struct{})
	go func() { // ends with the group
		defer close(ended)
		group.Wait()
	}()
	return ended
}

// ended tells whether a channel was closed.
func ended(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

// stacks says where every goroutine is, as far as 64 KiB go.
func stacks() string {
	buf := make([]byte, 64<<10)
	return string(buf[:runtime.Stack(buf, true)])
}
