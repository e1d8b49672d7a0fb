package supervisor

import "syscall"

// KillAllBelow kills what descends from this process.
func KillAllBelow() {
	t := &tree{known: make(map[key]bool)}
	for found := t.look(true); len(found) > 0; found = t.look(true) {
		for _, p := range found {
			p.kill(syscall.SIGKILL)
		}
	}
}

// ThreadSignals are signals without a name that a test may ignore: nothing in a Go
// program uses them. The third one, threadSetID, is in use where the C library is.
var ThreadSignals = []syscall.Signal{threadCancel, threadSpare}

// Ignore makes this process, and what it starts, ignore a signal until undone.
func Ignore(n syscall.Signal) (undo func()) {
	before := action(n)
	setAction(n, actIgnore)
	return func() { setAction(n, before) }
}
