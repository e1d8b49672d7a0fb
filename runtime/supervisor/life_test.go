package supervisor_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	guestv1 "github.com/agbox/agbox/proto/guest/v1"
)

func TestAGrandchildThatKeepsStdoutOpenDoesNotHoldUpTheExit(t *testing.T) {
	b := newBox(t)
	gate, passed := b.fifo("gate"), b.fifo("passed")
	r := b.run(sh("e", fmt.Sprintf("echo before; (read x < %s; echo after; echo done > %s) & exit 3", gate.Name(), passed.Name())))
	if r.GetExitCode() != 3 || r.GetStdoutBytes() != uint64(len("before\n")) {
		t.Errorf("the exit is %v", r)
	}
	if _, err := gate.WriteString("go\n"); err != nil {
		t.Fatal(err)
	}
	word(t, passed)
	b.stop()
	if got := b.stdout("e"); got != "before\nafter\n" {
		t.Errorf("the log holds %q", got)
	}
}

func TestBackgroundProcessesLiveOnAfterANormalExit(t *testing.T) {
	b := newBox(t, withArgs("-grace", "1h")) // the stop does not wait when nothing is left
	pids := b.fifo("pids")
	b.run(sh("e", "sleep 1000 & echo $! > "+pids.Name()))
	pid := number(t, pids)
	if !alive(pid) {
		t.Error("the background process was ended")
	}
	b.stop()
	if alive(pid) {
		t.Error("the background process outlived the supervisor")
	}
}

func TestOrphansAreReaped(t *testing.T) {
	b := newBox(t)
	gate, pids := b.fifo("gate"), b.fifo("pids")
	b.run(sh("e", fmt.Sprintf("sh -c 'read x < %s' & echo $! > %s", gate.Name(), pids.Name())))
	pid := number(t, pids)
	if _, err := gate.WriteString("go\n"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the orphan was reaped", func() bool { return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) })
}

func TestCancelWithinTheGraceKeepsTheRealStatus(t *testing.T) {
	b := newBox(t)
	c := b.dial()
	ready := b.fifo("ready")
	b.start(c, sh("e", `trap "exit 5" TERM; echo > `+ready.Name()+`; while :; do sleep 0.01; done`))
	word(t, ready)
	running, err := c.Cancel(t.Context(), "e", time.Hour)
	if err != nil || !running {
		t.Fatal(running, err)
	}
	r := b.end("e")
	if r.GetExitCode() != 5 || r.GetSignal() != 0 || !r.GetCancelled() {
		t.Error(r)
	}
	if running, err := c.Cancel(t.Context(), "e", 0); err != nil || running {
		t.Errorf("an exec that has ended: %v, %v", running, err)
	}
	if running, err := c.Cancel(t.Context(), "never", 0); err != nil || running {
		t.Errorf("an exec that was never started: %v, %v", running, err)
	}
}

// Each of these ignores SIGTERM and leaves the exec's process group. All but the last
// also leave its session.
func TestCancelKillsWhatIgnoresSIGTERMAndHides(t *testing.T) {
	stubborn := `trap "" TERM; echo $$ > %s; while :; do sleep 1; done`
	for name, wrap := range map[string]string{
		"the leader itself":             `%s`,
		"a child in its own session":    `setsid sh -c '%s' & wait`,
		"a double fork after the exit":  `(setsid sh -c '%s' &) ; trap "" TERM; read x < /dev/null; trap - TERM; sleep 1000`,
		"a child with no environment":   `env -i setsid sh -c '%s' & wait; sleep 1000`,
		"a daemon as services are":      `(env -i PATH="$PATH" setsid sh -c '%s' &) ; sleep 1000`,
		"a child in its own group only": `set -m; sh -c '%s' & wait`,
	} {
		t.Run(name, func(t *testing.T) {
			b := newBox(t)
			c := b.dial()
			pids := b.fifo("pids")
			b.start(c, sh("e", fmt.Sprintf(wrap, fmt.Sprintf(stubborn, pids.Name()))))
			pid := number(t, pids)
			if running, err := c.Cancel(t.Context(), "e", 50*time.Millisecond); err != nil || !running {
				t.Fatal(running, err)
			}
			if r := b.end("e"); !r.GetCancelled() {
				t.Error(r)
			}
			eventually(t, "the hidden process was killed", func() bool { return !alive(pid) })
		})
	}
}

// Whoever has set the limit that carries marks keeps it. Then the environment tells.
func TestCancelKillsADaemonWhereThereAreNoMarks(t *testing.T) {
	b := newBox(t)
	b.must(unix.Prlimit(b.cmd.Process.Pid, unix.RLIMIT_LOCKS, &unix.Rlimit{Cur: 1000, Max: 1000}, nil))
	c := b.dial()
	pids := b.fifo("pids")
	b.start(c, sh("e", fmt.Sprintf(`(setsid sh -c 'trap "" TERM; echo $$ > %s; while :; do sleep 1; done' &); sleep 1000`, pids.Name())))
	pid := number(t, pids)
	if running, err := c.Cancel(t.Context(), "e", 50*time.Millisecond); err != nil || !running {
		t.Fatal(running, err)
	}
	eventually(t, "the daemon was killed", func() bool { return !alive(pid) })
}

// A process that the leader starts in response to SIGTERM did not exist at the first look
// at the tree, loses its parent, and has no environment that identifies it.
func TestCancelKillsAChildOfTheLastMoment(t *testing.T) {
	b := newBox(t)
	c := b.dial()
	inTime(t, 300*time.Millisecond, func(grace time.Duration) bool {
		id := "e" + b.unique()
		ready, up := b.fifo(id+"-ready"), b.fifo(id+"-up")
		b.write(id+"-stubborn", `trap "" TERM; echo $$ > `+up.Name()+`; while :; do sleep 1; done`)
		b.start(c, sh(id, fmt.Sprintf(`trap 'env -i sh %s-stubborn & read pid < %s; echo $pid; exit 0' TERM; echo > %s; while :; do sleep 0.01; done`,
			filepath.Join(b.dir, id), up.Name(), ready.Name())))
		word(t, ready)
		if running, err := c.Cancel(t.Context(), id, grace); err != nil || !running {
			t.Fatal(running, err)
		}
		r := b.end(id)
		if !r.GetCancelled() {
			t.Error(r)
		}
		if r.GetExitCode() != 0 { // killed before its child was there
			return false
		}
		pid, err := strconv.Atoi(strings.TrimSpace(b.stdout(id)))
		b.must(err)
		eventually(t, "the child was killed", func() bool { return !alive(pid) })
		return true
	})
}

// These supervisors run on the host, so they see each other's processes and those of all
// containers.
func TestACancelEndsNothingOfAnotherSupervisor(t *testing.T) {
	boxes := []*box{newBox(t), newBox(t)}
	var pids []int
	for _, b := range boxes {
		up := b.fifo("up")
		b.start(b.dial(), sh("e", `trap "" TERM; echo $$ > `+up.Name()+`; while :; do sleep 1; done`))
		pids = append(pids, number(t, up))
	}
	if running, err := boxes[0].dial().Cancel(t.Context(), "e", time.Millisecond); err != nil || !running {
		t.Fatal(running, err)
	}
	boxes[0].end("e")
	boxes[0].stop() // waits for the last sweep
	if alive(pids[0]) || !alive(pids[1]) {
		t.Errorf("of the cancelled exec and its namesake run: %v, %v", alive(pids[0]), alive(pids[1]))
	}
}

func TestASecondCancelShortensTheGrace(t *testing.T) {
	b := newBox(t)
	c := b.dial()
	ready := b.fifo("ready")
	b.start(c, sh("e", `trap "" TERM; echo > `+ready.Name()+`; while :; do sleep 1; done`))
	word(t, ready)
	for _, grace := range []time.Duration{time.Hour, time.Minute, time.Millisecond} {
		if running, err := c.Cancel(t.Context(), "e", grace); err != nil || !running {
			t.Fatal(running, err)
		}
	}
	if r := b.end("e"); r.GetSignal() != int32(syscall.SIGKILL) || !r.GetCancelled() {
		t.Error(r)
	}
}

func TestASignalReachesTheProcessGroup(t *testing.T) {
	b := newBox(t)
	c := b.dial()
	ready := b.fifo("ready")
	script := `sh -c 'trap "echo child; exit" USR1; echo > %[1]s; while :; do sleep 0.01; done' & trap "wait; echo leader; exit 6" USR1; echo > %[1]s; while :; do sleep 0.01; done`
	b.start(c, sh("e", fmt.Sprintf(script, ready.Name())))
	word(t, ready)
	word(t, ready)
	if running, err := c.Signal(t.Context(), "e", int32(syscall.SIGUSR1)); err != nil || !running {
		t.Fatal(running, err)
	}
	if r := b.end("e"); r.GetExitCode() != 6 || r.GetCancelled() {
		t.Error(r)
	}
	if got := b.stdout("e"); got != "child\nleader\n" {
		t.Errorf("who got the signal: %q", got)
	}
	if _, err := c.Signal(t.Context(), "e", 65); !errdefs.IsInvalidArgument(err) {
		t.Errorf("signal 65: %v", err)
	}
}

func TestNoExitIsLostBetweenWatches(t *testing.T) {
	const execs = 120
	b := newBox(t)
	c := b.dial()
	open := make(map[string]bool)
	var ids []string
	for i := range execs {
		id := fmt.Sprint("e", i)
		ids, open[id] = append(ids, id), true
	}
	started := make(chan error, 1)
	go func() {
		var err error
		for _, id := range ids {
			_, startErr := c.Start(context.WithoutCancel(t.Context()), sh(id, "exit 3"))
			err = errors.Join(err, startErr)
		}
		started <- err
	}()
	if err := <-b.watchInPieces(ids, open, started); err != nil {
		t.Fatal(err)
	}
}

// watchInPieces watches on a sequence of short-lived connections, as a daemon that is
// killed repeatedly, until every exec was reported.
func (b *box) watchInPieces(ids []string, open map[string]bool, started <-chan error) <-chan error {
	result := make(chan error, 1)
	allStarted := false
	for len(open) > 0 {
		if !allStarted {
			select {
			case err := <-started:
				b.must(err)
				allStarted = true
			default:
			}
		}
		c := b.dial()
		ctx, cancel := context.WithTimeout(b.t.Context(), limit)
		reports := 0
		err := c.Watch(ctx, ids, func() {}, func(r *guestv1.ExecRecord) {
			switch r.GetPhase() {
			case guestv1.ExecPhase_EXEC_PHASE_EXITED:
				if r.GetExitCode() != 3 {
					b.t.Error(r)
				}
				if open[r.GetExecId()] {
					delete(open, r.GetExecId())
					reports++
				}
				if reports >= 10 || len(open) == 0 {
					cancel()
				}
			case guestv1.ExecPhase_EXEC_PHASE_UNKNOWN: // not started yet
			default:
				b.t.Errorf("the watch reported %v", r)
			}
		})
		cancel()
		if !errors.Is(err, context.Canceled) {
			result <- fmt.Errorf("%d execs were never reported: %w", len(open), err)
			return result
		}
	}
	if !allStarted {
		b.must(<-started)
	}
	result <- nil
	return result
}

func TestTheStopEndsEverythingAndWritesItDown(t *testing.T) {
	inTime(t, time.Second, func(grace time.Duration) bool {
		var ready *os.File
		b := newBox(t, withArgs("-grace", grace.String()), func(b *box, boot *guestv1.BootConfig) {
			ready = b.fifo("ready")
			withMain("sh", "-c", `trap "echo main ends; exit 0" TERM; echo > `+ready.Name()+`; while :; do sleep 0.01; done`)(b, boot)
		})
		word(t, ready)
		c := b.dial()
		records := b.ends()
		pids := b.fifo("pids")
		b.start(c, sh("kind", `trap "echo bye; exit 4" TERM; echo $$ > `+pids.Name()+`; while :; do sleep 0.01; done`))
		kind := number(t, pids)
		b.start(c, sh("stubborn", `trap "" TERM; echo $$ > `+pids.Name()+`; while :; do sleep 1; done`))
		stubborn := number(t, pids)
		b.run(sh("over", "exit 7"))
		b.stop()

		for _, pid := range []int{kind, stubborn} {
			if alive(pid) {
				t.Errorf("process %d outlived the supervisor", pid)
			}
		}
		if r := b.status("stubborn"); r.GetSignal() != int32(syscall.SIGKILL) {
			t.Error(r)
		}
		if r := b.status("over"); r.GetEndCause() != guestv1.EndCause_END_CAUSE_NONE {
			t.Errorf("what had ended before has the cause %v", r.GetEndCause())
		}
		for _, id := range []string{"kind", "stubborn", "main"} {
			if r := b.status(id); r.GetEndCause() != guestv1.EndCause_END_CAUSE_STOP {
				t.Errorf("the cause of the end of %s is %v", id, r.GetEndCause())
			}
		}
		told := map[string]bool{}
		for r := range records {
			told[r.GetExecId()] = true
		}
		if b.status("kind").GetSignal() != 0 || b.status("main").GetSignal() != 0 || !told["kind"] || !told["stubborn"] || !told["main"] {
			return false // they, or the report to the watcher, took longer
		}
		if r := b.status("kind"); r.GetExitCode() != 4 {
			t.Error(r)
		}
		if got := b.stdout("kind") + b.stdout("main"); got != "bye\nmain ends\n" {
			t.Errorf("the last words are %q", got)
		}
		return true
	})
}

func TestTheStopWaitsForTheLastBytes(t *testing.T) {
	const size = 20_000_000
	b := newBox(t, withArgs("-grace", "1h"))
	ready := b.fifo("ready")
	b.start(b.dial(), sh("e", fmt.Sprintf(`trap "exec head -c %d /dev/zero" TERM; echo > %s; while :; do sleep 0.01; done`, size, ready.Name())))
	word(t, ready)
	b.stop()
	if r, got := b.status("e"), len(b.stdout("e")); r.GetPhase() != guestv1.ExecPhase_EXEC_PHASE_EXITED || r.GetStdoutBytes() != size || got != size {
		t.Errorf("the log has %d bytes, the status is %v", got, r)
	}
}

func TestTheContainersOwnCommandRunsInEveryLife(t *testing.T) {
	b := newBox(t, withMain("sh", "-c", "echo hello; exit 2"))
	if r := b.end("main"); r.GetExitCode() != 2 {
		t.Error(r)
	}
	b.start(b.dial(), sh("e", "exit 0")) // the supervisor still works
	b.stop()
	b.boot()
	if r := b.end("main-2"); r.GetExitCode() != 2 || b.stdout("main")+b.stdout("main-2") != "hello\nhello\n" {
		t.Errorf("the second life: %v, %q", r, b.stdout("main-2"))
	}
}

func TestTheDaemonSaysFromWhichRunOnTheIDsAreFree(t *testing.T) {
	b := newBox(t, withMain("sh", "-c", "exit 2"), func(_ *box, boot *guestv1.BootConfig) { boot.MainRun = 3 })
	for _, id := range []string{"main-3", "main-4"} { // in the second life, main-3 has a status file
		if r := b.end(id); r.GetExitCode() != 2 {
			t.Error(r)
		}
		b.stop()
		b.boot()
	}
}

// The thread that receives the signals of writes has another one.
func TestTheSupervisorKeepsItsUserID(t *testing.T) {
	want := fmt.Sprintf("Uid:\t%[1]d\t%[1]d\t%[1]d\t%[1]d\n", os.Getuid())
	for range 20 { // that thread is chosen at random
		b := newBox(t)
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", b.cmd.Process.Pid))
		if err != nil || !strings.Contains(string(status), want) {
			t.Fatalf("the status of the supervisor has no %q: %v\n%s", want, err, status)
		}
		b.stop()
	}
}

func TestSignalsToTheSupervisorChangeNothing(t *testing.T) {
	b := newBox(t)
	for sig := syscall.Signal(1); sig < 32; sig++ {
		switch sig {
		case syscall.SIGKILL, syscall.SIGSTOP, syscall.SIGTERM:
		default:
			b.signal(sig)
		}
	}
	if r := b.run(sh("e", "kill -HUP $$")); r.GetSignal() != int32(syscall.SIGHUP) {
		t.Errorf("a signal that the supervisor catches is %v in an exec", r)
	}
}

func TestHostileFramesDoNotEndTheSupervisor(t *testing.T) {
	b := newBox(t)
	header := func(length, stream uint32, kind byte) []byte {
		p := make([]byte, 10)
		binary.BigEndian.PutUint32(p, length)
		binary.BigEndian.PutUint32(p[4:], stream)
		p[8] = kind
		return p
	}
	hang := "\x0a\x13guest.v1.Supervisor\x12\x05Hello"
	call := append(header(uint32(len(hang)), 1, 1), hang...)
	for name, frames := range map[string][]byte{
		"garbage":               []byte(strings.Repeat("\xff\x00hello", 1000)),
		"huge frame":            header(1<<32-1, 1, 1),
		"even stream":           header(0, 2, 1),
		"data without a call":   header(0, 1, 3),
		"data for a unary call": append(call, header(0, 1, 3)...),
		"close of a unary call": append(call, 0, 0, 0, 0, 0, 0, 0, 1, 3, 5),
		"answer":                header(0, 1, 2),
		"broken request":        append(header(3, 1, 1), 0xff, 0xff, 0xff),
		"half a frame":          header(1000, 1, 1),
	} {
		for range 20 {
			c, err := net.Dial("unix", filepath.Join(b.dir, "link", "guest.sock"))
			b.must(err)
			_, _ = c.Write(frames)
			b.must(c.(*net.UnixConn).CloseWrite())
			b.must(c.SetReadDeadline(time.Now().Add(limit)))
			for buf := make([]byte, 4096); err == nil; {
				_, err = c.Read(buf)
			}
			if errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("%s: the connection was left open", name)
			}
			_ = c.Close()
		}
		b.dial()
	}
}

func TestABadRequestIsRefusedBeforeAnythingStarts(t *testing.T) {
	b := newBox(t)
	c := b.dial()
	for name, req := range map[string]*guestv1.StartRequest{
		"id":            sh("../x", ""),
		"empty command": request("e"),
		"empty name":    request("e", ""),
		"relative cwd":  {ExecId: "e", Command: []string{"true"}, Cwd: "tmp"},
		"NUL":           request("e", "true", "a\x00b"),
		"environment":   {ExecId: "e", Command: []string{"true"}, Env: []string{"novalue"}},
		"no key":        {ExecId: "e", Command: []string{"true"}, Env: []string{"=value"}},
		"long argument": request("e", "true", strings.Repeat("x", 128<<10)),
	} {
		if _, err := c.Start(t.Context(), req); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	entries, err := os.ReadDir(filepath.Join(b.dir, "logs"))
	if err != nil || len(entries) != 0 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
}

// The process limit counts the threads of a user. As root, the test gives the supervisor
// a user of its own. Otherwise it adds the user's existing threads to the limit.
func TestAForkBombAtTheProcessLimitHurtsOnlyItself(t *testing.T) {
	const room = 90
	uid := os.Getuid()
	settings := []setting{}
	if uid == 0 {
		uid = 54321
		settings = append(settings, func(b *box, boot *guestv1.BootConfig) {
			b.cred = &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}
			boot.OwnerUid, boot.OwnerGid = uint32(uid), uint32(uid)
		})
	}
	settings = append(settings, withArgs("-processes", strconv.Itoa(threadsOf(uid)+room)))
	b := newBox(t, settings...)
	c := b.dial()
	user, shared := fmt.Sprintf("%d:%d", uid, uid), false
	if uid == os.Getuid() {
		user, shared = "me", true
	}
	full := b.fifo("full")
	// The shell exits at the first refused fork. Then the trap runs.
	bomb := fmt.Sprintf(`trap 'echo > %s; exec sleep 1000' EXIT; while :; do sleep 1000 & done`, full.Name())
	b.start(c, &guestv1.StartRequest{ExecId: "bomb", Command: []string{"sh", "-c", bomb}, User: user})
	word(t, full)

	var calls sync.WaitGroup
	for i := range 60 { // at once, and more than the supervisor has threads
		calls.Go(func() {
			r, err := c.Start(t.Context(), &guestv1.StartRequest{ExecId: fmt.Sprint("e", i), Command: []string{"sleep", "1000"}, User: user})
			for n := 0; shared && err == nil && r.GetPhase() == guestv1.ExecPhase_EXEC_PHASE_RUNNING; n++ {
				// Another process of the user has ended. This exec took its place and
				// keeps it.
				r, err = c.Start(t.Context(), &guestv1.StartRequest{ExecId: fmt.Sprintf("e%d-%d", i, n), Command: []string{"sleep", "1000"}, User: user})
			}
			if err != nil || r.GetFailure() != guestv1.StartFailure_START_FAILURE_OTHER || !strings.Contains(r.GetFailureMessage(), "process limit") {
				t.Errorf("an exec at the limit: %v, %v", r, err)
			}
		})
	}
	calls.Wait()
	if running, err := c.Cancel(t.Context(), "bomb", 0); err != nil || !running {
		t.Fatal(running, err)
	}
	b.end("bomb")
	eventually(t, "there is room again", func() bool {
		r := b.start(c, &guestv1.StartRequest{ExecId: fmt.Sprint("f", time.Now().UnixNano()), Command: []string{"true"}, User: user})
		return r.GetFailure() == guestv1.StartFailure_START_FAILURE_NONE
	})
}

// threadsOf counts the threads of a user.
func threadsOf(uid int) int {
	tasks, _ := filepath.Glob("/proc/[0-9]*/task/[0-9]*")
	n := 0
	for _, task := range tasks {
		var st syscall.Stat_t
		if syscall.Stat(task, &st) == nil && int(st.Uid) == uid {
			n++
		}
	}
	return n
}
