package process

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// task is what /proc shows of a task.
type task struct {
	state   string
	flags   uint64
	pending string
}

func (k task) files(fsys fstest.MapFS, pid, tid int) {
	dir := fmt.Sprintf("%d/task/%d/", pid, tid)
	fsys[dir+"stat"] = &fstest.MapFile{Data: fmt.Appendf(nil,
		"%d (a) R (b) %s 1 2 3 0 -1 %d 5 0 0 0 2 1 0 0 20 0 9 0 881 1815 3\n", tid, k.state, k.flags)}
	fsys[dir+"status"] = &fstest.MapFile{Data: fmt.Appendf(nil,
		"Name:\ta) R (b\nSigQ:\t0/31\n%s\nSigBlk:\tfffffffffffffeff\n", k.pending)}
}

func TestWhatIsEndingDoesNotLive(t *testing.T) {
	const none = "SigPnd:\t0000000000000000\nShdPnd:\t0000000000000000"
	const multithreaded = 0x400000 | 0x40 // as of any living Go program
	living := task{"S", multithreaded, none}
	for _, c := range []struct {
		name  string
		tasks []task
		lives bool
	}{
		{"all is well", []task{living, living}, true},
		{"stopped", []task{{"T", multithreaded, none}}, true},
		{"SIGTERM pends", []task{{"S", multithreaded, "SigPnd:\t0000000000000000\nShdPnd:\t0000000000004000"}}, true},
		{"one thread has ended", []task{living, {"R", multithreaded | flagExiting, none}}, true},
		{"the first thread has ended", []task{{"Z", multithreaded | flagExiting, none}, living}, true},
		{"a zombie", []task{{"Z", multithreaded | flagExiting, none}}, false},
		{"dead", []task{{"X", multithreaded, none}}, false},
		{"the last thread closes files", []task{{"Z", flagExiting, none}, {"D", flagExiting, none}}, false},
		{"a thread was killed", []task{living, {"R", multithreaded | flagSignaled, none}}, false},
		{"a thread is to be killed", []task{living, {"D", multithreaded, "SigPnd:\t0000000000000100\nShdPnd:\t0000000000000000"}}, false},
		{"it is to be killed", []task{{"S", multithreaded, "SigPnd:\t0000000000000000\nShdPnd:\t0000000000000100"}}, false},
		{"all tasks end while they are looked at", nil, false},
	} {
		proc := fstest.MapFS{"77/task": &fstest.MapFile{Mode: os.ModeDir}}
		for i, k := range c.tasks {
			k.files(proc, 77, 77+i)
		}
		lives, err := taskLives(proc, 77)
		if err != nil || lives != c.lives {
			t.Errorf("%s: lives is %v (%v)", c.name, lives, err)
		}
	}
}

// sleepVariable has the test binary sleep: a program of several threads, as agboxd is.
const sleepVariable = "AGBOX_TEST_SLEEP"

func TestMain(m *testing.M) {
	if os.Getenv(sleepVariable) != "" {
		fmt.Println("asleep")
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func TestARealProcessLivesUntilItIsKilled(t *testing.T) {
	if !Lives(os.Getpid()) || !Lives(1) {
		t.Error("this process or the first one does not live")
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), sleepVariable+"=yes")
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := bufio.NewReader(stdout).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	pid := cmd.Process.Pid
	if !Lives(pid) {
		t.Error("a process that sleeps does not live")
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if Lives(pid) {
		t.Error("a process that was killed lives")
	}
	if err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil); err != nil {
		t.Fatal(err)
	}
	if Lives(pid) {
		t.Error("a zombie lives")
	}
	_ = cmd.Wait()
	if Lives(pid) || Lives(0) || Lives(-1) {
		t.Error("a process lives that there is not")
	}
}

func TestPeerIsTheProcessThatListens(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	lis, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer lis.Close()
	conn, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if pid, err := Peer(conn); err != nil || pid != os.Getpid() {
		t.Errorf("Peer gives %d (%v), want %d", pid, err, os.Getpid())
	}
}

func TestAnIdentityIsOfOneProcess(t *testing.T) {
	own := Identify(os.Getpid())
	if own.PID != os.Getpid() || own.Start == 0 || len(own.Kernel) != 36 || own != Identify(os.Getpid()) {
		t.Errorf("this process is %+v", own)
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), sleepVariable+"=yes")
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	later := Identify(cmd.Process.Pid)
	if later.Start < own.Start || later == own {
		t.Errorf("a later process is %+v, this one %+v", later, own)
	}
	_ = stdin.Close()
	_ = cmd.Wait()
	if gone := Identify(later.PID); gone == later {
		t.Errorf("a process that has ended is still %+v", gone)
	}
}

func TestTheStartTimeIsFoundBehindAnyName(t *testing.T) {
	for stat, want := range map[string]uint64{
		"77 (a) R (b) S 1 2 3 0 -1 4194304 5 0 0 0 2 1 0 0 20 0 9 0 881 1815 3\n": 881,
		"77 (a) S 1 2\n": 0,
		"":               0,
	} {
		if ticks := startTime([]byte(stat)); ticks != want {
			t.Errorf("%q gives %d", stat, ticks)
		}
	}
}

// TestEndEndsOneProcess: it gets SIGTERM first, and another process with its pid gets nothing.
func TestEndEndsOneProcess(t *testing.T) {
	for _, c := range []struct {
		script string
		grace  time.Duration
		want   string
	}{
		{"trap 'exit 7' TERM; echo; while :; do sleep 0.01; done", time.Minute, "exit status 7"},
		{"echo; exec sleep 60", time.Minute, "signal: terminated"},
		{"trap '' TERM; echo; while :; do sleep 0.01; done", 0, "signal: killed"},
	} {
		cmd := exec.Command("sh", "-c", c.script)
		stdout, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := bufio.NewReader(stdout).ReadString('\n'); err != nil {
			t.Fatal(err)
		}
		id := Identify(cmd.Process.Pid)
		other := id
		other.Start++
		if err := other.End(t.Context(), 0); err != nil || !id.Alive() || other.Alive() {
			t.Errorf("the end of a process of the past gives %v, and this one lives: %v", err, id.Alive())
		}
		if err := id.End(t.Context(), c.grace); err != nil || id.Alive() {
			t.Errorf("End gives %v, and it lives: %v", err, id.Alive())
		}
		if err := cmd.Wait(); err == nil || err.Error() != c.want {
			t.Errorf("it ended with %v, want %s", err, c.want)
		}
	}
}

func TestOnlyTheVariablesOfTheRuntimeAreTakenOut(t *testing.T) {
	rest, own := SplitGoVariables([]string{"A=GOGC=1", "GOGC=1", "GOGCX=2", "GODEBUG=", "GOPATH=/go", "GOMEMLIMIT"})
	if !slices.Equal(rest, []string{"A=GOGC=1", "GOGCX=2", "GOPATH=/go"}) || !slices.Equal(own, []string{"GOGC=1", "GODEBUG=", "GOMEMLIMIT"}) {
		t.Errorf("Split gives %v and %v", rest, own)
	}
	if rest, own := SplitGoVariables(SupervisorGoVariables()); len(rest) > 0 || len(own) != len(GoVariables) {
		t.Errorf("of the blank ones it takes %v and leaves %v", own, rest)
	}
}

// withHostName starts a process in a UTS namespace of its own.
func withHostName(t *testing.T) Identity {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("only root can set the host name of another process")
	}
	cmd := exec.Command("sleep", "1000")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUTS}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return Identify(cmd.Process.Pid)
}

// TestHostNamesAreSetAgain: none of the calls leaves this process in the namespace of the other one.
func TestHostNamesAreSetAgain(t *testing.T) {
	id := withHostName(t)
	machine, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	was := machine
	for i := range 100 {
		name := fmt.Sprint("box", i)
		if err := id.SetHostname(was, name); err != nil {
			t.Fatalf("call %d: %v", i, err)
		}
		was = name
	}
	if err := Identify(os.Getpid()).SetHostname(machine, "other"); err == nil {
		t.Error("the host name of this machine is set")
	}
	if now, err := os.Hostname(); err != nil || now != machine {
		t.Errorf("this machine is called %s now, and was %s: %v", now, machine, err)
	}
}

// TestWhoTriesAHostNameTakesNoneAway: one asks whether the name could be set while another one sets it.
func TestWhoTriesAHostNameTakesNoneAway(t *testing.T) {
	id := withHostName(t)
	was, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	for i := range 1000 {
		name := fmt.Sprint("box", i)
		var tries errgroup.Group
		for range 4 {
			tries.Go(func() error { return id.SetHostname(was, was) })
		}
		tries.Go(func() error { return id.SetHostname(was, name) })
		if err := tries.Wait(); err != nil {
			t.Fatal(err)
		}
		if now := hostName(t, id); now != name {
			t.Fatalf("round %d: it is called %s", i, now)
		}
		was = name
	}
}

// hostName is what a process sees.
func hostName(t *testing.T, id Identity) string {
	t.Helper()
	space, err := os.Open(fmt.Sprintf("/proc/%d/ns/uts", id.PID))
	if err != nil {
		t.Fatal(err)
	}
	defer space.Close()
	var now unix.Utsname
	if err := onThread(func() error { return errors.Join(unix.Setns(int(space.Fd()), unix.CLONE_NEWUTS), unix.Uname(&now)) }); err != nil {
		t.Fatal(err)
	}
	return unix.ByteSliceToString(now.Nodename[:])
}

func TestAMachineIsCrowdedShortOfItsLimits(t *testing.T) {
	for _, row := range []struct{ load, pids, threads, limit string }{
		{"0.1 0.2 0.3 5/32487 11841\n", "32768\n", "192730\n", "kernel.pid_max"},
		{"0.1 0.2 0.3 5/32400 11841\n", "32768\n", "192730\n", ""},
		{"0.1 0.2 0.3 5/192500 11841\n", "4194304\n", "192730\n", "kernel.threads-max"},
		{"0.1 0.2", "32768\n", "192730\n", ""},
		{"0.1 0.2 0.3 5/x 11841\n", "1\n", "1\n", ""},
		{"0.1 0.2 0.3 5/9 1\n", "", "", ""},
	} {
		got := crowded(fstest.MapFS{
			"loadavg": {Data: []byte(row.load)}, "sys/kernel/pid_max": {Data: []byte(row.pids)}, "sys/kernel/threads-max": {Data: []byte(row.threads)},
		})
		if (got != "") != (row.limit != "") || !strings.Contains(got, row.limit) {
			t.Errorf("%q of %q and %q: %q", row.load, row.pids, row.threads, got)
		}
	}
	if got := crowded(fstest.MapFS{}); got != "" {
		t.Errorf("without files: %q", got)
	}
}
