package files

import "testing"

// SetFsync has fn take the place of fsync(2) until the test ends.
func SetFsync(t *testing.T, fn func(fd int) error) {
	before := fsync
	fsync = fn
	t.Cleanup(func() { fsync = before })
}

// HoldThreads keeps everything from touching files until release is called.
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
