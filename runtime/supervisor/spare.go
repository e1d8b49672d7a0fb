package supervisor

const (
	// execFiles is how many files an exec has: two outputs, index, status.
	execFiles = 4
	// spareFiles is how many files are kept ready, so that a few execs that come
	// at once wait for none to be made.
	spareFiles = 4 * execFiles
)

// keepSpares keeps files ready for the execs to come, until the supervisor stops.
// What it cannot make now it tries again after the next exec.
func (s *Supervisor) keepSpares() {
	for {
		// One at a time, so that an exec never waits for more than one in the gate.
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

// refillSpares wakes keepSpares. It is called when an exec is done rather than
// when it took the files: then the processors have nothing better to do.
func (s *Supervisor) refillSpares() {
	select {
	case s.refill <- struct{}{}:
	default: // it will look anyway
	}
}
