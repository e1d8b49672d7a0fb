package filesystem

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/agbox/agbox/internal/paths"
)

// fill makes a folder with something in it.
func fill(t *testing.T, dir string, mode os.FileMode) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Join(dir, "sub"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "sub", "file"), []byte("x"), 0o400); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, mode); err != nil {
		t.Fatal(err)
	}
	return dir
}

// home gives the test a data folder, and returns the one for temporary folders.
func home(t *testing.T) string {
	t.Helper()
	t.Setenv("AGBOX_HOME", t.TempDir())
	install, err := paths.FromEnv()
	if err == nil {
		err = os.MkdirAll(install.Scratch(), 0o700)
	}
	if err != nil {
		t.Fatal(err)
	}
	return install.Scratch()
}

func TestAFolderTakesNotTheLastOfADisk(t *testing.T) {
	home(t)
	dir, err := NewTempDir("work")
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Remove()
	if err := dir.Room(1); err != nil {
		t.Error(err)
	}
	if err := dir.Room(1 << 60); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("room for an exbibyte: %v", err)
	}
	free := func() int64 {
		var st unix.Statfs_t
		if err := unix.Statfs(dir.Path, &st); err != nil {
			t.Fatal(err)
		}
		return int64(st.Bavail) * st.Bsize
	}
	all := free()
	if err := dir.Room(all); !errors.Is(err, unix.ENOSPC) && free() < all+kept { // others use the disk too
		t.Errorf("room for all that is free: %v", err)
	}
}

func there(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

func TestOnlyWhatAKilledProcessLeftIsRemoved(t *testing.T) {
	top := home(t)
	held, err := NewTempDir("work")
	if err != nil {
		t.Fatal(err)
	}
	elsewhere := fill(t, filepath.Join(t.TempDir(), "elsewhere"), 0o700)
	left := []string{fill(t, filepath.Join(top, "agbox-work-123"), 0o700), fill(t, filepath.Join(top, "agbox-merge-9"), 0o700)}
	stay := []string{
		held.Path, fill(t, filepath.Join(top, "agbox-work-of-mine"), 0o700), fill(t, filepath.Join(top, "agbox-other-1"), 0o700),
		fill(t, filepath.Join(top, "agbox-patch-1"), 0o755), filepath.Join(top, "agbox-work-4"), filepath.Join(elsewhere, "sub", "file"),
	}
	if err := os.Symlink(elsewhere, filepath.Join(top, "agbox-work-4")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(elsewhere, filepath.Join(left[0], "link")); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() == 0 {
		other := fill(t, filepath.Join(top, "agbox-work-5"), 0o700)
		if err := os.Chown(other, 4321, 4321); err != nil {
			t.Fatal(err)
		}
		stay = append(stay, other)
	}
	SweepTempDirs(top)
	for _, path := range left {
		if there(path) {
			t.Errorf("%s is left", path)
		}
	}
	for _, path := range stay {
		if !there(path) {
			t.Errorf("%s is gone", path)
		}
	}
	held.Remove()
	if there(held.Path) {
		t.Error("the folder was not removed")
	}
}

func TestTheFolderOfAProcessThatWasKilledIsFree(t *testing.T) {
	if dir := os.Getenv("SCRATCH_OF_A_CHILD"); dir != "" {
		d, err := NewTempDir("merge")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stdout.WriteString(d.Path + "\n"); err != nil {
			t.Fatal(err)
		}
		select {} // until the kill
	}
	top := home(t)
	child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestTheFolderOfAProcessThatWasKilledIsFree$")
	child.Env = append(os.Environ(), "SCRATCH_OF_A_CHILD=1")
	out, err := child.StdoutPipe()
	if err == nil {
		err = child.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	line := make([]byte, 4096)
	n, err := out.Read(line)
	if err != nil {
		t.Fatal(err)
	}
	path := string(line[:n-1])
	SweepTempDirs(top)
	if !there(path) {
		t.Error("the folder of a living process was removed")
	}
	_ = child.Process.Kill()
	_ = child.Wait()
	SweepTempDirs(top)
	if there(path) {
		t.Error("the folder of a killed process is left")
	}
}

func TestFoldersThatAreSweptWhileTheyAreMadeAreMadeAgain(t *testing.T) {
	top := home(t)
	var sweeps sync.WaitGroup
	stop := make(chan struct{})
	for range 2 {
		sweeps.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					SweepTempDirs(top)
				}
			}
		})
	}
	for range 200 {
		d, err := NewTempDir("patch")
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(d.Path, "x"), nil, 0o600); err != nil {
			t.Error(err)
		}
		d.Remove()
	}
	close(stop)
	sweeps.Wait()
}
