package docker

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/api/types/mount"
	"github.com/docker/docker/api/types/versions"
	"github.com/docker/docker/client"

	"github.com/agbox/agbox/runtime"
)

// DescribeContainer says what a container was created from. It fails with
// errdefs.ErrNotFound if the container does not exist. Of an image that has been
// removed, only the id is known.
func (e *Engine) DescribeContainer(ctx context.Context, id string) (runtime.Description, error) {
	var d runtime.Description
	err := e.call(ctx, "inspect the container", func(cli *client.Client) error {
		reply, err := cli.ContainerInspect(ctx, id)
		if err != nil {
			return err
		}
		d = described(reply)
		made, err := cli.ImageInspect(ctx, d.ImageID)
		if err == nil {
			describeImage(&d, made)
			return nil
		}
		if errdefs.IsNotFound(e.classify("inspect the image", err)) {
			return nil
		}
		return err
	})
	return d, err
}

func described(reply container.InspectResponse) runtime.Description {
	d := runtime.Description{ContainerSpec: runtime.ContainerSpec{
		Name: strings.TrimPrefix(reply.Name, "/"), ImageID: reply.Image,
	}}
	d.ImageName, d.Image.ID = reply.Image, reply.Image
	if c := reply.Config; c != nil {
		d.Identity, _ = decodeLabels(c.Labels)
		d.Hostname, d.User, d.WorkingDir = c.Hostname, c.User, c.WorkingDir
		d.Entrypoint, d.Cmd, d.Env = c.Entrypoint, c.Cmd, c.Env
		if c.StopTimeout != nil {
			d.StopTimeout = time.Duration(*c.StopTimeout) * time.Second
		}
	}
	if c := reply.Config; c != nil && c.Healthcheck != nil {
		d.Healthcheck = &runtime.Healthcheck{
			Test: c.Healthcheck.Test, Interval: c.Healthcheck.Interval, Timeout: c.Healthcheck.Timeout,
			StartPeriod: c.Healthcheck.StartPeriod, StartInterval: c.Healthcheck.StartInterval, Retries: c.Healthcheck.Retries,
		}
	}
	if reply.HostConfig != nil {
		for _, p := range publishedPorts(nil, reply.HostConfig.PortBindings) {
			d.Ports = append(d.Ports, runtime.Port{Container: p.Container, Protocol: p.Protocol, HostIP: p.HostIP, Host: p.Host})
		}
	}
	for _, m := range reply.Mounts {
		if m.Type == mount.TypeVolume {
			d.Volumes = append(d.Volumes, runtime.VolumeMount{Volume: m.Name, Target: m.Destination, ReadOnly: !m.RW})
			continue
		}
		d.Mounts = append(d.Mounts, runtime.Mount{Source: m.Source, Target: m.Destination, ReadOnly: !m.RW})
	}
	return d
}

// describeImage adds the image to d. It removes from d the environment and the
// healthcheck that come from the image.
func describeImage(d *runtime.Description, made image.InspectResponse) {
	if len(made.RepoTags) > 0 {
		d.ImageName = made.RepoTags[0]
	} else if len(made.RepoDigests) > 0 {
		d.ImageName = made.RepoDigests[0]
	}
	c := made.Config
	if c == nil {
		return
	}
	d.Image.Entrypoint, d.Image.Cmd, d.Image.Env = c.Entrypoint, c.Cmd, c.Env
	d.Image.User, d.Image.WorkingDir = c.User, c.WorkingDir
	if h := c.Healthcheck; h != nil && d.Healthcheck != nil && slices.Equal(h.Test, d.Healthcheck.Test) {
		d.Healthcheck = nil
	}
	d.Env = slices.DeleteFunc(d.Env, func(entry string) bool { return slices.Contains(c.Env, entry) })
}

// OtherInstalls counts the containers that carry the labels of other installs.
func (e *Engine) OtherInstalls(ctx context.Context, installID string) (int, error) {
	count := 0
	err := e.call(ctx, "list its containers", func(cli *client.Client) error {
		all, err := cli.ContainerList(ctx, container.ListOptions{
			All: true, Filters: filters.NewArgs(filters.Arg("label", labelInstall)),
		})
		if err != nil {
			return err
		}
		count = 0
		for _, c := range listedContainers(all) {
			if c.InstallID != installID {
				count++
			}
		}
		return nil
	})
	return count, err
}

// oneShotSince is the first API version with one-shot statistics. Older engines
// measure for 1 to 2 seconds before they answer.
const oneShotSince = "1.41"

// ContainerUsage returns the resource usage of a container, the zero one if it does not run
// or ends meanwhile. It fails with
// errdefs.ErrNotFound if the container does not exist.
func (e *Engine) ContainerUsage(ctx context.Context, id string) (runtime.Usage, error) {
	var used runtime.Usage
	err := e.call(ctx, "measure the container", func(cli *client.Client) error {
		ask := cli.ContainerStatsOneShot
		if versions.LessThan(cli.ClientVersion(), oneShotSince) {
			ask = func(ctx context.Context, id string) (container.StatsResponseReader, error) {
				return cli.ContainerStats(ctx, id, false)
			}
		}
		reply, err := ask(ctx, id)
		if err != nil {
			return err
		}
		defer func() { _ = reply.Body.Close() }()
		var s container.StatsResponse
		switch err := json.NewDecoder(reply.Body).Decode(&s); {
		case errors.Is(err, io.EOF):
			return nil // it ended before the engine had measured it
		case err != nil:
			return err
		}
		used = usage(s)
		return nil
	})
	return used, err
}

func usage(s container.StatsResponse) runtime.Usage {
	if s.Read.Year() <= 1 {
		return runtime.Usage{} // the container does not run
	}
	u := runtime.Usage{
		At: s.Read, CPU: time.Duration(s.CPUStats.CPUUsage.TotalUsage),
		Memory: s.MemoryStats.Usage, MemoryLimit: s.MemoryStats.Limit,
		PIDs: s.PidsStats.Current, PIDsLimit: s.PidsStats.Limit,
	}
	if u.PIDsLimit == math.MaxUint64 {
		u.PIDsLimit = 0
	}
	// Subtract the inactive page cache. On cgroup v1 the sum over the whole tree has
	// another name.
	inactive, ok := s.MemoryStats.Stats["total_inactive_file"]
	if !ok {
		inactive = s.MemoryStats.Stats["inactive_file"]
	}
	if inactive < u.Memory {
		u.Memory -= inactive
	}
	for _, n := range s.Networks {
		u.NetReceived += n.RxBytes
		u.NetSent += n.TxBytes
	}
	for _, b := range s.BlkioStats.IoServiceBytesRecursive {
		switch strings.ToLower(b.Op) {
		case "read":
			u.BlockRead += b.Value
		case "write":
			u.BlockWrite += b.Value
		}
	}
	return u
}
