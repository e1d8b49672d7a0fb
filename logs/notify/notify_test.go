package notify

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/agbox/agbox/logs"
)

// childVariable makes the test program, started again, run as a child of a test.
const childVariable = "AGBOX_NOTIFY_TEST_CHILD"

var children = map[string]func(dir string) error{
	"bind-mount":     throughBindMount,
	"no-descriptors": withoutDescriptors,
	"write":          writeSteadily,
}

func TestMain(m *testing.M) {
	if name := os.Getenv(childVariable); name != "" {
		if err := children[name](os.Getenv(childVariable + "_DIR")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

func child(tb testing.TB, name, dir string) *exec.Cmd {
	cmd := exec.CommandContext(tb.Context(), "/proc/self/exe")
	cmd.Env = append(os.Environ(), childVariable+"="+name, childVariable+"_DIR="+dir)
	return cmd
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatalf("unexpected error: %v", err)
	}
}

func begin(tb testing.TB) *Notifier {
	tb.Helper()
	n := New()
	tb.Cleanup(func() { must(tb, n.Close()) })
	return n
}

// lingering sets how long kernel watches stay without a follower.
func lingering(tb testing.TB, d time.Duration) *Notifier {
	tb.Helper()
	n := begin(tb)
	n.linger = d
	return n
}

func watch(tb testing.TB, n *Notifier, dir, execID string) *Watch {
	tb.Helper()
	w, err := n.Watch(dir, execID)
	must(tb, err)
	return w
}

func write(tb testing.TB, dir, name, text string) {
	tb.Helper()
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	must(tb, err)
	_, err = f.WriteString(text)
	must(tb, errors.Join(err, f.Close()))
}

// kernelWatches counts the watches that the kernel holds for the notifier.
func kernelWatches(tb testing.TB, n *Notifier) int {
	tb.Helper()
	var info []byte
	n.mu.Lock()
	queue := n.queue
	n.mu.Unlock()
	if queue == nil {
		return 0
	}
	must(tb, control(queue, func(fd int) (err error) {
		info, err = os.ReadFile("/proc/self/fdinfo/" + strconv.Itoa(fd))
		return err
	}))
	return strings.Count(string(info), "inotify wd:")
}

func TestEveryFileOfTheExecWakesItsFollowers(t *testing.T) {
	n, dir := begin(t), t.TempDir()
	a, b := watch(t, n, dir, "e1"), watch(t, n, dir, "e1")
	defer a.Close()
	defer b.Close()
	for _, name := range []string{logs.StdoutName("e1"), logs.StderrName("e1"), logs.IndexName("e1"), logs.StatusName("e1")} {
		for range 2 { // create the file, then append to it
			write(t, dir, name, "x")
			<-a.C()
			<-b.C()
		}
		// One write causes two events; the second may arrive after the token of the first.
		allHandled(t, n, dir)
		drain(a, b)
	}
	must(t, os.WriteFile(filepath.Join(dir, "temp"), nil, 0o600))
	must(t, os.Rename(filepath.Join(dir, "temp"), filepath.Join(dir, logs.StatusName("e1"))))
	<-a.C()
	<-b.C()
}

// A spare file is opened before it has the name that the follower expects.
func TestOutputInFilesThatWereSparesWakesTheFollower(t *testing.T) {
	dir := t.TempDir()
	d, err := logs.OpenDir(dir)
	must(t, err)
	defer func() { must(t, d.Close()) }()
	d.KeepSpares(4, logs.KeepOwner)
	for more := true; more; {
		more, err = d.AddSpare()
		must(t, err)
	}
	n := begin(t)
	w := watch(t, n, dir, "e1")
	defer w.Close()
	woken := func(by string) {
		t.Helper()
		allHandled(t, n, dir)
		select {
		case <-w.C():
		default:
			t.Errorf("not woken by %s", by)
		}
	}
	log, err := d.Create("e1", logs.WriterOptions{Owner: logs.KeepOwner})
	must(t, err)
	woken("files")
	for _, stream := range []logs.Stream{logs.Stdout, logs.Stderr} {
		log.Write(stream, time.Now(), []byte("x"))
		woken(stream.String())
	}
	must(t, d.WriteStatus("e1", []byte("x"), logs.StatusOptions{Owner: logs.KeepOwner, NoSync: true}))
	woken("status")
	must(t, log.Close())
	if d.Spares() != 0 {
		t.Errorf("%d spares were not used", d.Spares())
	}
}

// allHandled waits until the notifier has handled all events that happened before.
func allHandled(tb testing.TB, n *Notifier, dir string) {
	tb.Helper()
	id := strconv.FormatUint(lasts.Add(1), 10) // a new id, so no earlier event can wake its watch
	last := watch(tb, n, dir, id)
	defer last.Close()
	write(tb, dir, logs.IndexName(id), "x")
	<-last.C()
}

var lasts atomic.Uint64

func drain(watches ...*Watch) {
	for _, w := range watches {
		select {
		case <-w.C():
		default:
		}
	}
}

func TestFilesOfOtherExecsAndOtherNamesWakeNobody(t *testing.T) {
	n, dir := begin(t), t.TempDir()
	quiet := watch(t, n, dir, "e1")
	defer quiet.Close()
	for _, name := range []string{"e10.index", "e1", "e1.index.tmp", "e1.stdout", ".e1.status.tmp", "e1.status.index", "xe1.index"} {
		write(t, dir, name, "x")
	}
	allHandled(t, n, dir)
	select {
	case <-quiet.C():
		t.Error("woken by another file")
	default:
	}
}

func TestManyChangesLeaveOneToken(t *testing.T) {
	n, dir := begin(t), t.TempDir()
	w, last := watch(t, n, dir, "e1"), watch(t, n, dir, "last")
	defer w.Close()
	defer last.Close()
	for range 1000 {
		write(t, dir, logs.StdoutName("e1"), "x")
		write(t, dir, logs.IndexName("e1"), "x")
	}
	write(t, dir, logs.IndexName("last"), "x")
	<-last.C()
	<-w.C()
	select {
	case <-w.C():
		t.Error("a second token although nothing had changed")
	default:
	}
}

func TestFollowersInOneDirectoryShareAKernelWatch(t *testing.T) {
	n := lingering(t, 0)
	dirs := []string{t.TempDir(), t.TempDir()}
	var watches []*Watch
	for i := range 2000 {
		watches = append(watches, watch(t, n, dirs[i%2], fmt.Sprintf("e%d", i%7)))
	}
	if got := kernelWatches(t, n); got != 2 {
		t.Errorf("%d kernel watches for 2 directories", got)
	}
	last := watches[len(watches)-1] // in the second directory
	for _, w := range watches[:len(watches)-1] {
		w.Close()
		w.Close()
	}
	waitForWatches(t, n, 1) // one follower remains
	write(t, dirs[1], logs.IndexName(last.execID), "x")
	<-last.C()
	last.Close()
	waitForWatches(t, n, 0)
}

// waitForWatches waits until the notifier has that many directories and kernel watches.
func waitForWatches(tb testing.TB, n *Notifier, want int) {
	tb.Helper()
	for {
		n.mu.Lock()
		dirs, lingering := len(n.dirs), n.lingering
		n.mu.Unlock()
		if dirs == want && lingering == 0 && kernelWatches(tb, n) == want {
			return
		}
		select {
		case <-tb.Context().Done():
			tb.Fatalf("%d directories, %d of them without followers, and %d kernel watches; want %d", dirs, lingering, kernelWatches(tb, n), want)
		case <-time.After(time.Millisecond):
		}
	}
}

func TestAKernelWatchStaysForTheNextFollower(t *testing.T) {
	n, dir := lingering(t, time.Hour), t.TempDir()
	watch(t, n, dir, "e1").Close()
	n.mu.Lock()
	var stayed *directory
	for _, stayed = range n.dirs {
		break
	}
	n.mu.Unlock()
	write(t, dir, logs.IndexName("e2"), "x") // wakes nobody
	w := watch(t, n, dir, "e2")
	if w.dir != stayed {
		t.Error("the next follower does not use the watch that stayed")
	}
	waitForWatches(t, n, 1)
	write(t, dir, logs.IndexName("e2"), "y")
	<-w.C()
	w.Close()
	for range 2 * maxLingering {
		watch(t, n, t.TempDir(), "e").Close()
	}
	if got := kernelWatches(t, n); got != maxLingering {
		t.Errorf("%d watches stay; the limit is %d", got, maxLingering)
	}
}

func TestADirectoryThatIsRemovedWhileItsWatchStaysIsForgotten(t *testing.T) {
	n, dir := lingering(t, time.Hour), filepath.Join(t.TempDir(), "sb1")
	must(t, os.Mkdir(dir, 0o700))
	watch(t, n, dir, "e1").Close()
	must(t, os.Remove(dir))
	waitForWatches(t, n, 0)
}

func TestARemovedDirectoryWakesItsFollowersAndCanBeWatchedAgain(t *testing.T) {
	n, dir := lingering(t, 0), filepath.Join(t.TempDir(), "sb1")
	must(t, os.Mkdir(dir, 0o700))
	old := watch(t, n, dir, "e1")
	must(t, os.Remove(dir))
	<-old.C()
	must(t, os.Mkdir(dir, 0o700))
	fresh := watch(t, n, dir, "e1")
	old.Close()
	write(t, dir, logs.IndexName("e1"), "x")
	<-fresh.C()
	fresh.Close()
	waitForWatches(t, n, 0)
}

// The kernel drops events when its queue is full; then every follower must read.
func TestAnOverflowOfTheQueueWakesAllFollowers(t *testing.T) {
	n, busy, idle := begin(t), t.TempDir(), t.TempDir()
	a, b := watch(t, n, busy, "e1"), watch(t, n, idle, "e1")
	defer a.Close()
	defer b.Close()
	n.mu.Lock() // blocks the reading goroutine after its first read
	raw, err := os.ReadFile("/proc/sys/fs/inotify/max_queued_events")
	must(t, err)
	limit, err := strconv.Atoi(strings.TrimSpace(string(raw)))
	must(t, err)
	d, err := logs.OpenDir(busy)
	must(t, err)
	writer, err := d.Create("e2", logs.WriterOptions{Owner: logs.KeepOwner})
	must(t, err)
	for range limit + queueBuffer/unix.SizeofInotifyEvent {
		writer.Write(logs.Stdout, time.Now(), []byte("x"))
	}
	must(t, errors.Join(writer.Close(), d.Close()))
	n.mu.Unlock()
	<-a.C()
	<-b.C()
}

func TestWatchReturnsWhatIsWrong(t *testing.T) {
	n, dir := begin(t), t.TempDir()
	must(t, os.Symlink(dir, filepath.Join(dir, "link")))
	must(t, os.WriteFile(filepath.Join(dir, "file"), nil, 0o600))
	for name, want := range map[string]error{"none": logs.ErrNotExist, "link": logs.ErrTampered, "file": logs.ErrTampered} {
		if _, err := n.Watch(filepath.Join(dir, name), "e1"); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", name, err, want)
		}
	}
	w := watch(t, n, dir, "e1")
	must(t, n.Close())
	must(t, n.Close())
	w.Close()
	if _, err := n.Watch(dir, "e1"); !errdefs.IsUnavailable(err) {
		t.Errorf("after Close: %v, want Unavailable", err)
	}
}

func TestWatchesOpenedDuringWritesAreAlwaysWoken(t *testing.T) {
	n, dir := begin(t), t.TempDir()
	stop := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
				write(t, dir, logs.IndexName("e1"), "x")
			}
		}
	}()
	for range 300 {
		w := watch(t, n, dir, "e1")
		<-w.C()
		w.Close()
	}
	close(stop)
	<-done
}

func TestOutputWrittenThroughABindMountWakesTheFollower(t *testing.T) {
	cmd := child(t, "bind-mount", t.TempDir())
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS}
	if os.Getuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= unix.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}}
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("child: %v\n%s", err, out)
	}
}

func throughBindMount(dir string) error {
	host, inside := filepath.Join(dir, "host"), filepath.Join(dir, "inside")
	err := errors.Join(os.Mkdir(host, 0o700), os.Mkdir(inside, 0o700),
		unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
		unix.Mount(host, inside, "", unix.MS_BIND, ""))
	if err != nil {
		return err
	}
	n := New()
	w, err := n.Watch(host, "e1")
	if err != nil {
		return err
	}
	d, err := logs.OpenDir(inside)
	if err != nil {
		return err
	}
	writer, err := d.Create("e1", logs.WriterOptions{Owner: logs.KeepOwner})
	if err != nil {
		return err
	}
	<-w.C()
	writer.Write(logs.Stdout, time.Now(), []byte("hello"))
	<-w.C()
	w.Close()
	return errors.Join(writer.Close(), n.Close())
}

func TestAnIncompleteEventIsIgnored(t *testing.T) {
	n := begin(t)
	event := make([]byte, unix.SizeofInotifyEvent)
	binary.NativeEndian.PutUint32(event[12:], 1000)
	n.handle(event)
	n.handle(event[:5])
}
