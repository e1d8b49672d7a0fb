package server

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/runtime"
)

const (
	// statsEvery is the time from one round to the next, statsFirst that between the
	// first two: it takes two to know how busy a processor is.
	statsEvery, statsFirst = time.Second, 500 * time.Millisecond
	// statsWithin bounds one round.
	statsWithin = 30 * time.Second
	// statsAtOnce bounds the questions to the engine at a time, statsAnswer each of them.
	statsAtOnce, statsAnswer = 16, 5 * time.Second
)

// statsCalls answers the calls about what containers use.
type statsCalls struct {
	ledger    *ledger.Ledger
	engine    Engine
	installID string
	log       *slog.Logger
	life      *lifetime
}

// WatchStats tells what containers use. Each round asks for the containers anew,
// so that nothing is held for those that come and go.
func (s *statsCalls) WatchStats(req *agboxv1.WatchStatsRequest, stream grpc.ServerStreamingServer[agboxv1.WatchStatsResponse]) error {
	ctx, done := s.life.context(stream.Context())
	defer done()
	wanted, err := s.statsOf(ctx, req.GetSandboxIds())
	if err != nil {
		return err
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

// statsOf finds the sandboxes that are meant; nil are all.
func (s *statsCalls) statsOf(ctx context.Context, refs []string) ([]string, error) {
	var found []string
	for _, ref := range refs {
		sb, err := s.ledger.FindSandbox(ctx, ref)
		if err != nil {
			return nil, err
		}
		found = append(found, sb.ID)
	}
	return found, nil
}

// meter measures containers round by round.
type meter struct {
	calls *statsCalls
	// before has what was measured last, by the container's id.
	before map[string]runtime.Usage
}

// over tells that none of the sandboxes that were named is left.
func (m *meter) over(wanted []string) bool {
	return len(wanted) > 0 && !slices.ContainsFunc(wanted, func(id string) bool {
		_, living := m.calls.ledger.Sandbox(id)
		return living
	})
}

// measured is a container of ours with its usage.
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
		if living && c.Nonce == sb.Nonce && c.State == runtime.StateRunning && (len(wanted) == 0 || slices.Contains(wanted, sb.ID)) {
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
		return nil, failed // of one among others there are no figures this time
	}
	m.before = now
	slices.SortFunc(resp.Containers, byContainer)
	return resp, nil
}

// measure asks for all, some at a time.
func (m *meter) measure(ctx context.Context, all []*measured) {
	next := make(chan *measured)
	var workers sync.WaitGroup
	for range min(statsAtOnce, len(all)) {
		workers.Go(func() {
			for one := range next {
				one.usage, one.err = m.ask(ctx, one.container.ID)
			}
		})
	}
	for _, one := range all {
		next <- one
	}
	close(next)
	workers.Wait()
}

// ask measures one container. One that hangs must not keep the figures of the others.
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

// byContainer puts the containers of a sandbox together, its primary first.
func byContainer(a, b *agboxv1.ContainerStats) int {
	key := func(c *agboxv1.ContainerStats) []string {
		return []string{c.GetSandboxName(), c.GetSandboxId(), c.GetService()}
	}
	return slices.Compare(key(a), key(b))
}
