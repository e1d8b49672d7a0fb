// Package runtimetest provides a fake engine in memory for tests, and the conformance
// suite that the fake and the Docker adapter both pass.
package runtimetest

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"github.com/agbox/agbox/internal/fault"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/runtime"
)

// FakeImage is the image that every fake engine has.
const FakeImage = "agbox/base:latest"

// Fake is an engine in memory. Its ids are numbers from a counter, so they are the same
// in every run of a test. Its methods are safe for concurrent use. It waits only for
// channels and contexts, never for the clock.
type Fake struct {
	// OnStart runs each time a container starts, in the caller's goroutine, before
	// StartContainer returns. A test can start a process in place of the container.
	// OnEnd runs when the container has ended. Set both before the first call.
	OnStart, OnEnd func(runtime.ContainerSpec)
	// Fence has the rules on the engine's host, which outlive a daemon.
	Fence *Fence
	// RootUID and RootGID are in the result of Info. Set both before the first call.
	RootUID, RootGID int

	mu         sync.Mutex // guards all below; not held while a hook runs or a call waits
	counter    int
	images     map[string]runtime.Image // by reference
	files      map[string]string        // of all containers, by path
	endless    map[string]bool          // references whose pulls do not end
	containers map[string]*fakeContainer
	networks   map[string]runtime.Network
	volumes    map[string]runtime.Volume // by name
	marks      map[string]string         // install ids by mark
	// id is that of the engine. others are those that answered at its address before.
	id     string
	others map[string]fakeContent
	verbs  map[Verb]*verbState
	down   bool
	late   bool // see LateLists
	// overlooked are the containers of Overlook.
	overlooked map[string]bool
	// boots counts the starts of the engine. A stream ends with the engine that it was
	// opened on.
	boots  int
	events []runtime.Event // since the last start of the engine
	// changed is closed and replaced when events or boots change.
	changed chan struct{}
}

type fakeContainer struct {
	runtime.Container
	spec runtime.ContainerSpec
	// inspected is true if InspectContainer was called since the container ended.
	inspected bool
	// copied are the files that CopyTo has put into it.
	copied map[string]string
}

// NewFake returns an engine with FakeImage and nothing else.
func NewFake() *Fake {
	f := &Fake{
		images:     map[string]runtime.Image{},
		files:      map[string]string{"/etc/passwd": "root:x:0:0:root:/root:/bin/sh\n"},
		containers: map[string]*fakeContainer{},
		networks:   map[string]runtime.Network{},
		volumes:    map[string]runtime.Volume{},
		marks:      map[string]string{},
		others:     map[string]fakeContent{},
		verbs:      map[Verb]*verbState{},
		changed:    make(chan struct{}),
	}
	f.Fence = newFence(f.hasInterface)
	f.AddImage(FakeImage, runtime.Image{Cmd: []string{"sh"}})
	return f
}

// AddImage adds an image under a reference and returns it with an id.
func (f *Fake) AddImage(ref string, image runtime.Image) runtime.Image {
	f.mu.Lock()
	defer f.mu.Unlock()
	if image.ID == "" {
		image.ID = "sha256:" + f.newIDLocked()
	}
	if image.Platform == "" {
		image.Platform = fakePlatform
	}
	f.images[ref] = image
	return image
}

// SetFile sets the content of a file of all containers.
func (f *Fake) SetFile(path, content string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.files[path] = content
}

func (f *Fake) newIDLocked() string {
	f.counter++
	return fmt.Sprintf("%064x", f.counter)
}

// Ping succeeds.
func (f *Fake) Ping(ctx context.Context) error {
	return f.do(ctx, VerbPing, func() error { return nil })
}

// Info returns a fixed version and 8 GiB of memory.
func (f *Fake) Info(ctx context.Context) (runtime.EngineInfo, error) {
	err := f.do(ctx, VerbInfo, func() error { return nil })
	if err != nil {
		return runtime.EngineInfo{}, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return runtime.EngineInfo{ID: f.id, Root: "/var/lib/fake", Version: "fake", APIVersion: "1.41", Memory: 8 << 30, RootUID: f.RootUID, RootGID: f.RootGID}, nil
}

// EnsureNetwork creates a network, or finds it by identity and name.
func (f *Fake) EnsureNetwork(ctx context.Context, spec runtime.NetworkSpec) (runtime.Network, error) {
	var network runtime.Network
	err := f.do(ctx, VerbEnsureNetwork, func() error {
		f.mu.Lock()
		defer f.mu.Unlock()
		taken := false
		var twins []runtime.Network
		for _, id := range sortedKeys(f.networks) {
			n := f.networks[id]
			switch {
			case n.Name != spec.Name:
			case n.Identity != spec.Identity:
				taken = true
			default:
				twins = append(twins, n)
			}
		}
		if len(twins) > 0 {
			network = twins[max(0, slices.IndexFunc(twins, f.usedLocked))]
			for _, n := range twins {
				if n.ID != network.ID && !f.usedLocked(n) {
					delete(f.networks, n.ID)
				}
			}
			return nil
		}
		if taken {
			return fault.New(errdefs.ErrAlreadyExists, agboxv1.ErrorReason_NAME_TAKEN_IN_ENGINE, "The engine has another network %q.", spec.Name)
		}
		id := f.newIDLocked()
		network = runtime.Network{Identity: spec.Identity, ID: id, Name: spec.Name, Interface: interfaceName(id)}
		f.networks[network.ID] = network
		return nil
	})
	return network, err
}

// interfaceName is the name of a network's interface on the host.
func interfaceName(networkID string) string { return "br-" + networkID }

// hasInterface reports whether a network has the interface.
func (f *Fake) hasInterface(name string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for id := range f.networks {
		if interfaceName(id) == name {
			return true
		}
	}
	return false
}

// usedLocked reports whether a container was created for the network.
func (f *Fake) usedLocked(n runtime.Network) bool {
	for _, c := range f.containers {
		if c.NetworkID == n.ID {
			return true
		}
	}
	return false
}

// RemoveNetwork removes a network by id. A missing one is success.
func (f *Fake) RemoveNetwork(ctx context.Context, id string) error {
	return f.do(ctx, VerbRemoveNetwork, func() error {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.networks, id)
		return nil
	})
}

// EnsureVolume creates a volume, or finds it by identity and name.
func (f *Fake) EnsureVolume(ctx context.Context, spec runtime.VolumeSpec) error {
	return f.do(ctx, VerbEnsureVolume, func() error {
		f.mu.Lock()
		defer f.mu.Unlock()
		if v, ok := f.volumes[spec.Name]; ok && v.Identity != spec.Identity {
			return fault.New(errdefs.ErrAlreadyExists, agboxv1.ErrorReason_NAME_TAKEN_IN_ENGINE, "The engine has another volume %q.", spec.Name)
		}
		f.volumes[spec.Name] = runtime.Volume(spec)
		return nil
	})
}

// RemoveVolume removes a volume by name. A missing one is success; one in use is a
// conflict.
func (f *Fake) RemoveVolume(ctx context.Context, name string) error {
	return f.do(ctx, VerbRemoveVolume, func() error {
		f.mu.Lock()
		defer f.mu.Unlock()
		for _, c := range f.containers {
			for _, m := range c.spec.Volumes {
				if m.Volume == name {
					return fmt.Errorf("fake engine: volume %s is in use: %w", name, errdefs.ErrConflict)
				}
			}
		}
		delete(f.volumes, name)
		return nil
	})
}

// Inventory lists the objects with the install's id.
func (f *Fake) Inventory(ctx context.Context, installID string) (runtime.Inventory, error) {
	return f.inventory(ctx, VerbInventory, func(id runtime.Identity) bool { return id.InstallID == installID })
}

// SandboxInventory is Inventory for one sandbox.
func (f *Fake) SandboxInventory(ctx context.Context, installID, sandboxID string) (runtime.Inventory, error) {
	return f.inventory(ctx, VerbSandboxInventory, func(id runtime.Identity) bool {
		return id.InstallID == installID && id.SandboxID == sandboxID
	})
}

func (f *Fake) inventory(ctx context.Context, verb Verb, match func(runtime.Identity) bool) (runtime.Inventory, error) {
	var inv runtime.Inventory
	err := f.do(ctx, verb, func() error {
		f.mu.Lock()
		defer f.mu.Unlock()
		for _, id := range sortedKeys(f.containers) {
			c := f.containers[id]
			if match(c.Identity) && !f.overlooked[c.ID] {
				state := c.State
				if f.late && state == runtime.StateExited && !c.inspected {
					state = runtime.StateRunning
				}
				inv.Containers = append(inv.Containers, runtime.Container{Identity: c.Identity, ID: c.ID, Name: c.Name, State: state, NetworkID: c.NetworkID, Limits: c.Limits, Detached: c.Detached, Health: c.Health, Ports: c.Ports})
			}
		}
		for _, id := range sortedKeys(f.networks) {
			if match(f.networks[id].Identity) {
				inv.Networks = append(inv.Networks, f.networks[id])
			}
		}
		for _, name := range sortedKeys(f.volumes) {
			if match(f.volumes[name].Identity) {
				inv.Volumes = append(inv.Volumes, f.volumes[name])
			}
		}
		return nil
	})
	return inv, err
}

// Events reports past and new events until the engine goes down. It has only events
// since the last start of the engine.
func (f *Fake) Events(ctx context.Context, installID string, since time.Time, ready func(), handle func(runtime.Event)) error {
	if err := f.begin(ctx, VerbEvents); err != nil {
		return err
	}
	f.mu.Lock()
	boot, next := f.boots, len(f.events)
	if !since.IsZero() {
		next = 0
	}
	f.mu.Unlock()
	ready()
	for {
		f.mu.Lock()
		var fresh []runtime.Event
		if f.boots == boot {
			fresh = f.events[next:]
			next += len(fresh)
		}
		broken, changed := f.boots != boot, f.changed
		f.mu.Unlock()
		if broken {
			return unavailable("the stream of events was lost")
		}
		for _, event := range fresh {
			if event.InstallID == installID && !event.Time.Before(since) {
				handle(event)
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ended(ctx)
		}
	}
}

// Close does nothing: the fake has no resources to release.
func (f *Fake) Close() error { return nil }
