package runtimetest

import (
	"maps"
	"slices"
	"sync"
)

// Fence is a fake of the rules that keep sandboxes from the addresses of the host.
type Fence struct {
	mu     sync.Mutex
	fenced map[string]bool
	err    error
	missed int
	exists func(name string) bool
}

// newFence returns a fence without rules. exists reports whether an interface exists.
func newFence(exists func(name string) bool) *Fence {
	return &Fence{fenced: make(map[string]bool), exists: exists}
}

// Fail makes every method fail from now on; nil undoes that.
func (f *Fence) Fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err = err
}

// Fenced returns the interfaces with rules, sorted.
func (f *Fence) Fenced() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Sorted(maps.Keys(f.fenced))
}

// Gaps returns those of the interfaces without rules.
func (f *Fence) Gaps(interfaces []string) ([]string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil {
		return nil, f.err
	}
	gaps := slices.DeleteFunc(slices.Clone(interfaces), func(name string) bool { return f.fenced[name] })
	if len(gaps) > 0 {
		f.missed++
	}
	return gaps, nil
}

// Missed returns how often Gaps has returned something.
func (f *Fence) Missed() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.missed
}

// Able fails if Fail was called.
func (f *Fence) Able() error {
	_, err := f.Gaps(nil)
	return err
}

// Raise makes rules.
func (f *Fence) Raise(interfaces []string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil {
		return f.err
	}
	for _, name := range interfaces {
		f.fenced[name] = true
	}
	return nil
}

// Trim removes the rules for interfaces that do not exist.
func (f *Fence) Trim() error {
	f.mu.Lock()
	names := slices.Collect(maps.Keys(f.fenced))
	err := f.err
	f.mu.Unlock()
	if err != nil {
		return err
	}
	gone := slices.DeleteFunc(names, f.exists)
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, name := range gone {
		delete(f.fenced, name)
	}
	return nil
}

// Tidy is Trim: what rules have in common is not seen.
func (f *Fence) Tidy() error { return f.Trim() }

// Clear removes all rules, also if Fail was called: a test uses it like "nft flush
// ruleset".
func (f *Fence) Clear() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	clear(f.fenced)
	return nil
}
