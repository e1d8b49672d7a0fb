package supervisor

import (
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestMemoryIsReturnedOnceTheSupervisorIsQuiet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var allocated, looks, returned atomic.Int64
		k := newMemoryKeeper()
		k.allocated = func() uint64 { looks.Add(1); return uint64(allocated.Load()) }
		k.giveBack = func() { returned.Add(1) }
		stopping := make(chan struct{})
		var keeper sync.WaitGroup
		keeper.Go(func() { k.run(stopping) })
		synctest.Wait()
		for _, step := range []struct {
			what      string
			kilobytes int64
			want      int64
		}{
			{"after little work", 100, 0},
			{"while it works", 5000, 0},
			{"while it works on", 5000, 0},
			{"when it is quiet", 100, 1},
			{"after little more", 60, 1},
			{"when enough has come together", 80, 2},
		} {
			allocated.Add(step.kilobytes << 10)
			k.work()
			time.Sleep(memoryPause)
			synctest.Wait()
			if got := returned.Load(); got != step.want {
				t.Errorf("%s: memory was returned %d times, want %d", step.what, got, step.want)
			}
		}
		time.Sleep(2 * memoryPause) // for the work that was told while it slept
		before := looks.Load()
		time.Sleep(time.Hour)
		if n := looks.Load() - before; n > 0 {
			t.Errorf("it looked %d times without any work", n)
		}
		close(stopping)
		keeper.Wait()
	})
}

func TestMemoryOfABurstIsReturnedWithoutFurtherWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var allocated, returned atomic.Int64
		k := newMemoryKeeper()
		k.allocated = func() uint64 { return uint64(allocated.Load()) }
		k.giveBack = func() { returned.Add(1) }
		stopping := make(chan struct{})
		var keeper sync.WaitGroup
		keeper.Go(func() { k.run(stopping) })
		synctest.Wait()
		allocated.Add(50 << 20)
		k.work()
		time.Sleep(time.Hour)
		if got := returned.Load(); got != 1 {
			t.Errorf("memory was returned %d times, want once", got)
		}
		close(stopping)
		keeper.Wait()
	})
}
