package supervisor_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/agbox/agbox/logs"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"
	"github.com/agbox/agbox/runtime/guest"
	"github.com/agbox/agbox/runtime/supervisor"
)

// asSupervisor in the environment makes the test binary a supervisor. The supervisor
// reaps all its children, so it needs a process of its own. As a subreaper it inherits
// orphans, as PID 1 does.
const asSupervisor = "AGBOX_TEST_AS_SUPERVISOR"

// limit is how long a test waits for something that should happen at once.
const limit = 30 * time.Second

func TestMain(m *testing.M) {
	if os.Getenv(asSupervisor) != "" {
		_ = os.Unsetenv(asSupervisor)
		if err := superviseForTest(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	// Processes of a supervisor that a test has killed must not outlive the tests.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		supervisor.KillAllBelow()
		os.Exit(code)
	}))
}

func superviseForTest() error {
	flags := flag.NewFlagSet("supervisor", flag.ExitOnError)
	dir := flags.String("dir", "", "")
	grace := flags.Duration("grace", time.Second, "")
	processes := flags.Uint64("processes", 0, "")
	disk := flags.String("disk", "", "")
	if err := flags.Parse(os.Args[1:]); err != nil {
		return err
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return err
	}
	supervisor.ReserveThreads()
	if *processes > 0 {
		if err := unix.Setrlimit(unix.RLIMIT_NPROC, &unix.Rlimit{Cur: *processes, Max: *processes}); err != nil {
			return err
		}
	}
	if *disk != "" {
		if err := mountLogs(filepath.Join(*dir, "logs"), *disk); err != nil {
			return err
		}
	}
	boot, err := supervisor.LoadBoot(filepath.Join(*dir, "boot.pb"))
	if err != nil {
		return err
	}
	s, err := supervisor.New(supervisor.Config{
		Boot: boot, LinkDir: filepath.Join(*dir, "link"), LogDir: filepath.Join(*dir, "logs"),
		Env:    []string{"PATH=" + os.Getenv("PATH"), "FROM_CONTAINER=yes", "BOTH=container", "AGBOX_CHECKPOINT=container", "AGBOX_MODEL=container", "API_KEY=canary-of-container"},
		Passwd: filepath.Join(*dir, "passwd"), Group: filepath.Join(*dir, "group"), RunDir: filepath.Join(*dir, "run"), Helper: "/bin/true",
		Hostname: filepath.Join(*dir, "hostname"), Hosts: filepath.Join(*dir, "hosts"),
		Version: "test", Grace: *grace,
	})
	if err != nil {
		return err
	}
	return s.Run(context.Background(), func() { fmt.Println("ready") })
}

// box is a supervisor in a process of its own.
type box struct {
	t    testing.TB
	dir  string
	args []string
	cred *syscall.Credential
	// ownMounts: it has a mount namespace of its own.
	ownMounts bool

	cmd  *exec.Cmd
	once *sync.Once
	err  error
	// uniques counts the calls of unique.
	uniques int
}

type setting func(*box, *guestv1.BootConfig)

func withArgs(args ...string) setting {
	return func(b *box, _ *guestv1.BootConfig) { b.args = append(b.args, args...) }
}

func withMain(command ...string) setting {
	return func(_ *box, boot *guestv1.BootConfig) {
		boot.Command, boot.User = command, strconv.Itoa(os.Getuid())+":"+strconv.Itoa(os.Getgid())
	}
}

// newBox starts a supervisor with folders of its own and ends it with the test.
func newBox(t testing.TB, settings ...setting) *box {
	t.Helper()
	dir, err := os.MkdirTemp("", "agbox-sup-") // the path of t.TempDir is too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	b := &box{t: t, dir: dir}
	boot := &guestv1.BootConfig{OwnerUid: uint32(os.Getuid()), OwnerGid: uint32(os.Getgid())}
	for _, set := range settings {
		set(b, boot)
	}
	raw, err := boot.MarshalVT()
	if err != nil {
		t.Fatal(err)
	}
	b.write("boot.pb", string(raw))
	b.write("passwd", fmt.Sprintf("root:x:0:0:root:/root:/bin/sh\nme:x:%d:%d::/home/me:/bin/sh\nworker:x:4711:4712::/home/worker:/bin/sh\n", os.Getuid(), os.Getgid()))
	b.write("group", "root:x:0:\nstaff:x:4712:\nextra:x:4713:worker\n")
	for _, sub := range []string{"link", "logs"} {
		b.must(os.Mkdir(filepath.Join(dir, sub), 0o755))
	}
	if b.cred != nil {
		for _, name := range []string{"", "link", "logs", "boot.pb"} {
			b.must(os.Chown(filepath.Join(dir, name), int(b.cred.Uid), int(b.cred.Gid)))
		}
	}
	b.boot()
	t.Cleanup(func() { b.signal(syscall.SIGKILL); _ = b.wait() })
	return b
}

func (b *box) must(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

func (b *box) write(name, content string) {
	b.t.Helper()
	b.must(os.WriteFile(filepath.Join(b.dir, name), []byte(content), 0o644))
}

// boot starts the process and waits until it listens.
func (b *box) boot() {
	b.t.Helper()
	self, err := os.Executable()
	b.must(err)
	if b.cred != nil { // another user cannot access the test binary at its path
		raw, err := os.ReadFile(self)
		b.must(err)
		self = filepath.Join(b.dir, "supervisor")
		b.must(os.WriteFile(self, raw, 0o755))
	}
	b.cmd = exec.Command(self, append([]string{"-dir", b.dir}, b.args...)...)
	b.cmd.Env = append(os.Environ(), asSupervisor+"=1", "GORACE=atexit_sleep_ms=0") // otherwise each takes a second to end
	b.cmd.Stderr = os.Stderr
	b.cmd.SysProcAttr = &syscall.SysProcAttr{Credential: b.cred}
	if b.ownMounts {
		allowMounts(b.cmd.SysProcAttr)
	}
	out, err := b.cmd.StdoutPipe()
	b.must(err)
	b.must(b.cmd.Start())
	b.once = new(sync.Once)
	word := make([]byte, 6)
	if _, err := io.ReadFull(out, word); err != nil {
		b.t.Fatalf("the supervisor did not start: %v, %v", err, b.wait())
	}
}

// wait returns how the supervisor ended.
func (b *box) wait() error {
	b.once.Do(func() { b.err = b.cmd.Wait() })
	return b.err
}

func (b *box) signal(sig syscall.Signal) { _ = b.cmd.Process.Signal(sig) }

// stop ends the supervisor as an engine does.
func (b *box) stop() {
	b.t.Helper()
	b.signal(syscall.SIGTERM)
	if err := b.wait(); err != nil {
		b.t.Fatalf("the supervisor ended with %v", err)
	}
}

// dial connects to the supervisor.
func (b *box) dial() *guest.Conn {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), limit)
	defer cancel()
	c, err := guest.Dial(ctx, filepath.Join(b.dir, "link"), anyone)
	b.must(err)
	b.t.Cleanup(c.Close)
	return c
}

// request runs a command as the user of the test.
func request(id string, command ...string) *guestv1.StartRequest {
	return &guestv1.StartRequest{ExecId: id, Command: command, User: "me"}
}

func sh(id, script string) *guestv1.StartRequest { return request(id, "sh", "-c", script) }

// start starts an exec.
func (b *box) start(c *guest.Conn, req *guestv1.StartRequest) *guestv1.ExecRecord {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), limit)
	defer cancel()
	record, err := c.Start(ctx, req)
	b.must(err)
	return record
}

// ends watches on its own connection. It misses no exit from now on.
func (b *box) ends(ids ...string) <-chan *guestv1.ExecRecord {
	b.t.Helper()
	c := b.dial()
	records := make(chan *guestv1.ExecRecord, 4096)
	started := make(chan struct{})
	var watching sync.WaitGroup
	ctx, cancel := context.WithCancel(context.WithoutCancel(b.t.Context()))
	watching.Go(func() {
		defer close(records)
		_ = c.Watch(ctx, ids, func() { close(started) }, func(r *guestv1.ExecRecord) { records <- r })
	})
	b.t.Cleanup(func() { cancel(); watching.Wait() })
	select {
	case <-started:
	case <-c.Done():
		b.t.Fatal("the watch could not begin")
	}
	return records
}

// next returns the next record of a watch.
func next(t testing.TB, records <-chan *guestv1.ExecRecord) *guestv1.ExecRecord {
	t.Helper()
	select {
	case r, ok := <-records:
		if !ok {
			t.Fatal("the watch ended")
		}
		return r
	case <-time.After(limit):
		t.Fatal("no exec ended")
	}
	return nil
}

// run runs an exec to its end.
func (b *box) run(req *guestv1.StartRequest) *guestv1.ExecRecord {
	b.t.Helper()
	b.start(b.dial(), req)
	return b.end(req.GetExecId())
}

// end waits for the end of a running exec.
func (b *box) end(id string) *guestv1.ExecRecord {
	b.t.Helper()
	records := b.ends(id)
	for {
		if r := next(b.t, records); r.GetExecId() == id {
			return r
		}
	}
}

// stdout returns what an exec has written so far.
func (b *box) stdout(id string) string { return b.file("logs/" + logs.StdoutName(id)) }

func (b *box) file(name string) string {
	b.t.Helper()
	raw, err := os.ReadFile(filepath.Join(b.dir, name))
	b.must(err)
	return string(raw)
}

// status returns the record in an exec's status file, without the request.
func (b *box) status(id string) *guestv1.ExecRecord {
	b.t.Helper()
	record := b.statusFile(id)
	record.Request = nil
	return record
}

// statusFile returns all that an exec's status file holds.
func (b *box) statusFile(id string) *guestv1.ExecRecord {
	b.t.Helper()
	dir, err := logs.OpenDir(filepath.Join(b.dir, "logs"))
	b.must(err)
	defer func() { _ = dir.Close() }()
	raw, err := dir.ReadStatus(id)
	b.must(err)
	record := new(guestv1.ExecRecord)
	b.must(record.UnmarshalVT(raw))
	return record
}

// fifo makes a pipe that scripts open by name, and opens it without blocking.
func (b *box) fifo(name string) *os.File {
	b.t.Helper()
	path := filepath.Join(b.dir, name)
	b.must(unix.Mkfifo(path, 0o666))
	b.must(os.Chmod(path, 0o666))
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	b.must(err)
	b.must(f.SetDeadline(time.Now().Add(limit)))
	b.t.Cleanup(func() { _ = f.Close() })
	return f
}

// word reads one line that a script wrote into a fifo.
func word(t testing.TB, f *os.File) string {
	t.Helper()
	var line []byte
	one := make([]byte, 1)
	for {
		if _, err := f.Read(one); err != nil {
			t.Fatalf("nothing came through the fifo: %v", err)
		}
		if one[0] == '\n' {
			return string(line)
		}
		line = append(line, one[0])
	}
}

// number reads one line that is a number.
func number(t testing.TB, f *os.File) int {
	t.Helper()
	n, err := strconv.Atoi(strings.TrimSpace(word(t, f)))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// alive reports whether a process runs; a zombie does not.
func alive(pid int) bool {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, state, _ := strings.Cut(string(raw), ") ")
	return !strings.HasPrefix(state, "Z")
}

// eventually waits for a condition by polling.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.NewTimer(limit)
	defer deadline.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("it never came that %s", what)
		}
	}
}

// inTime calls try with increasing times until the precondition of the test, for example
// that a shell has set its trap, is met within one. try returns false if it is not, and
// has then checked nothing.
func inTime(t testing.TB, first time.Duration, try func(d time.Duration) bool) {
	t.Helper()
	for d := first; !try(d); d *= 2 {
		if d > limit {
			t.Fatalf("not even %v were enough", d)
		}
	}
}

// killAtEnd ends a process that the test leaves without a supervisor.
func killAtEnd(t testing.TB, pid int) {
	t.Cleanup(func() {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			t.Error(err)
		}
	})
}

// anyone accepts every listener: supervisors of tests are not the first process of a container.
func anyone(context.Context, int) error { return nil }
