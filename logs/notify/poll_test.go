package notify

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agbox/agbox/logs"
)

// crowded is a kernel that refuses instances or watches while the fields are set.
type crowded struct{ instances, watches atomic.Bool }

func (c *crowded) start(t *testing.T, retry time.Duration) *Notifier {
	n := start(kernel{
		instance: func() (int, error) {
			if c.instances.Load() {
				return 0, unix.EMFILE
			}
			return unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
		},
		watch: func(fd int, dirPath string) (int, error) {
			if c.watches.Load() {
				return 0, unix.ENOSPC
			}
			return unix.InotifyAddWatch(fd, dirPath, mask)
		},
	}, retry, 0)
	t.Cleanup(func() { must(t, n.Close()) })
	return n
}

func TestSnapshotsHaveRoomForAllFiles(t *testing.T) {
	if got := len(logs.Suffixes()); got > maxFiles {
		t.Errorf("an exec has %d log files, more than %d", got, maxFiles)
	}
}

func TestWithoutRoomForInotifyFilesArePolled(t *testing.T) {
	for name, fill := range map[string]func(*crowded){
		"instances": func(c *crowded) { c.instances.Store(true) },
		"watches":   func(c *crowded) { c.watches.Store(true) },
	} {
		t.Run(name, func(t *testing.T) {
			c := new(crowded)
			fill(c)
			n, dir := c.start(t, time.Hour), filepath.Join(t.TempDir(), "sb1")
			must(t, os.Mkdir(dir, 0o700))
			a, b, other := watch(t, n, dir, "e1"), watch(t, n, dir, "e1"), watch(t, n, dir, "e2")
			defer other.Close()
			<-a.C() // the first poll of the exec, perhaps before b
			<-other.C()
			drain(b)
			for _, file := range []string{logs.StdoutName("e1"), logs.StderrName("e1"), logs.IndexName("e1"), logs.StatusName("e1")} {
				for range 2 { // create the file, then append to it
					write(t, dir, file, "x")
					<-a.C()
					<-b.C()
				}
			}
			select {
			case <-other.C():
				t.Error("woken by a file of another exec")
			default:
			}
			if n.Polling() == nil || kernelWatches(t, n) != 0 {
				t.Errorf("polling is %v, with %d kernel watches", n.Polling(), kernelWatches(t, n))
			}
			must(t, os.RemoveAll(dir))
			<-a.C()
			a.Close()
			b.Close()
			if _, err := n.Watch(dir, "e1"); !errors.Is(err, logs.ErrNotExist) {
				t.Errorf("a missing directory: %v", err)
			}
			must(t, os.Symlink("/", dir))
			if _, err := n.Watch(dir, "e1"); !errors.Is(err, logs.ErrTampered) {
				t.Errorf("a link: %v", err)
			}
		})
	}
}

func TestPolledDirectoriesAreWatchedOnceThereIsRoom(t *testing.T) {
	c := new(crowded)
	c.instances.Store(true)
	n, dir := c.start(t, time.Millisecond), t.TempDir()
	w := watch(t, n, dir, "e1")
	c.instances.Store(false)
	for n.Polling() != nil {
		write(t, dir, logs.IndexName("e1"), "x")
		<-w.C() // no change is missed while the way changes
	}
	write(t, dir, logs.IndexName("e1"), "x")
	<-w.C()
	if kernelWatches(t, n) != 1 {
		t.Errorf("%d kernel watches", kernelWatches(t, n))
	}
	w.Close()
	waitForWatches(t, n, 0)
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.polled) != 0 {
		t.Errorf("%d polled directories are left", len(n.polled))
	}
}

func TestADaemonWithoutDescriptorsPollsUntilItHasSome(t *testing.T) {
	if out, err := child(t, "no-descriptors", t.TempDir()).CombinedOutput(); err != nil {
		t.Fatalf("child: %v\n%s", err, out)
	}
}

func withoutDescriptors(dir string) error {
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
		return err
	}
	time.AfterFunc(time.Hour, func() {}).Stop() // the runtime opens the descriptors of its timers
	free, err := unix.Dup(0)
	if err != nil {
		return err
	}
	if err := errors.Join(unix.Close(free), unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(free), Max: before.Max})); err != nil {
		return err
	}
	n := New()
	w, err := n.Watch(dir, "e1")
	if err != nil {
		return err
	}
	<-w.C()
	if !errors.Is(n.Polling(), unix.EMFILE) {
		return fmt.Errorf("polling because of %w", n.Polling())
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
		return err
	}
	again, err := n.Watch(dir, "e2")
	if err != nil {
		return err
	}
	if n.Polling() != nil {
		return fmt.Errorf("still polling because of %w", n.Polling())
	}
	w.Close()
	again.Close()
	return n.Close()
}
