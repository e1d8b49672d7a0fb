package runtimetest

import (
	"context"
	"fmt"
	"sync"

	"github.com/containerd/errdefs"

	"github.com/agbox/agbox/internal/fault"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/runtime"
)

// Verb names a method of the engine.
type Verb string

// The verbs.
const (
	VerbPing             Verb = "Ping"
	VerbInfo             Verb = "Info"
	VerbEnsureImage      Verb = "EnsureImage"
	VerbEnsureNetwork    Verb = "EnsureNetwork"
	VerbEnsureContainer  Verb = "EnsureContainer"
	VerbStartContainer   Verb = "StartContainer"
	VerbStopContainer    Verb = "StopContainer"
	VerbWaitContainer    Verb = "WaitContainer"
	VerbRemoveContainer  Verb = "RemoveContainer"
	VerbRemoveNetwork    Verb = "RemoveNetwork"
	VerbInventory        Verb = "Inventory"
	VerbSandboxInventory Verb = "SandboxInventory"
	VerbInspectContainer Verb = "InspectContainer"
	VerbEvents           Verb = "Events"
	VerbEnsureVolume     Verb = "EnsureVolume"
	VerbRemoveVolume     Verb = "RemoveVolume"
	VerbContainerLogs    Verb = "ContainerLogs"
	VerbExecIn           Verb = "ExecIn"
	VerbAbilities        Verb = "Abilities"
	VerbListImages       Verb = "ListImages"
	VerbRemoveImage      Verb = "RemoveImage"
	VerbBuildImage       Verb = "BuildImage"
	VerbCopyTo           Verb = "CopyTo"
	VerbContainerUsage   Verb = "ContainerUsage"
	VerbReadFile         Verb = "ReadFile"
	VerbMark             Verb = "Mark"
	VerbMarked           Verb = "Marked"
	VerbUnmark           Verb = "Unmark"
)

// verbState has the faults that a test set for a verb, and the number of its calls.
type verbState struct {
	calls   int
	err     error
	release chan struct{} // if not nil, calls hang until it is closed
	lose    bool
}

func (f *Fake) verbLocked(v Verb) *verbState {
	if f.verbs[v] == nil {
		f.verbs[v] = &verbState{}
	}
	return f.verbs[v]
}

// Fail makes every call of the verb fail without effect; a nil error ends that.
func (f *Fake) Fail(v Verb, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.verbLocked(v).err = err
}

// Hang makes calls of the verb block until their context is done or release is called.
// After release they continue normally.
func (f *Fake) Hang(v Verb) (release func()) {
	gate := make(chan struct{})
	f.mu.Lock()
	defer f.mu.Unlock()
	f.verbLocked(v).release = gate
	return sync.OnceFunc(func() {
		close(gate)
		f.mu.Lock()
		defer f.mu.Unlock()
		if state := f.verbLocked(v); state.release == gate {
			state.release = nil
		}
	})
}

// PullForEver makes pulls of one image block until their context is done.
func (f *Fake) PullForEver(ref string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.endless == nil {
		f.endless = make(map[string]bool)
	}
	f.endless[ref] = true
}

// LateLists makes lists show an exited container as running until it is inspected.
// Docker too emits the event of an exit before its lists show it.
func (f *Fake) LateLists() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.late = true
}

// Overlook makes lists lack a container that there is.
func (f *Fake) Overlook(id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.overlooked == nil {
		f.overlooked = make(map[string]bool)
	}
	f.overlooked[id] = true
}

// LoseReply makes the next call of the verb take effect and then fail as unavailable,
// as if the connection broke after the engine had done the work.
func (f *Fake) LoseReply(v Verb) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.verbLocked(v).lose = true
}

// Calls returns how often the verb was called, including failed calls.
func (f *Fake) Calls(v Verb) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.verbLocked(v).calls
}

// GoDown makes the engine unavailable: every call fails, every stream breaks.
func (f *Fake) GoDown() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.down = true
	f.bootLocked()
}

// ComeBack ends GoDown. With live-restore the containers kept running; without it they
// have exited with code 137, and there is no event about that.
func (f *Fake) ComeBack(liveRestore bool) {
	f.mu.Lock()
	var ended []runtime.ContainerSpec
	for _, id := range sortedKeys(f.containers) {
		if c := f.containers[id]; c.State == runtime.StateRunning && !liveRestore {
			f.exitLocked(c, killed)
			ended = append(ended, c.spec)
		}
	}
	f.down = false
	f.bootLocked()
	f.mu.Unlock()
	for _, spec := range ended {
		if f.OnEnd != nil {
			f.OnEnd(spec)
		}
	}
}

// Restart is GoDown and ComeBack.
func (f *Fake) Restart(liveRestore bool) {
	f.GoDown()
	f.ComeBack(liveRestore)
}

func (f *Fake) bootLocked() {
	f.boots++
	f.events = nil
	f.wakeLocked()
}

// AddForeign adds a container that the daemon did not create. Its labels claim the
// identity, which may be zero.
func (f *Fake) AddForeign(name string, claimed runtime.Identity) (id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.addContainerLocked(runtime.ContainerSpec{Identity: claimed, Name: name})
}

// AddForeignNetwork is AddForeign for a network.
func (f *Fake) AddForeignNetwork(name string, claimed runtime.Identity) (id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	id = f.newIDLocked()
	f.networks[id] = runtime.Network{Identity: claimed, ID: id, Name: name, Interface: interfaceName(id)}
	return id
}

// Containers returns all containers, including foreign ones, in the order of creation.
func (f *Fake) Containers() []runtime.Container {
	f.mu.Lock()
	defer f.mu.Unlock()
	var all []runtime.Container
	for _, id := range sortedKeys(f.containers) {
		all = append(all, f.containers[id].Container)
	}
	return all
}

// Networks returns all networks in the order of creation.
func (f *Fake) Networks() []runtime.Network {
	f.mu.Lock()
	defer f.mu.Unlock()
	var all []runtime.Network
	for _, id := range sortedKeys(f.networks) {
		all = append(all, f.networks[id])
	}
	return all
}

// Spec returns the spec of the container with the name; false if there is none.
func (f *Fake) Spec(name string) (runtime.ContainerSpec, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range f.containers {
		if c.Name == name {
			return c.spec, true
		}
	}
	return runtime.ContainerSpec{}, false
}

// do runs work as one call of the verb. work acquires mu itself.
func (f *Fake) do(ctx context.Context, v Verb, work func() error) error {
	if err := f.begin(ctx, v); err != nil {
		return err
	}
	err := work()
	f.mu.Lock()
	state := f.verbLocked(v)
	lost := state.lose
	state.lose = false
	f.mu.Unlock()
	if lost {
		return unavailable("the reply was lost")
	}
	return err
}

// begin counts the call, and fails or blocks it if the test said so.
func (f *Fake) begin(ctx context.Context, v Verb) error {
	f.mu.Lock()
	state := f.verbLocked(v)
	state.calls++
	gate := state.release
	f.mu.Unlock()
	if gate != nil {
		select {
		case <-gate:
		case <-ctx.Done():
		}
	}
	if ctx.Err() != nil {
		return ended(ctx)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.down {
		return unavailable("the engine is down")
	}
	return f.verbLocked(v).err
}

func unavailable(what string) error {
	return fault.New(errdefs.ErrUnavailable, agboxv1.ErrorReason_ENGINE_UNAVAILABLE, "The engine does not answer: %s.", what)
}

func ended(ctx context.Context) error {
	return fmt.Errorf("fake engine: %w: %w", errdefs.ErrUnavailable, ctx.Err())
}

func noContainer(id string) error {
	return fmt.Errorf("fake engine: no container %s: %w", id, errdefs.ErrNotFound)
}
