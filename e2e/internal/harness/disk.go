package harness

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// SmallDisk mounts an ext4 of this many MiB from a file, until the test ends. It needs root.
func SmallDisk(t *testing.T, dir string, mib int64) {
	t.Helper()
	image := filepath.Join(t.TempDir(), "disk")
	f, err := os.Create(image)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.Truncate(mib<<20), f.Close()); err != nil {
		t.Fatal(err)
	}
	for _, command := range [][]string{
		{"mkfs.ext4", "-q", "-F", "-m", "0", "-O", "^has_journal", image}, {"mount", "-o", "loop", image, dir},
	} {
		if out, err := exec.Command(command[0], command[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", strings.Join(command, " "), err, out)
		}
	}
	t.Cleanup(func() {
		// Files that were open a moment ago, and namespaces that have just ended, may
		// still use it for a moment.
		err := unix.Unmount(dir, 0)
		for until := time.Now().Add(Patience); errors.Is(err, unix.EBUSY) && time.Now().Before(until); {
			time.Sleep(20 * time.Millisecond)
			err = unix.Unmount(dir, 0)
		}
		if err != nil {
			t.Errorf("unmount %s: %v", dir, err)
			_ = unix.Unmount(dir, unix.MNT_DETACH)
		}
	})
}

// Fill fills the file system of a folder, to the last byte. The function that it returns frees
// the space.
func Fill(dir string) (release func() error, err error) {
	path := filepath.Join(dir, "filler")
	f, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	release = func() error { return os.Remove(path) }
	// Most of it is reserved, which writes nothing. The rest is written, down to the last byte.
	end := int64(0)
	for size := int64(1 << 30); size >= 1<<12; {
		switch err := unix.Fallocate(int(f.Fd()), 0, end, size); {
		case err == nil:
			end += size
		case errors.Is(err, syscall.ENOSPC):
			size /= 2
		case !errors.Is(err, syscall.EINTR):
			return nil, errors.Join(err, release())
		}
	}
	if _, err := f.Seek(end, 0); err != nil {
		return nil, errors.Join(err, release())
	}
	for size := 1 << 12; size > 0; size /= 2 {
		block := make([]byte, size)
		for err = nil; err == nil; {
			_, err = f.Write(block)
		}
		if !errors.Is(err, syscall.ENOSPC) {
			return nil, errors.Join(err, release())
		}
	}
	return release, nil
}
