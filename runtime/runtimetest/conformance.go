package runtimetest

import (
	"context"
	"io"
	"testing"
	"time"

	"github.com/agbox/agbox/internal/ids"
	"github.com/agbox/agbox/runtime"
)

// Engine has the methods of every engine. The daemon declares the same interface for
// itself, in the packages that use it.
type Engine interface {
	Ping(ctx context.Context) error
	Info(ctx context.Context) (runtime.EngineInfo, error)
	Mark(ctx context.Context, installID, mark string) error
	Marked(ctx context.Context, installID, mark string) (bool, error)
	Unmark(ctx context.Context, installID string) error
	Abilities(ctx context.Context) (runtime.Abilities, error)
	EnsureImage(ctx context.Context, want runtime.ImageRequest, progress func(runtime.PullProgress)) (runtime.Image, error)
	EnsureNetwork(ctx context.Context, spec runtime.NetworkSpec) (runtime.Network, error)
	EnsureContainer(ctx context.Context, spec runtime.ContainerSpec) (id string, err error)
	StartContainer(ctx context.Context, id string) error
	StopContainer(ctx context.Context, id string, grace time.Duration) error
	WaitContainer(ctx context.Context, id string) (exitCode int, err error)
	RemoveContainer(ctx context.Context, id string) error
	RemoveNetwork(ctx context.Context, id string) error
	EnsureVolume(ctx context.Context, spec runtime.VolumeSpec) error
	RemoveVolume(ctx context.Context, name string) error
	ContainerLogs(ctx context.Context, id string, opts runtime.LogOptions, stdout, stderr io.Writer) error
	ExecIn(ctx context.Context, id string, command runtime.ContainerCommand, streams runtime.ContainerStreams) (exitCode int, err error)
	ReadFile(ctx context.Context, id, path string, limit int64) ([]byte, error)
	Archive(ctx context.Context, id, path string) (io.ReadCloser, error)
	ListImages(ctx context.Context) ([]runtime.ListedImage, error)
	RemoveImage(ctx context.Context, ref string) error
	BuildImage(ctx context.Context, opts runtime.BuildOptions, context io.Reader, output func(string) error) (id string, err error)
	ContainerUsage(ctx context.Context, id string) (runtime.Usage, error)
	Inventory(ctx context.Context, installID string) (runtime.Inventory, error)
	SandboxInventory(ctx context.Context, installID, sandboxID string) (runtime.Inventory, error)
	InspectContainer(ctx context.Context, id string) (runtime.Container, error)
	Events(ctx context.Context, installID string, since time.Time, ready func(), handle func(runtime.Event)) error
	Close() error
}

// Harness is one engine, prepared for one test.
type Harness struct {
	Engine Engine
	// InstallID is new for the test. The harness removes all objects with this id at the
	// end of the test.
	InstallID string
	// Image is a reference to an image that has the command sleep.
	Image string
	// Foreign creates a container that is not the daemon's. Its labels claim the identity;
	// it has no labels if the identity is zero.
	Foreign func(t *testing.T, name string, claimed runtime.Identity) (id string)
	// ForeignNetwork is Foreign for a network. It returns false if the engine itself
	// refuses a second network of that name.
	ForeignNetwork func(t *testing.T, name string, claimed runtime.Identity) (id string, made bool)
	// ClaimingImage creates an image whose labels claim the identity and which has the
	// command sleep. It returns the image's id.
	ClaimingImage func(t *testing.T, claimed runtime.Identity) (imageID string)
	// RemoveImage removes an image that a case built.
	RemoveImage func(t *testing.T, id string)
	// Kill kills a container's processes without the engine's help.
	Kill func(t *testing.T, id string)
}

// RunConformance runs the cases that every engine must pass. It calls newHarness once
// for each case.
func RunConformance(t *testing.T, newHarness func(t *testing.T) Harness) {
	groups := map[string]map[string]func(*testing.T, *subject){
		"Objects":  objectCases,
		"Identity": identityCases,
		"Life":     lifeCases,
		"Events":   eventCases,
		"Services": serviceCases,
		"Images":   imageCases,
		"Limits":   limitCases,
	}
	for _, group := range sortedKeys(groups) {
		t.Run(group, func(t *testing.T) {
			for _, name := range sortedKeys(groups[group]) {
				t.Run(name, func(t *testing.T) {
					groups[group][name](t, newSubject(newHarness(t)))
				})
			}
		})
	}
}

// subject is a harness with helper methods for the cases.
type subject struct {
	Harness
	sandboxID, nonce string
}

func newSubject(h Harness) *subject {
	return &subject{Harness: h, sandboxID: ids.New(), nonce: ids.New()}
}

func (s *subject) identity(role runtime.Role) runtime.Identity {
	return runtime.Identity{InstallID: s.InstallID, SandboxID: s.sandboxID, Nonce: s.nonce, Role: role}
}

func (s *subject) networkSpec() runtime.NetworkSpec {
	return runtime.NetworkSpec{Identity: s.identity(runtime.RoleNetwork), Name: runtime.NetworkName(s.sandboxID)}
}

// sleeper returns the spec of a primary that runs until it is stopped.
func (s *subject) sleeper(imageID, networkID string) runtime.ContainerSpec {
	return runtime.ContainerSpec{
		Identity:   s.identity(runtime.RolePrimary),
		Name:       runtime.PrimaryName(s.sandboxID),
		Hostname:   "sleeper",
		ImageID:    imageID,
		Entrypoint: []string{"sleep"},
		Cmd:        []string{"1000000"},
		NetworkID:  networkID,
	}
}

func (s *subject) image(t *testing.T) runtime.Image {
	t.Helper()
	image, err := s.Engine.EnsureImage(t.Context(), runtime.ImageRequest{Ref: s.Image}, nil)
	must(t, err)
	return image
}

func (s *subject) network(t *testing.T) runtime.Network {
	t.Helper()
	network, err := s.Engine.EnsureNetwork(t.Context(), s.networkSpec())
	must(t, err)
	return network
}

// created creates a network and a sleeper in it.
func (s *subject) created(t *testing.T) (id string, spec runtime.ContainerSpec) {
	t.Helper()
	spec = s.sleeper(s.image(t).ID, s.network(t).ID)
	return s.ensure(t, spec), spec
}

func (s *subject) started(t *testing.T) (id string) {
	t.Helper()
	id, _ = s.created(t)
	must(t, s.Engine.StartContainer(t.Context(), id))
	return id
}

func (s *subject) ensure(t *testing.T, spec runtime.ContainerSpec) (id string) {
	t.Helper()
	id, err := s.Engine.EnsureContainer(t.Context(), spec)
	must(t, err)
	return id
}

func (s *subject) inspect(t *testing.T, id string) runtime.Container {
	t.Helper()
	seen, err := s.Engine.InspectContainer(t.Context(), id)
	must(t, err)
	return seen
}

func (s *subject) inventory(t *testing.T) runtime.Inventory {
	t.Helper()
	inv, err := s.Engine.Inventory(t.Context(), s.InstallID)
	must(t, err)
	return inv
}

// wantOnly requires that an inventory has exactly the given ids.
func wantOnly(t *testing.T, inv runtime.Inventory, containers, networks []string) {
	t.Helper()
	var gotContainers, gotNetworks []string
	for _, c := range inv.Containers {
		gotContainers = append(gotContainers, c.ID)
	}
	for _, n := range inv.Networks {
		gotNetworks = append(gotNetworks, n.ID)
	}
	wantSame(t, "containers", gotContainers, containers)
	wantSame(t, "networks", gotNetworks, networks)
}
