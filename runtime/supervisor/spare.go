package supervisor

const (
	// execFiles is the number of files of an exec: two outputs, index, status.
	execFiles = 4
	// spareFiles is how many files are kept ready. It suffices for a few concurrent
	// starts.
	spareFiles = 4 * execFiles
)

// keepSpares keeps files ready for future execs until the supervisor stops. After a
// failure it tries again after the next exec.
func (s *Supervisor) keepSpares() {
	for {
		// One at a time, so an exec never waits for more than one in the gate.
		for more := true; more; {
			s.disk.do(func() { more, _ = s.logs.AddSpare() })
		}
		select {
		case <-s.refill:
		case <-s.stopping:
			return
		}
	}
}

// refillSpares wakes keepSpares. It is called when an exec ends and not when it takes the
// files, because the processors are less busy then.
func (s *Supervisor) refillSpares() {
	select {
	case s.refill <- struct{}{}:
	default: // it is going to run anyway
	}
}
