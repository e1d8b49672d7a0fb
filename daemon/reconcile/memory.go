package reconcile

import (
	"context"

	"github.com/agbox/agbox/runtime"
)

// MemoryDefault is the limit of the memory of a container whose spec has none. The zero
// value means no limit. At most one field is set.
type MemoryDefault struct {
	// Percent of the memory of the engine's host, 1 to 100.
	Percent int
	// Bytes is a fixed limit.
	Bytes int64
}

// hostReserve is what a share leaves to the host, in bytes. The engine, the daemon and the
// system need less than that.
const hostReserve = 1 << 30

// Of returns the limit in bytes on a host with this much memory; 0 means none.
//
// Without a limit, a command that eats memory uses up that of the host. The kernel then
// kills some process of the host, which may be the engine's or the daemon's. With a limit
// below the host's memory it kills a process of the container. On a host with less than
// 2 GiB the reserve would leave too little to the sandbox, so the sandbox gets half.
func (d MemoryDefault) Of(host int64) int64 {
	if d.Bytes > 0 || d.Percent == 0 || host <= 0 {
		return d.Bytes
	}
	return min(host*int64(d.Percent)/100, max(host-hostReserve, host/2))
}

// limitMemory sets the limit of a container whose spec says nothing about memory. It bounds that
// of a derived one, too: the sandbox of the parent may have had no other bound.
func (l *Loop) limitMemory(ctx context.Context, c *runtime.ContainerSpec, asked string, derived bool) error {
	if asked != "" && (!derived || c.Limits.Memory == 0) {
		return nil
	}
	host, err := l.hostMemory(ctx)
	if err != nil {
		return err
	}
	if most := l.memoryDefault.Of(host); asked != "" {
		if most > 0 {
			c.Limits.Memory = min(c.Limits.Memory, most)
		}
		return nil
	}
	c.Limits.Memory = l.memoryDefault.Of(host)
	c.Limits.MemoryByDefault = c.Limits.Memory > 0
	return nil
}

// hostMemory returns the memory of the engine's host in bytes; 0 means unknown. It asks
// the engine if no look has succeeded yet.
func (l *Loop) hostMemory(ctx context.Context) (int64, error) {
	if l.memoryDefault.Percent == 0 {
		return 0, nil
	}
	info, err := l.engineInfo(ctx)
	return info.Memory, err
}

// engineInfo returns what the engine said about itself. It asks only if no look has
// succeeded yet.
func (l *Loop) engineInfo(ctx context.Context) (runtime.EngineInfo, error) {
	l.mu.Lock()
	info := l.health.Info
	l.mu.Unlock()
	if info.Version != "" {
		return info, nil
	}
	err := l.verb(ctx, verbTimeout, func(ctx context.Context) (err error) {
		info, err = l.engine.Info(ctx)
		return err
	})
	return info, err
}
