package faults

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/agbox/agbox/client"
	"github.com/agbox/agbox/e2e/internal/harness"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// kill ends the daemon of the install with SIGKILL and waits for its end. It finds the
// daemon by its lock, so the daemon need not answer.
func (w *witness) kill(t *testing.T) {
	t.Helper()
	harness.Aim(t, w.in.LockedBy(t))()
}

// killsUnderLoad is how often the daemon is killed under load. "make soak" continues for
// the time AGBOX_SOAK, with random times from AGBOX_SEED.
const killsUnderLoad = 50

// soak reads the settings of "make soak". Without them the time is 0.
func soak(t *testing.T) (length time.Duration, seed uint64) {
	t.Helper()
	seed = 7
	var err error
	if text := os.Getenv("AGBOX_SOAK"); text != "" {
		if length, err = time.ParseDuration(text); err != nil {
			t.Fatalf("AGBOX_SOAK is not a duration such as 30m: %v", err)
		}
	}
	if text := os.Getenv("AGBOX_SEED"); text != "" {
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("AGBOX_SEED is not a number: %v", err)
		}
	}
	return length, seed
}

func TestKillsUnderLoadLoseNothing(t *testing.T) {
	t.Parallel()
	row := Row(t, 7, "SIGKILL at random moments under load", killsUnderLoad)
	w := newWitness(t, harness.New(t))
	boxes := []string{w.box(t), w.box(t), w.box(t)}
	before := w.lives(t)

	length, seed := soak(t)
	working, finish := context.WithCancel(t.Context())
	defer finish()
	var load sync.WaitGroup
	failed := make(chan error, 64)
	for i := range 12 {
		load.Go(func() {
			for n := 0; working.Err() == nil; n++ {
				// Some short, some long enough for several daemons.
				j := job{id: fmt.Sprintf("w%d-%d", i, n), box: boxes[i%len(boxes)], lines: 1000, code: (i + n) % 100, every: 100, pause: time.Duration(n%4) * 50 * time.Millisecond}
				// Not cancelled at the end: the results must be complete.
				if err := w.runAndFollow(context.WithoutCancel(working), j); err != nil {
					failed <- err
					return
				}
			}
		})
	}
	var back []time.Duration
	random := rand.New(rand.NewPCG(seed, 50))
	for until := time.Now().Add(length); len(back) < killsUnderLoad || time.Now().Before(until); {
		wait(t, time.Duration(20+random.IntN(150))*time.Millisecond)
		w.kill(t)
		since := time.Now()
		w.in.Must(t, "daemon", "start")
		w.in.Must(t, "ls", "-q")
		back = append(back, time.Since(since))
	}
	finish()
	load.Wait()
	close(failed)
	for err := range failed {
		t.Error(err)
	}
	for i, after := range w.lives(t) {
		if after != before[i] {
			t.Errorf("sandbox %s was %v and is %v", boxes[i], before[i], after)
		}
	}
	v := w.check(t)
	row.Ran(len(back))
	slowest, sum := time.Duration(0), time.Duration(0)
	for _, d := range back {
		slowest, sum = max(slowest, d), sum+d
	}
	row.Note("%d commands, %d bytes of output: %d bytes lost, %d wrong exit codes, %d leaked objects", v.execs, v.bytes, v.lostBytes, v.wrongCodes, v.leaked)
	row.Note("API back, from the kill to the answer of 'agbox ls': mean %v, slowest %v", (sum / time.Duration(len(back))).Round(time.Millisecond), slowest.Round(time.Millisecond))
}

// wait lets time pass for the events under test.
func wait(t *testing.T, d time.Duration) {
	t.Helper()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-t.Context().Done():
		t.Fatal(t.Context().Err())
	}
}

// life is the state of a sandbox that a restart of the daemon must not change.
type life struct {
	container string
	pid       int
}

// lives returns those of all sandboxes, oldest first.
func (w *witness) lives(t *testing.T) []life {
	t.Helper()
	var all []life
	for _, box := range strings.Fields(w.in.Must(t, "ls", "-q")) {
		id := w.primary(t, box)
		all = append(all, life{id, pidOf(t, id)})
	}
	return all
}

// primary returns the id of a sandbox's container.
func (w *witness) primary(t *testing.T, box string) string {
	t.Helper()
	out, err := w.c.GetSandbox(harness.Bounded(t), box)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range out.GetContainers() {
		if c.GetRole() == "primary" {
			return c.GetContainerId()
		}
	}
	t.Fatalf("sandbox %s has no primary: %v", box, out)
	return ""
}

// runAndFollow runs a job and reads its output meanwhile.
func (w *witness) runAndFollow(ctx context.Context, j job) error {
	if err := w.start(ctx, j); err != nil {
		return fmt.Errorf("start %s: %w", j.id, err)
	}
	stdout, _ := j.output()
	at := uint64(0)
	for item, err := range w.c.FollowLogs(ctx, j.id, client.LogOptions{Follow: true}) {
		if err != nil {
			return fmt.Errorf("follow %s: %w", j.id, err)
		}
		if item.Stream != agboxv1.LogStream_LOG_STREAM_STDOUT {
			continue
		}
		end := item.Offset + uint64(len(item.Data))
		if item.Offset != at || end > uint64(len(stdout)) || string(item.Data) != string(stdout[at:end]) {
			return fmt.Errorf("a follower of %s got something else from byte %d on, expected at byte %d", j.id, item.Offset, at)
		}
		at = end
	}
	if at != uint64(len(stdout)) {
		return fmt.Errorf("a follower of %s got %d bytes of %d", j.id, at, len(stdout))
	}
	return nil
}

func TestCommandsThatEndWhileThereIsNoDaemonKeepTheirStatus(t *testing.T) {
	t.Parallel()
	const jobs = 20
	Row(t, 8, "commands end while there is no daemon", jobs)
	w := newWitness(t, harness.New(t))
	box := w.box(t)
	// No command reaches its last line while this file exists.
	hold := filepath.Join(w.logs(box), "hold")
	if err := os.WriteFile(hold, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for i := range jobs {
		j := job{id: fmt.Sprintf("j%d", i), box: box, lines: 100, code: i * 5}
		if err := w.start(harness.Bounded(t), j); err != nil {
			t.Fatal(err)
		}
	}
	w.kill(t)
	gone := time.Now()
	if err := os.Remove(hold); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, "the supervisor has written down the end of all commands", func() bool {
		for i := range jobs {
			if !harness.LeftStatus(t, w.logs(box), fmt.Sprintf("j%d", i)) {
				return false
			}
		}
		return true
	})
	ended := time.Now()
	w.in.Must(t, "daemon", "start")
	w.check(t)
	for e, err := range w.c.ListExecs(harness.Bounded(t), box) {
		if err != nil {
			t.Fatal(err)
		}
		if at := e.GetFinishedAt().AsTime(); at.Before(gone) || at.After(ended) {
			t.Errorf("exec %s is said to have ended at %v, not between %v and %v", e.GetExecId(), at, gone, ended)
		}
	}
}

// pidInside returns the process id of a sandbox's supervisor on the host.
func (w *witness) pidInside(t *testing.T, box string) int {
	t.Helper()
	return harness.PIDInside(harness.Bounded(t), t, box)
}

// processesOf lists the processes with the given word in their command that are in the
// PID namespace of a process; for the word zombie, those that have ended and nobody waits for.
func processesOf(pid int, word string) []int {
	return harness.ProcessesBeside(pid, func(command, stat string) bool {
		return strings.Contains(command, word) || word == "zombie" && strings.Contains(stat, ") Z ")
	})
}

func TestASecondDaemonExitsAndNamesTheFirst(t *testing.T) {
	t.Parallel()
	row := Row(t, 10, "a second daemon for the same install", 20)
	w := newWitness(t, harness.New(t))
	pid := strconv.Itoa(w.in.Status(t).PID)
	slowest := time.Duration(0)
	for range 20 {
		began := time.Now()
		second := w.in.StartBinary(t, "agboxd", "run").Wait(t).Want(t, 4)
		slowest = max(slowest, time.Since(began))
		if !strings.Contains(second.Stderr, pid) {
			t.Errorf("the second daemon says %q, which does not name pid %s", second.Stderr, pid)
		}
	}
	row.Note("slowest exit %v", slowest.Round(time.Millisecond))
	if now := strconv.Itoa(w.in.Status(t).PID); now != pid {
		t.Errorf("the daemon was pid %s and is %s", pid, now)
	}
	w.check(t)
}

func TestAStaleSocketIsReplacedAndALivingOneIsNot(t *testing.T) {
	t.Parallel()
	Row(t, 11, "the socket of a killed daemon is in the way", 5)
	Row(t, 11, "somebody answers on the socket though the lock is free", 1)
	w := newWitness(t, harness.New(t))
	for range 5 {
		w.kill(t)
		if _, err := os.Lstat(w.in.Socket()); err != nil {
			t.Fatalf("the killed daemon left no socket: %v", err)
		}
		w.in.Must(t, "daemon", "start")
	}
	// The lock file of the install is lost, so only the socket shows the daemon.
	before, err := os.Lstat(w.in.Socket())
	if err != nil {
		t.Fatal(err)
	}
	lock := filepath.Join(w.in.Home, "data", "agboxd.lock")
	if err := os.Rename(lock, lock+".away"); err != nil {
		t.Fatal(err)
	}
	second := w.in.StartBinary(t, "agboxd", "run").Wait(t)
	if second.Code == 0 || second.Stderr == "" {
		t.Errorf("a second daemon beside a living socket ended with %d and said %q", second.Code, second.Stderr)
	}
	if err := os.Rename(lock+".away", lock); err != nil {
		t.Fatal(err)
	}
	if after, err := os.Lstat(w.in.Socket()); err != nil || !os.SameFile(before, after) {
		t.Errorf("the living socket was replaced (%v)", err)
	}
	w.check(t)
}

func TestWhatRanWhenTheHostWentDownIsLost(t *testing.T) {
	t.Parallel()
	Row(t, 14, "daemon and containers end at the same moment, as in a host reboot", 1)
	w := newWitness(t, harness.New(t))
	box := w.box(t)
	if err := w.start(harness.Bounded(t), job{id: "before", box: box, lines: 100, code: 7}); err != nil {
		t.Fatal(err)
	}
	w.check(t) // waits for its end
	running := w.in.Must(t, "exec", "-d", box, "--", "sleep", "1000")
	supervisor := w.pidInside(t, box)
	w.kill(t)
	if err := syscall.Kill(supervisor, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, "the container is down", func() bool { return w.pidInside(t, box) == 0 })
	if err := os.RemoveAll(filepath.Join(w.in.Home, "run")); err != nil { // as a reboot does
		t.Fatal(err)
	}
	w.in.Must(t, "daemon", "start")
	w.awaitState(t, box, agboxv1.SandboxState_SANDBOX_STATE_FAILED)
	e, err := w.c.GetExec(harness.Bounded(t), running)
	if err != nil || e.GetErrorCode() != agboxv1.ErrorReason_EXEC_LOST.String() || e.GetExitCode() == 0 {
		t.Errorf("the command that ran is %v (%v), want it lost", e, err)
	}
	w.in.Must(t, "start", box)
	w.holds(box, agboxv1.SandboxState_SANDBOX_STATE_READY)
	if err := w.start(harness.Bounded(t), job{id: "after", box: box, lines: 100, code: 9}); err != nil {
		t.Fatal(err)
	}
	w.check(t)
}

// awaitState returns the sandbox once it is in the state. From now on the witness expects
// this state.
func (w *witness) awaitState(t *testing.T, box string, state agboxv1.SandboxState) *agboxv1.SandboxHandle {
	t.Helper()
	var h *agboxv1.SandboxHandle
	harness.Eventually(t, fmt.Sprintf("sandbox %s is %v", box, state), func() bool {
		out, err := w.c.GetSandbox(harness.Bounded(t), box)
		h = out.GetSandbox()
		return err == nil && h.GetState() == state
	})
	w.holds(box, state)
	return h
}
