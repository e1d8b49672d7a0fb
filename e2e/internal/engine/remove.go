package engine

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/docker/docker/api/types/container"
	"golang.org/x/sys/unix"
)

// remove removes the engine with everything that it made.
func (p *Private) remove(t testing.TB) {
	if t.Failed() && p.dockerd != nil {
		t.Logf("the end of the private dockerd's log:\n%s", p.dockerd.tail())
	}
	defer p.removeProcesses(t) // also if dockerd does not start again
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience)
	defer cancel()
	if p.dockerd != nil {
		p.Thaw(t)
		p.removeContainers(ctx, t)
		p.dockerd.end(t, syscall.SIGTERM)
	}
}

// removeProcesses ends all processes but dockerd, and removes what they made.
func (p *Private) removeProcesses(t testing.TB) {
	if p.containerd != nil {
		p.containerd.end(t, syscall.SIGTERM)
	}
	if p.api != nil {
		_ = p.api.Close()
	}
	p.killShims(t)
	p.unmount(t)
	p.removeGroups()
	if _, err := os.Lstat("/run/netns/" + p.netns); err == nil { // an engine that was killed, or whose host was rebooted, may have none
		if out, err := exec.Command("ip", "netns", "delete", p.netns).CombinedOutput(); err != nil {
			t.Errorf("the network namespace %s stays: %v %s", p.netns, err, out)
		}
	}
	if err := os.RemoveAll(p.root); err != nil {
		t.Errorf("the folder of the private engine stays: %v", err)
	}
}

func (p *Private) removeContainers(ctx context.Context, t testing.TB) {
	select {
	case <-p.dockerd.ended:
		p.Start(t)
	default:
	}
	all, err := p.api.ContainerList(ctx, container.ListOptions{All: true})
	if err != nil {
		t.Errorf("the private engine does not list its containers: %v", err)
	}
	for _, c := range all {
		if err := p.api.ContainerRemove(ctx, c.ID, container.RemoveOptions{Force: true, RemoveVolumes: true}); err != nil {
			t.Errorf("container %v of the private engine stays: %v", c.Names, err)
		}
	}
}

// killShims ends what containerd left running: containers whose removal failed. It returns how
// many it were.
func (p *Private) killShims(t testing.TB) (killed int) {
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range files {
		line, err := os.ReadFile(file)
		if err != nil || !strings.Contains(string(line), p.root+"/") {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file))); err == nil && pid != os.Getpid() {
			t.Logf("still there, and ended now: %d %s", pid, strings.ReplaceAll(string(line), "\x00", " "))
			_ = syscall.Kill(pid, syscall.SIGKILL)
			killed++
		}
	}
	return killed
}

// unmount unmounts everything below the engine's folder, innermost first.
func (p *Private) unmount(t testing.TB) {
	table, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Error(err)
		return
	}
	lines := strings.Split(string(table), "\n")
	slices.Reverse(lines)
	for _, line := range lines {
		fields := strings.Fields(line)
		if len(fields) < 2 || !strings.HasPrefix(fields[1], p.root+"/") {
			continue
		}
		if err := unix.Unmount(fields[1], unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
			t.Errorf("%s stays mounted: %v", fields[1], err)
		}
	}
}

// removeGroups removes the control groups, which are empty now. Others do not belong to
// this engine.
func (p *Private) removeGroups() {
	for _, group := range p.groups() {
		_ = unix.Rmdir(group)
	}
}

// groups returns the control groups of the engine, innermost first.
func (p *Private) groups() (groups []string) {
	for _, pattern := range []string{"/sys/fs/cgroup/" + p.netns, "/sys/fs/cgroup/*/" + p.netns} {
		roots, _ := filepath.Glob(pattern)
		for _, root := range roots {
			_ = filepath.WalkDir(root, func(path string, entry os.DirEntry, err error) error {
				if err == nil && entry.IsDir() {
					groups = append(groups, path)
				}
				return nil
			})
		}
	}
	slices.Reverse(groups)
	return groups
}
