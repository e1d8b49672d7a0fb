package supervisor

import "syscall"

// KillAllBelow kills all descendants of this process.
func KillAllBelow() {
	t := &tree{known: make(map[key]bool)}
	for found := t.look(true); len(found) > 0; found = t.look(true) {
		for _, p := range found {
			p.kill(syscall.SIGKILL)
		}
	}
}

// ThreadSignals are signals without a name that a test may ignore: no Go program uses
// them. The third one, threadSetID, is used by the C library.
var ThreadSignals = []syscall.Signal{threadCancel, threadSpare}

// Ignore makes this process and its children ignore a signal until undo is called.
func Ignore(n syscall.Signal) (undo func()) {
	before := actionOf(n)
	setAction(n, kernelAction{handler: actIgnore})
	return func() { setAction(n, before) }
}
