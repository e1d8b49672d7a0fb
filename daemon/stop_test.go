package daemon

import (
	"context"
	"runtime/metrics"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestMemoryIsReturnedOnceTheDaemonIsQuiet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var allocated, returned atomic.Int64
		k := memoryKeeper{
			allocated: func() uint64 { return uint64(allocated.Load()) },
			giveBack:  func() { returned.Add(1) },
		}
		ctx, cancel := context.WithCancel(t.Context())
		var keeper sync.WaitGroup
		keeper.Go(func() { k.run(ctx) })
		synctest.Wait()
		for _, step := range []struct {
			what      string
			megabytes int64
			want      int64
		}{
			{"while it starts", 30, 0},
			{"when it has started", 0, 1},
			{"while it is idle", 1, 1},
			{"while it works", 50, 1},
			{"while it works on", 50, 1},
			{"when it is quiet", 1, 2},
			{"when it was idle for a while", 7, 2},
			{"when it was idle for long", 7, 2},
			{"when much has come together", 7, 3},
		} {
			allocated.Add(step.megabytes << 20)
			time.Sleep(memoryPause)
			synctest.Wait()
			if got := returned.Load(); got != step.want {
				t.Errorf("%s: memory was returned %d times, want %d", step.what, got, step.want)
			}
		}
		cancel()
		keeper.Wait()
	})
}

func TestNothingOfABurstIsLeftOnceItsMemoryIsReturned(t *testing.T) {
	const burst = 64 << 20
	before := heapAllocated()
	pool := sync.Pool{New: func() any { return new([burst / 2]byte) }}
	pool.Put(pool.Get())
	clear(make([]byte, burst/2))
	if n := heapAllocated() - before; n < burst {
		t.Fatalf("the burst allocated %d bytes", n)
	}
	returnHeap()
	left := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}, {Name: "/memory/classes/heap/free:bytes"}}
	metrics.Read(left)
	for _, s := range left {
		if n := s.Value.Uint64(); n > burst/4 {
			t.Errorf("%s is %d", s.Name, n)
		}
	}
	pool.Put(nil) // the pool itself is in use until here
}
