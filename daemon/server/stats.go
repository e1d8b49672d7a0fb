package server

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/runtime"
)

const (
	// statsEvery is the time between two samples, statsFirst that between the first two.
	// Processor usage needs two samples.
	statsEvery, statsFirst = time.Second, 500 * time.Millisecond
	// statsWithin bounds one sample of all containers.
	statsWithin = 30 * time.Second
	// statsAtOnce bounds the concurrent queries to the engine, statsAnswer the time of
	// each.
	statsAtOnce, statsAnswer = 16, 5 * time.Second
)

// statsCalls implements the calls about resource usage.
type statsCalls struct {
	ledger    *ledger.Ledger
	engine    Engine
	installID string
	log       *slog.Logger
	life      *lifetime
}

// WatchStats streams the resource usage of containers. Each sample lists the containers
// anew, so no state is kept for those that are removed.
func (s *statsCalls) WatchStats(req *agboxv1.WatchStatsRequest, stream grpc.ServerStreamingServer[agboxv1.WatchStatsResponse]) error {
	ctx, done := s.life.context(stream.Context())
	defer done()
	wanted := req.GetSandboxIds() // none means all
	for _, id := range wanted {
		if _, err := s.ledger.FindSandbox(ctx, id); err != nil {
			return err
		}
	}
	m := &meter{calls: s, before: make(map[string]runtime.Usage)}
	if _, err := m.round(ctx, wanted); err != nil {
		return orStopped(ctx, err)
	}
	pause := statsFirst
	for {
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return orStopped(ctx, ctx.Err())
		}
		begun := time.Now()
		resp, err := m.round(ctx, wanted)
		if err != nil {
			return orStopped(ctx, err)
		}
		if err := stream.Send(resp); err != nil || req.GetOnce() || m.over(wanted) {
			return err
		}
		pause = max(statsEvery-time.Since(begun), statsEvery/4)
	}
}

// meter samples the usage of containers.
type meter struct {
	calls *statsCalls
	// before has the previous samples by container id.
	before map[string]runtime.Usage
}

// over reports whether none of the requested sandboxes exists any more.
func (m *meter) over(wanted []string) bool {
	return len(wanted) > 0 && !slices.ContainsFunc(wanted, func(id string) bool {
		_, living := m.calls.ledger.Sandbox(id)
		return living
	})
}

// measured is a container with its usage.
type measured struct {
	sandbox   ledger.Sandbox
	container runtime.Container
	usage     runtime.Usage
	err       error
}

func (m *meter) round(ctx context.Context, wanted []string) (*agboxv1.WatchStatsResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, statsWithin)
	defer cancel()
	inv, err := m.calls.engine.Inventory(ctx, m.calls.installID)
	if err != nil {
		return nil, err
	}
	var all []*measured
	for _, c := range inv.Containers {
		sb, living := m.calls.ledger.Sandbox(c.SandboxID)
		if living && sb.Pool == "" && c.Nonce == sb.Nonce && c.State == runtime.StateRunning && (len(wanted) == 0 || slices.Contains(wanted, sb.ID)) {
			all = append(all, &measured{sandbox: sb, container: c})
		}
	}
	m.measure(ctx, all)
	resp, now := new(agboxv1.WatchStatsResponse), make(map[string]runtime.Usage, len(all))
	var failed error
	for _, one := range all {
		switch {
		case errdefs.IsNotFound(one.err), one.err == nil && one.usage.At.IsZero():
			continue // it ended in between
		case one.err != nil:
			failed = one.err
			m.calls.log.Debug("a container could not be measured", "sandbox_id", one.sandbox.ID, "container_id", one.container.ID, "error", one.err)
			continue
		}
		now[one.container.ID] = one.usage
		resp.Containers = append(resp.Containers, stats(one, m.before[one.container.ID]))
	}
	if failed != nil && len(now) == 0 {
		return nil, failed // if only some fail, they are left out of this sample
	}
	m.before = now
	slices.SortFunc(resp.Containers, byContainer)
	return resp, nil
}

// measure queries all containers, some concurrently.
func (m *meter) measure(ctx context.Context, all []*measured) {
	var queries errgroup.Group
	queries.SetLimit(statsAtOnce)
	for _, one := range all {
		queries.Go(func() error {
			one.usage, one.err = m.ask(ctx, one.container.ID)
			return nil
		})
	}
	_ = queries.Wait() // each has its own error
}

// ask measures one container. One that does not answer must not block the others.
func (m *meter) ask(ctx context.Context, containerID string) (runtime.Usage, error) {
	ctx, cancel := context.WithTimeout(ctx, statsAnswer)
	defer cancel()
	return m.calls.engine.ContainerUsage(ctx, containerID)
}

func stats(one *measured, before runtime.Usage) *agboxv1.ContainerStats {
	u := one.usage
	out := &agboxv1.ContainerStats{
		SandboxId: one.sandbox.ID, SandboxName: one.sandbox.Name, Role: string(one.container.Role), Service: one.container.Service,
		ContainerId: one.container.ID, At: timestamppb.New(u.At), CpuNanos: uint64(u.CPU),
		MemoryBytes: u.Memory, MemoryLimitBytes: u.MemoryLimit, NetReceivedBytes: u.NetReceived, NetSentBytes: u.NetSent,
		BlockReadBytes: u.BlockRead, BlockWrittenBytes: u.BlockWrite, Pids: u.PIDs, PidsLimit: u.PIDsLimit,
	}
	if passed := u.At.Sub(before.At); !before.At.IsZero() && passed > 0 && u.CPU >= before.CPU {
		out.CpuPercent = 100 * float64(u.CPU-before.CPU) / float64(passed)
	}
	return out
}

// byContainer sorts by sandbox, with the primary first.
func byContainer(a, b *agboxv1.ContainerStats) int {
	key := func(c *agboxv1.ContainerStats) []string {
		return []string{c.GetSandboxName(), c.GetSandboxId(), c.GetService()}
	}
	return slices.Compare(key(a), key(b))
}
