package harness

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/agbox/agbox/runtime"
)

// PIDOf returns the process id on the host of a container's first process, 0 if it does not run
// or there is no such container. Containers of sandboxes have the name runtime.PrimaryName.
func PIDOf(ctx context.Context, t *testing.T, container string) int {
	t.Helper()
	seen, err := DockerAPI.ContainerInspect(ctx, container)
	switch {
	case errdefs.IsNotFound(err):
		return 0
	case err != nil:
		t.Fatal(err)
	}
	return seen.State.Pid
}

// PIDInside is PIDOf for the supervisor of a sandbox. It asks the engine, because there may be
// no daemon.
func PIDInside(ctx context.Context, t *testing.T, sandboxID string) int {
	t.Helper()
	return PIDOf(ctx, t, runtime.PrimaryName(sandboxID))
}

// ProcessesBeside lists the processes in the PID namespace of a process whose command line and
// stat file fit. It lists none if the process has ended.
func ProcessesBeside(pid int, fits func(command, stat string) bool) (found []int) {
	space, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", pid))
	if err != nil {
		return nil
	}
	files, _ := filepath.Glob("/proc/[0-9]*/ns/pid")
	for _, file := range files {
		if other, err := os.Readlink(file); err != nil || other != space {
			continue
		}
		dir := filepath.Dir(filepath.Dir(file))
		command, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
		stat, _ := os.ReadFile(filepath.Join(dir, "stat"))
		if n, err := strconv.Atoi(filepath.Base(dir)); err == nil && fits(string(command), string(stat)) {
			found = append(found, n)
		}
	}
	return found
}

// KillIfAlive ends a process with SIGKILL. It may have ended.
func KillIfAlive(pid int) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
}

// LockedBy returns the process id of the daemon of the install, which need not answer.
func (in *Install) LockedBy(t *testing.T) int {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(in.Home, "data", "agboxd.lock"))
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(raw)))
	if err != nil {
		t.Fatal(err)
	}
	return pid
}
