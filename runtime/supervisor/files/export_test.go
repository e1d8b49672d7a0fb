package files

import "testing"

// SetFsync replaces fsync(2) by fn until the test ends.
func SetFsync(t *testing.T, fn func(fd int) error) {
	before := fsync
	fsync = fn
	t.Cleanup(func() { fsync = before })
}

// BeforeReplacing calls fn until the test ends before each exchange of a written file with the one that
// it replaces. What fn returns is the error of the exchange, unless it is nil.
func BeforeReplacing(t *testing.T, fn func() error) {
	before := renameat2
	renameat2 = func(from int, base string, dir int, name string, flags uint) error {
		if err := fn(); err != nil {
			return err
		}
		return before(from, base, dir, name, flags)
	}
	t.Cleanup(func() { renameat2 = before })
}

// HoldThreads blocks all file operations until release is called.
func (s *Service) HoldThreads() (release func()) {
	for range Threads {
		s.gate <- struct{}{}
	}
	return func() {
		for range Threads {
			<-s.gate
		}
	}
}
