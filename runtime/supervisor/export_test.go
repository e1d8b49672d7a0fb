package supervisor

import "syscall"

// ThreadSignals are signals without a name that a test may ignore: nothing in a Go
// program uses them. The third one, threadSetID, is in use where the C library is.
var ThreadSignals = []syscall.Signal{threadCancel, threadSpare}

// Ignore makes this process, and what it starts, ignore a signal until undone.
func Ignore(n syscall.Signal) (undo func()) {
	before := action(n)
	setAction(n, actIgnore)
	return func() { setAction(n, before) }
}
