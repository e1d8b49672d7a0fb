package docker

import (
	"testing"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/network"
	"github.com/docker/docker/client"

	"github.com/agbox/agbox/internal/ids"
	"github.com/agbox/agbox/runtime"
)

// BenchmarkCreate compares network, create and start through the adapter with the
// same three calls through the client library.
func BenchmarkCreate(b *testing.B) {
	e, err := New(Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = e.Close() }()
	cli, err := client.NewClientWithOpts(client.FromEnv, client.WithAPIVersionNegotiation())
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = cli.Close() }()
	image, err := e.EnsureImage(b.Context(), runtime.ImageRequest{Ref: testImage}, nil)
	if err != nil {
		b.Fatal(err)
	}
	for name, create := range map[string]func(*testing.B, string) (string, string){
		"adapter": func(b *testing.B, sandboxID string) (string, string) {
			return createByAdapter(b, e, image.ID, sandboxID)
		},
		"by hand": func(b *testing.B, sandboxID string) (string, string) { return createByHand(b, cli, sandboxID) },
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				containerID, networkID := create(b, ids.New())
				b.StopTimer()
				if err := e.RemoveContainer(b.Context(), containerID); err != nil {
					b.Fatal(err)
				}
				if err := e.RemoveNetwork(b.Context(), networkID); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
			}
		})
	}
}

func createByAdapter(b *testing.B, e *Engine, imageID, sandboxID string) (containerID, networkID string) {
	identity := runtime.Identity{InstallID: "bench", SandboxID: sandboxID, Nonce: "bench", Role: runtime.RoleNetwork}
	net, err := e.EnsureNetwork(b.Context(), runtime.NetworkSpec{Identity: identity, Name: runtime.NetworkName(sandboxID)})
	if err != nil {
		b.Fatal(err)
	}
	identity.Role = runtime.RolePrimary
	containerID, err = e.EnsureContainer(b.Context(), runtime.ContainerSpec{
		Identity: identity, Name: runtime.PrimaryName(sandboxID), ImageID: imageID,
		Entrypoint: []string{"sleep"}, Cmd: []string{"1000000"}, NetworkID: net.ID,
	})
	if err != nil {
		b.Fatal(err)
	}
	if err := e.StartContainer(b.Context(), containerID); err != nil {
		b.Fatal(err)
	}
	return containerID, net.ID
}

func createByHand(b *testing.B, cli *client.Client, sandboxID string) (containerID, networkID string) {
	net, err := cli.NetworkCreate(b.Context(), "bench-"+sandboxID, network.CreateOptions{Driver: "bridge"})
	if err != nil {
		b.Fatal(err)
	}
	made, err := cli.ContainerCreate(b.Context(),
		&container.Config{Image: testImage, Entrypoint: []string{"sleep"}, Cmd: []string{"1000000"}},
		&container.HostConfig{NetworkMode: container.NetworkMode(net.ID)}, nil, nil, "bench-"+sandboxID)
	if err != nil {
		b.Fatal(err)
	}
	if err := cli.ContainerStart(b.Context(), made.ID, container.StartOptions{}); err != nil {
		b.Fatal(err)
	}
	return made.ID, net.ID
}
