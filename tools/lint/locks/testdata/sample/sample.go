// Package sample holds mutexes across this and that. A line that is to be found
// has a comment that begins with "want" and says what is called there.
package sample

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
)

type shelf struct {
	mu    sync.Mutex
	rw    sync.RWMutex
	many  [4]sync.Mutex
	names []string
	out   io.Writer
	back  keeper
	tell  func()
	timer *time.Timer
}

// keeper has one implementation that does I/O and one that does not.
type keeper interface{ keep(name string) }

type memory struct{ names []string }

func (m *memory) keep(name string) { m.names = append(m.names, name) }

type disk struct{ dir string }

func (d disk) keep(name string) { _ = os.WriteFile(d.dir+"/"+name, nil, 0o600) }

// counter has no implementation that does I/O.
type counter interface{ count() int }

func (m *memory) count() int { return len(m.names) }

func newShelf(out io.Writer, inMemory bool) *shelf {
	if inMemory {
		return &shelf{out: out, back: &memory{}, tell: func() {}}
	}
	return &shelf{out: out, back: disk{"/tmp"}, tell: func() { fmt.Println("told") }}
}

func (s *shelf) direct() {
	s.mu.Lock()
	_ = os.Remove("a") // want os.Remove
	s.mu.Unlock()
	_ = os.Remove("b")
}

func (s *shelf) deferred() {
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = os.Remove("a") // want os.Remove
}

func (s *shelf) inDefer() {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer os.Remove("a") // want os.Remove
}

func (s *shelf) beforeTheLock() {
	defer os.Remove("a")
	s.mu.Lock()
	defer s.mu.Unlock()
}

func (s *shelf) reading() {
	s.rw.RLock()
	defer s.rw.RUnlock()
	s.save() // want os.WriteFile
}

func (s *shelf) save() { _ = os.WriteFile("a", nil, 0o600) }

func (s *shelf) ofMany(i int) {
	turn := &s.many[i]
	turn.Lock()
	defer turn.Unlock()
	s.save() // want os.WriteFile
}

func (s *shelf) inOneBranch(yes bool) {
	s.mu.Lock()
	if yes {
		s.mu.Unlock()
	}
	s.save() // want os.WriteFile
	if !yes {
		s.mu.Unlock()
	}
}

func (s *shelf) inALoop() {
	for range 3 {
		s.save() // want os.WriteFile
		s.mu.Lock()
	}
	s.mu.Unlock()
}

func (s *shelf) openedInBetween() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.saveUnlockedLocked()
}

// saveUnlockedLocked gives the lock up while it writes.
func (s *shelf) saveUnlockedLocked() {
	s.mu.Unlock()
	s.save()
	s.mu.Lock()
}

func (s *shelf) lock() func() {
	s.mu.Lock()
	return s.mu.Unlock
}

func (s *shelf) byHelper() {
	unlock := s.lock()
	s.save() // want os.WriteFile
	unlock() // want function value
}

func (s *shelf) afterHelper() {
	s.unlockingDefer()
	s.save()
}

func (s *shelf) unlockingDefer() {
	s.mu.Lock()
	defer func() { s.mu.Unlock() }()
}

func (s *shelf) toAnyone() {
	s.mu.Lock()
	defer s.mu.Unlock()
	fmt.Fprintln(s.out, "hello")       // want fmt.Fprintln
	_, _ = s.out.Write([]byte("text")) // want (io.Writer).Write
}

func (s *shelf) toOurs(c counter) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.back.keep("name") // want os.WriteFile
	_ = c.count()
}

func (s *shelf) byFunction() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tell() // want function value
}

// find calls what it was given while it holds the mutex, and the function takes it again.
func (s *shelf) find(fits func(string) bool) bool {
	s.rw.RLock()
	defer s.rw.RUnlock()
	return s.findLocked(fits) // want findLocked > the call of a function value
}

func (s *shelf) findLocked(fits func(string) bool) bool {
	for _, name := range s.names {
		if fits(name) {
			return true
		}
	}
	return false
}

func (s *shelf) has(name string) bool {
	s.rw.RLock()
	defer s.rw.RUnlock()
	return slices.Contains(s.names, name)
}

func (s *shelf) findAgain() bool { return s.find(s.has) }

// findInACopy decides after the lock.
func (s *shelf) findInACopy(fits func(string) bool) bool {
	s.rw.RLock()
	names := slices.Clone(s.names)
	s.rw.RUnlock()
	return slices.ContainsFunc(names, fits)
}

func (s *shelf) byCallback() {
	s.mu.Lock()
	defer s.mu.Unlock()
	slices.SortFunc(s.names, func(a, b string) int { return strings.Compare(a, b) })
	slices.SortFunc(s.names, func(a, b string) int { // want os.Remove
		_ = os.Remove(a)
		return strings.Compare(a, b)
	})
}

func (s *shelf) byIterator() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for word := range strings.SplitSeq("a b", " ") {
		s.names = append(s.names, word)
	}
	for word := range strings.SplitSeq("a b", " ") { // want os.Remove
		_ = os.Remove(word)
	}
}

func (s *shelf) later(ctx context.Context, cancel context.CancelFunc) {
	s.mu.Lock()
	defer s.mu.Unlock()
	go s.save()
	s.timer = time.AfterFunc(time.Second, s.save)
	context.AfterFunc(ctx, func() { s.save() })
	cancel()
}

func (s *shelf) sleeping() {
	s.mu.Lock()
	defer s.mu.Unlock()
	time.Sleep(time.Second) // want time.Sleep
}

func local() error {
	var mu sync.Mutex // guards names
	var names []string
	add := func(name string) error {
		mu.Lock()
		defer mu.Unlock()
		names = append(names, name)
		return os.Remove(name) // want os.Remove
	}
	return add("a")
}

// recursion must come to an end.
func (s *shelf) recursion(n int) {
	s.mu.Lock()
	s.downLocked(n) // want os.WriteFile
	s.mu.Unlock()
}

func (s *shelf) downLocked(n int) {
	if n > 0 {
		s.downLocked(n - 1)
		s.save()
	}
}

type ordered struct {
	// mu guards names.
	// Held across I/O: the files must be made in the order of the names.
	mu    sync.Mutex
	names []string
}

func (o *ordered) make(name string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.names = append(o.names, name)
	_ = os.WriteFile(name, nil, 0o600)
}

type stale struct {
	// Held across I/O: it was once.
	mu sync.Mutex // want nothing
}

func (s *stale) look() {
	s.mu.Lock()
	defer s.mu.Unlock()
}

func unnamed(mutexes map[string]*sync.Mutex) {
	mutexes["a"].Lock()   // want name
	mutexes["a"].Unlock() // want name
}

// Use has everything reached.
func Use(ctx context.Context) {
	for _, s := range []*shelf{newShelf(os.Stdout, true), newShelf(os.Stdout, false)} {
		s.toOurs(&memory{})
		s.byFunction()
		s.findAgain()
	}
}
