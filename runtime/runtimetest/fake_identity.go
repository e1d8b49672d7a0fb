package runtimetest

import (
	"context"
	"maps"

	"github.com/agbox/agbox/runtime"
)

// fakeContent is what an engine has that another one has not.
type fakeContent struct {
	containers map[string]*fakeContainer
	networks   map[string]runtime.Network
	volumes    map[string]runtime.Volume
	marks      map[string]string
}

// Become makes another engine answer at the address. One with a new id is empty. The
// containers of the others run on, and are there again when their engine is.
func (f *Fake) Become(id string) {
	f.Swap(id)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.bootLocked()
}

// Swap is Become without a broken stream of events.
func (f *Fake) Swap(id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.others[f.id] = fakeContent{f.containers, f.networks, f.volumes, f.marks}
	next, known := f.others[id]
	if !known {
		next = fakeContent{map[string]*fakeContainer{}, map[string]runtime.Network{}, map[string]runtime.Volume{}, map[string]string{}}
	}
	f.id, f.containers, f.networks, f.volumes, f.marks = id, next.containers, next.networks, next.volumes, next.marks
}

// LoseData is Become with an engine that calls itself as before: it has lost its data.
func (f *Fake) LoseData() {
	f.mu.Lock()
	id := f.id
	f.mu.Unlock()
	f.Become(id + " before")
	f.mu.Lock()
	defer f.mu.Unlock()
	f.others[id+" before"] = f.others[id]
	f.id = id
}

// Prune removes volumes that no container uses, as marks are.
func (f *Fake) Prune() {
	f.mu.Lock()
	defer f.mu.Unlock()
	clear(f.marks)
}

// Mark makes the mark of an install, or finds it.
func (f *Fake) Mark(ctx context.Context, installID, mark string) error {
	return f.do(ctx, VerbMark, func() error {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.marks[mark] = installID
		return nil
	})
}

// Marked reports whether the engine has the mark.
func (f *Fake) Marked(ctx context.Context, installID, mark string) (bool, error) {
	var marked bool
	err := f.do(ctx, VerbMarked, func() error {
		f.mu.Lock()
		defer f.mu.Unlock()
		found, ok := f.marks[mark]
		marked = ok && found == installID
		return nil
	})
	return marked, err
}

// Unmark removes all marks of an install.
func (f *Fake) Unmark(ctx context.Context, installID string) error {
	return f.do(ctx, VerbUnmark, func() error {
		f.mu.Lock()
		defer f.mu.Unlock()
		maps.DeleteFunc(f.marks, func(_, of string) bool { return of == installID })
		return nil
	})
}
