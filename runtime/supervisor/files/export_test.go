package files

import "testing"

// SetFsync replaces fsync(2) by fn until the test ends.
func SetFsync(t *testing.T, fn func(fd int) error) {
	before := fsync
	fsync = fn
	t.Cleanup(func() { fsync = before })
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
