package supervisor

import (
	"bufio"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agbox/agbox/agents/journal"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"
	"github.com/agbox/agbox/runtime/supervisor/probes"
)

// TestThePhasesOfADrain has the figures of the requirements: SIGTERM after 5 s, calls are
// aborted after 50 s, SIGKILL after 65 s.
func TestThePhasesOfADrain(t *testing.T) {
	for _, row := range []struct {
		lifecycle         string
		reports           bool
		term, abort, kill time.Duration
	}{
		{journal.Executing, true, 5 * time.Second, 50 * time.Second, 65 * time.Second},
		{journal.Ready, true, 5 * time.Second, 50 * time.Second, 65 * time.Second},
		{journal.Draining, false, 5 * time.Second, 50 * time.Second, 65 * time.Second},
		{journal.Hydrating, false, 5 * time.Second, 5 * time.Second, 20 * time.Second},
		{journal.Booting, true, 5 * time.Second, 5 * time.Second, 20 * time.Second},
		{journal.Booting, false, 5 * time.Second, 50 * time.Second, 65 * time.Second}, // it may never report
	} {
		synctest.Test(t, func(t *testing.T) {
			now := time.Now()
			p := planDrain(&guestv1.DrainRequest{PreStopMs: 5_000, StepMs: 45_000, CleanupMs: 10_000, BufferMs: 5_000, Reports: row.reports}, row.lifecycle, now)
			if abort := p.abort.Sub(now); abort != row.abort {
				t.Errorf("%s: calls are aborted after %v; want %v", row.lifecycle, abort, row.abort)
			}
			terms := 0
			p.follow(nil, nil, func(grace time.Duration) {
				terms++
				if at := time.Since(now); at != row.term || at+grace != row.kill {
					t.Errorf("%s: SIGTERM after %v and SIGKILL after %v; want %v and %v", row.lifecycle, at, at+grace, row.term, row.kill)
				}
			})
			if terms != 1 {
				t.Errorf("%s: %d times SIGTERM", row.lifecycle, terms)
			}
		})
	}
}

func TestADrainIsOverWithItsIncarnationOrTheSupervisor(t *testing.T) {
	over := make(chan struct{})
	close(over)
	for _, ended := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			var end, stop <-chan struct{}
			if end = over; !ended {
				end, stop = nil, over
			}
			p := planDrain(&guestv1.DrainRequest{PreStopMs: 5_000, BufferMs: 1}, journal.Executing, time.Now())
			p.follow(end, stop, func(time.Duration) { t.Error("SIGTERM is sent") })
		})
	}
}

// What a tool has started is killed too, and nothing of another call.
func TestACallIsKilledByItsMark(t *testing.T) {
	start := func(mark string) (*exec.Cmd, int) {
		cmd := exec.Command("sh", "-c", "setsid sleep 1000 & echo $!; exec sleep 1000")
		cmd.Env = []string{"PATH=/usr/bin:/bin", probes.CallVariable + "=" + mark}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		line, err := bufio.NewReader(out).ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		child, err := strconv.Atoi(strings.TrimSpace(line))
		if err != nil {
			t.Fatal(err)
		}
		return cmd, child
	}
	s := &Supervisor{look: make(gate, 1)}
	one, child := start("e/1")
	ten, other := start("e/10")
	s.killCall("e/1")
	_ = one.Wait()
	if one.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Errorf("the tool ended with %v", one.ProcessState)
	}
	if p, ok := readProcess(child); ok {
		t.Errorf("what it started runs: %+v", p)
	}
	for _, pid := range []int{ten.Process.Pid, other} {
		if _, ok := readProcess(pid); !ok {
			t.Error("another call was killed")
		}
	}
	s.killCall("e/10")
	_ = ten.Wait()
}
