package docker

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"math"
	"strings"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/versions"
	"github.com/docker/docker/client"

	"github.com/agbox/agbox/runtime"
)

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
		At: s.Read, CPU: time.Duration(s.CPUStats.CPUUsage.TotalUsage), OnlineCPUs: s.CPUStats.OnlineCPUs,
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
