package supervisor

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// kernel simulates the count of a container with 800 bytes of memory.
type kernel struct {
	t    *testing.T
	file string
	oomJudge
}

func newKernel(t *testing.T) *kernel {
	k := &kernel{t: t, file: filepath.Join(t.TempDir(), "memory.events")}
	k.kills(3) // before anything ran
	k.counter = openOOMCounter([]string{k.file})
	k.limit = func() uint64 { return 800 }
	t.Cleanup(func() { _ = k.counter.f.Close() })
	return k
}

func (k *kernel) kills(n int) {
	k.t.Helper()
	if err := os.WriteFile(k.file, fmt.Appendf(nil, "oom 9\noom_kill %d\n", n), 0o600); err != nil {
		k.t.Fatal(err)
	}
}

func (k *kernel) want(who string, got, want bool) {
	k.t.Helper()
	if got != want {
		k.t.Errorf("%s lost a process: %v", who, got)
	}
}

func TestAKillWithoutWantOfMemoryIsNoOOM(t *testing.T) {
	k := newKernel(t)
	a := k.begin()
	k.want("somebody with kill -9", k.end(a, true, 700), false)
}

func TestTheExecWhoseProcessWasSeenKilledIsBlamed(t *testing.T) {
	k := newKernel(t)
	a, b := k.begin(), k.begin()
	k.kills(4)
	k.want("the killed one", k.end(a, true, 10), true)
	k.want("the other one", k.end(b, false, 700), false)
	c := k.begin()
	k.want("a later one", k.end(c, false, 700), false)
}

func TestTwoExecsKilledAtOnceAreBothBlamed(t *testing.T) {
	k := newKernel(t)
	a, b := k.begin(), k.begin()
	k.kills(5)
	k.want("the first", k.end(a, true, 10), true)
	k.want("the second", k.end(b, true, 10), true)
}

func TestAParentThatGoesOnIsBlamedWhenItRunsAlone(t *testing.T) {
	k := newKernel(t)
	a := k.begin()
	k.kills(4)
	k.want("the only one", k.end(a, false, 1), true)
}

func TestOfSeveralTheOneThatHeldMuchIsBlamed(t *testing.T) {
	k := newKernel(t)
	a, b, c := k.begin(), k.begin(), k.begin()
	k.kills(4)
	k.want("the small one", k.end(a, false, 99), false)
	k.want("the big one", k.end(b, false, 100), true)
	k.want("the last one", k.end(c, false, 1), false)
}
