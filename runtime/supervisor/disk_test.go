package supervisor_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	guestv1 "github.com/agbox/agbox/proto/guest/v1"
)

// withDisk gives the log folder a file system of its own, which only the supervisor and its
// commands see.
func withDisk(options string) setting {
	return func(b *box, _ *guestv1.BootConfig) {
		b.args, b.ownMounts = append(b.args, "-disk", options), true
	}
}

// allowMounts gives a process a mount namespace of its own. An ordinary user gets a user
// namespace for that.
func allowMounts(attr *syscall.SysProcAttr) {
	attr.Cloneflags = unix.CLONE_NEWNS
	if uid, gid := os.Getuid(), os.Getgid(); uid != 0 {
		attr.Cloneflags |= unix.CLONE_NEWUSER
		attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: uid, HostID: uid, Size: 1}}
		attr.AmbientCaps = []uintptr{unix.CAP_SYS_ADMIN}
		attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: gid, HostID: gid, Size: 1}}
	}
}

// mountLogs mounts a file system that disappears with the process and its children.
func mountLogs(dir, options string) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("making mounts private: %w", err)
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, options); err != nil {
		return fmt.Errorf("mounting a tmpfs: %w", err)
	}
	return nil
}

// A disk without room is no failure of the command, so its caller must be able to tell the
// two apart.
func TestAStartThatAFullDiskPreventsSaysSo(t *testing.T) {
	for what, c := range map[string]struct{ options, fill, says string }{
		"no space": {"size=512k", "cat /dev/zero > filler", "The start of the command cannot be written down"},
		// Spare files are used up by the first starts.
		"no inodes": {"nr_inodes=64", "n=0; while : > filler$n; do n=$((n+1)); done", "The log files of the command cannot be made"},
	} {
		t.Run(what, func(t *testing.T) {
			b := newBox(t, withDisk(c.options))
			b.run(sh("fill", "cd "+filepath.Join(b.dir, "logs")+"; "+c.fill))
			var record *guestv1.ExecRecord
			started := 0
			for started = range 17 {
				record = b.start(b.dial(), sh(fmt.Sprint("e", started), fmt.Sprintf("echo > %s/ran%d", b.dir, started)))
				if record.GetPhase() == guestv1.ExecPhase_EXEC_PHASE_FAILED {
					break
				}
			}
			if record.GetFailure() != guestv1.StartFailure_START_FAILURE_NOT_RECORDED || record.GetExitCode() != 126 || !strings.HasPrefix(record.GetFailureMessage(), c.says) {
				t.Errorf("start %d gives %v; want %q", started, record, c.says)
			}
			if _, err := os.Stat(fmt.Sprintf("%s/ran%d", b.dir, started)); err == nil {
				t.Error("it has run although its start is written down nowhere")
			}
		})
	}
}
