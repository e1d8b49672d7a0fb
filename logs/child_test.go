package logs

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// Some tests need a process of their own, for a limit of the whole process or a private
// mount. The test program then runs itself with the name of a child in this variable.
const childVariable = "AGBOX_LOGS_TEST_CHILD"

// children are the programs. An error that one returns fails the test.
var children = map[string]func(dir string) error{
	"full-disk":       onFullDisk,
	"file-size-limit": underFileSizeLimit,
	"few-descriptors": removeDeepTree,
}

func TestMain(m *testing.M) {
	if name := os.Getenv(childVariable); name != "" {
		if err := children[name](os.Getenv(childVariable + "_DIR")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// runChild runs a child with an empty directory. With ownMounts it may mount. An
// unprivileged user gets a user namespace for that.
func runChild(t *testing.T, name string, ownMounts bool) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe")
	cmd.Env = append(os.Environ(), childVariable+"="+name, childVariable+"_DIR="+t.TempDir())
	if ownMounts {
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS}
		if os.Getuid() != 0 {
			cmd.SysProcAttr.Cloneflags |= unix.CLONE_NEWUSER
			cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
			cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
		}
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("child %s: %v\n%s", name, err, out)
	}
}

// mountTmpfs mounts a small file system that disappears with the child.
func mountTmpfs(dir string) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("making mounts private: %w", err)
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=512k"); err != nil {
		return fmt.Errorf("mounting a tmpfs: %w", err)
	}
	return nil
}
