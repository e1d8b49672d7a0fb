package docker

import (
	"context"
	"errors"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/network"
	"github.com/docker/docker/api/types/volume"
	"github.com/docker/docker/client"
	"golang.org/x/sync/errgroup"

	"github.com/agbox/agbox/internal/fault"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/runtime"
)

// Inventory lists the containers, running or not, networks and volumes that carry
// the install's labels. Others can spoof labels, so compare the nonce.
func (e *Engine) Inventory(ctx context.Context, installID string) (runtime.Inventory, error) {
	return e.SandboxInventory(ctx, installID, "")
}

// SandboxInventory is Inventory for one sandbox.
func (e *Engine) SandboxInventory(ctx context.Context, installID, sandboxID string) (runtime.Inventory, error) {
	var inv runtime.Inventory
	filter := ownFilter(installID, sandboxID)
	err := e.call(ctx, "list its containers and networks", func(cli *client.Client) error {
		lists, ctx := errgroup.WithContext(ctx)
		var containers []container.Summary
		lists.Go(func() (err error) {
			containers, err = cli.ContainerList(ctx, container.ListOptions{All: true, Filters: filter})
			return err
		})
		var networks []network.Summary
		lists.Go(func() (err error) {
			networks, err = cli.NetworkList(ctx, network.ListOptions{Filters: filter})
			return err
		})
		var volumes volume.ListResponse
		lists.Go(func() (err error) {
			volumes, err = cli.VolumeList(ctx, volume.ListOptions{Filters: filter})
			return err
		})
		if err := lists.Wait(); err != nil {
			return err
		}
		inv = runtime.Inventory{Containers: listedContainers(containers), Networks: listedNetworks(networks), Volumes: listedVolumes(volumes.Volumes)}
		return nil
	})
	return inv, err
}

func listedContainers(list []container.Summary) []runtime.Container {
	containers := make([]runtime.Container, 0, len(list))
	for _, c := range list {
		id, ok := decodeLabels(c.Labels)
		if !ok {
			continue
		}
		containers = append(containers, runtime.Container{
			Identity: id, ID: c.ID, Name: ownName(c.Names), State: runtime.ContainerState(c.State),
			NetworkID: c.HostConfig.NetworkMode,
			Limits:    decodeLimits(c.Labels),
			Health:    listedHealth(c.Status),
			Ports:     listedPorts(c.Ports),
			Detached:  c.NetworkSettings != nil && len(c.NetworkSettings.Networks) == 0,
		})
	}
	return containers
}

// listedHealth extracts the result of the healthcheck from a status such as "Up 3
// seconds (healthy)". A list of containers has it nowhere else.
func listedHealth(status string) string {
	switch {
	case strings.HasSuffix(status, "(healthy)"):
		return runtime.Healthy
	case strings.HasSuffix(status, "(unhealthy)"):
		return runtime.Unhealthy
	case strings.HasSuffix(status, "(health: starting)"):
		return runtime.HealthStarting
	}
	return ""
}

func listedVolumes(list []*volume.Volume) []runtime.Volume {
	volumes := make([]runtime.Volume, 0, len(list))
	for _, v := range list {
		if id, ok := decodeLabels(v.Labels); ok {
			volumes = append(volumes, runtime.Volume{Identity: id, Name: v.Name})
		}
	}
	return volumes
}

func listedNetworks(list []network.Summary) []runtime.Network {
	networks := make([]runtime.Network, 0, len(list))
	for _, n := range list {
		if id, ok := decodeLabels(n.Labels); ok {
			networks = append(networks, runtime.Network{Identity: id, ID: n.ID, Name: n.Name, Interface: bridgeName(n)})
		}
	}
	return networks
}

// ownName returns the container's own name. The other names are links such as
// "/other/alias".
func ownName(names []string) string {
	for _, name := range names {
		if name = strings.TrimPrefix(name, "/"); !strings.Contains(name, "/") {
			return name
		}
	}
	return ""
}

// EnsureVolume creates the volume, or finds the one that it created before, with the
// same name and identity. It fails with the fault NAME_TAKEN_IN_ENGINE if a foreign
// volume has the name.
func (e *Engine) EnsureVolume(ctx context.Context, spec runtime.VolumeSpec) error {
	return e.call(ctx, "create the volume", func(cli *client.Client) error {
		made, err := cli.VolumeCreate(ctx, volume.CreateOptions{Name: spec.Name, Labels: encodeLabels(spec.Identity)})
		if err != nil {
			return err
		}
		// If a volume of that name exists, the engine returns it, whoever created it.
		if id, ok := decodeLabels(made.Labels); !ok || id != spec.Identity {
			return fault.New(errdefs.ErrAlreadyExists, agboxv1.ErrorReason_NAME_TAKEN_IN_ENGINE,
				"Docker has a volume %q that is not this sandbox's: remove it ('docker volume rm %s'), or choose another sandbox id.", spec.Name, spec.Name)
		}
		return nil
	})
}

// RemoveVolume removes a volume and its content. It succeeds if the volume does not
// exist, and fails with errdefs.ErrConflict if a container still uses it.
func (e *Engine) RemoveVolume(ctx context.Context, name string) error {
	err := e.call(ctx, "remove the volume", func(cli *client.Client) error {
		return cli.VolumeRemove(ctx, name, true)
	})
	switch {
	case errdefs.IsNotFound(err):
		return nil
	case errdefs.IsConflict(err):
		return fault.New(errdefs.ErrConflict, agboxv1.ErrorReason_ENGINE_FAILED,
			"Docker could not remove the volume %s, because a container that does not belong to the sandbox uses it: find that container with 'docker ps -a --filter volume=%s' and remove it; agbox then continues.",
			name, name).Because(err)
	}
	return err
}

// labelMark has the install id of a mark. A mark has none of the other labels, so it is in
// no inventory, and a daemon that does not know marks leaves it alone.
const labelMark = "agbox.engine-of"

// markName returns the name of the volume that is the mark. It stays empty.
func markName(mark string) string { return "agbox-engine-" + mark }

// Mark makes the mark of an install in the engine, or finds it. The mark is random.
func (e *Engine) Mark(ctx context.Context, installID, mark string) error {
	return e.call(ctx, "create a volume", func(cli *client.Client) error {
		_, err := cli.VolumeCreate(ctx, volume.CreateOptions{Name: markName(mark), Labels: map[string]string{labelMark: installID}})
		return err
	})
}

// Marked reports whether the engine has the mark.
func (e *Engine) Marked(ctx context.Context, installID, mark string) (bool, error) {
	var marked bool
	err := e.call(ctx, "look at a volume", func(cli *client.Client) error {
		found, err := cli.VolumeInspect(ctx, markName(mark))
		marked = err == nil && found.Labels[labelMark] == installID
		return err
	})
	if errdefs.IsNotFound(err) {
		return false, nil
	}
	return marked, err
}

// Unmark removes all marks of an install.
func (e *Engine) Unmark(ctx context.Context, installID string) error {
	var found volume.ListResponse
	err := e.call(ctx, "list its volumes", func(cli *client.Client) (err error) {
		found, err = cli.VolumeList(ctx, volume.ListOptions{Filters: filters.NewArgs(filters.Arg("label", labelMark+"="+installID))})
		return err
	})
	for _, v := range found.Volumes {
		err = errors.Join(err, e.RemoveVolume(ctx, v.Name))
	}
	return err
}
