package retention

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/agbox/agbox/internal/paths"
	"github.com/agbox/agbox/internal/process"
)

// A file that a process made without a name, or whose names it removed, takes space on the
// host and is in no folder. It shows only in the descriptors of the processes that have it
// open. Not found are files that are mapped but not open, and descriptors on their way
// through a socket. A daemon without root cannot see the descriptors of root's processes.

// held returns how many bytes the processes of a sandbox's container hold in its folders, in
// files without names. What cannot be seen counts as nothing. init is the file in which the
// link to the supervisor has noted the container's first process; processes are those of byGroups.
func held(init string, processes map[string][]int) (bytes uint64) {
	first, err := firstProcess(init)
	if err != nil {
		return 0
	}
	mounts := folderMounts(first)
	if len(mounts) == 0 {
		return 0
	}
	counted := make(map[uint64]bool)
	for _, pid := range processes[groupsOf(first)] {
		for ino, size := range nameless(pid, mounts) {
			if !counted[ino] {
				counted[ino] = true
				bytes += size
			}
		}
	}
	return bytes
}

// firstProcess returns the noted process, if it still lives.
func firstProcess(file string) (pid int, err error) {
	raw, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	var id process.Identity
	if err := json.Unmarshal(raw, &id); err != nil {
		return 0, err
	}
	if id.Start == 0 || process.Identify(id.PID) != id {
		return 0, os.ErrNotExist // it has ended
	}
	return id.PID, nil
}

func procFile(pid int, name string) string { return filepath.Join("/proc", strconv.Itoa(pid), name) }

// folderMounts returns the ids of the mounts of the two folders in the container.
func folderMounts(first int) map[string]bool {
	raw, err := os.ReadFile(procFile(first, "mountinfo"))
	if err != nil {
		return nil
	}
	mounts := make(map[string]bool)
	for line := range strings.Lines(string(raw)) {
		// proc_pid_mountinfo(5): the first field is the id, the fifth the place.
		if f := strings.Fields(line); len(f) > 4 && (f[4] == paths.InContainerLogs || f[4] == paths.InContainerLink) {
			mounts[f[0]] = true
		}
	}
	return mounts
}

// byGroups returns all processes by their control groups. A container cannot leave its groups.
// It is made once for all sandboxes, because each has to be looked for among all processes.
func byGroups() map[string][]int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	processes := make(map[string][]int)
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if groups := groupsOf(pid); groups != "" {
			processes[groups] = append(processes[groups], pid)
		}
	}
	return processes
}

// groupsOf returns the control groups of a process as the kernel writes them. It is empty for one in none
// but the root, where the engine makes no groups of its own, and for one that has ended.
func groupsOf(pid int) string {
	raw, err := os.ReadFile(procFile(pid, "cgroup"))
	text := string(raw)
	if err != nil || !strings.Contains(text, ":/") || strings.Count(text, ":/\n") == strings.Count(text, "\n") {
		return ""
	}
	return text
}

// nameless returns the sizes on disk, by inode, of the files without names that a process
// has open in some mounts.
func nameless(pid int, mounts map[string]bool) map[uint64]uint64 {
	found := make(map[uint64]uint64)
	entries, err := os.ReadDir(procFile(pid, "fd"))
	if err != nil {
		return nil
	}
	for _, e := range entries {
		file := procFile(pid, "fd/"+e.Name())
		// The name of such a file ends so; a stat of every descriptor would cost more.
		if name, err := os.Readlink(file); err != nil || !strings.HasSuffix(name, " (deleted)") {
			continue
		}
		var st unix.Stat_t
		if unix.Stat(file, &st) != nil || st.Nlink != 0 || st.Mode&unix.S_IFMT != unix.S_IFREG || !mounts[mountOf(pid, e.Name())] {
			continue
		}
		found[st.Ino] = uint64(st.Blocks) * 512
	}
	return found
}

// mountOf returns the id of the mount that a descriptor was opened in.
func mountOf(pid int, fd string) string {
	raw, err := os.ReadFile(procFile(pid, "fdinfo/"+fd))
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(raw)) {
		if id, ok := strings.CutPrefix(line, "mnt_id:"); ok {
			return strings.TrimSpace(id)
		}
	}
	return ""
}
