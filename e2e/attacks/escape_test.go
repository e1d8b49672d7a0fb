package attacks

import (
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agbox/agbox/e2e/internal/harness"
)

// ofPID1 is the number of the attack on PID 1 in fileAttacks.
const ofPID1 = 34

// fileAttacks are attacks through the files that a sandbox sees, each a shell script that
// succeeds if it gets through. None changes anything: a file is only opened for writing.
var fileAttacks = []struct {
	number  int
	words   string
	scripts []string
}{
	{30, "settings of the kernel in /proc/sys, /proc and /sys", []string{
		": >>/proc/sys/kernel/core_pattern", ": >>/proc/sys/kernel/modprobe", ": >>/proc/sys/vm/drop_caches", ": >>/proc/sysrq-trigger",
		": >>/sys/kernel/mm/transparent_hugepage/enabled",
	}},
	{31, "memory, keys and timers of the kernel in /proc", []string{
		"[ -n \"$(head -c 1 /proc/keys)\" ]", "[ -n \"$(head -c 1 /proc/timer_list)\" ]", "[ $(head -c 4 /proc/kcore | wc -c) = 4 ]",
	}},
	{32, "its own limits, in the cgroup", []string{
		"[ -w $(dirname $(find /sys/fs/cgroup -name cgroup.procs | head -n 1)) ]", ": >>$(find /sys/fs/cgroup -name cgroup.procs | head -n 1)",
		": >>$(find /sys/fs/cgroup -name pids.max -o -name memory.max -o -name memory.limit_in_bytes | head -n 1)",
	}},
	{33, "devices of the host in /dev", []string{
		": </dev/kmsg", ": </dev/mem", "[ -n \"$(find /dev -type b)\" ]", "[ -e /dev/fuse ]", "[ -e /dev/kvm ]", "[ -e /dev/loop-control ]",
	}},
	{ofPID1, "memory, files and variables of PID 1 through /proc/1", []string{
		": </proc/1/mem", "cat /proc/1/environ", "ls /proc/1/root/", "ls /proc/1/cwd/", "readlink /proc/1/exe", "readlink /proc/1/fd/0", "readlink /proc/1/ns/mnt",
		"ls /proc/1/map_files/", "cat /proc/1/maps | grep .",
	}},
}

// getThrough runs the scripts in a sandbox and returns those that succeed.
func getThrough(t *testing.T, in *harness.Install, box string, scripts []string) map[string]bool {
	t.Helper()
	through := make(map[string]bool)
	var all strings.Builder
	for i, script := range scripts {
		fmt.Fprintf(&all, "(%s) >/dev/null 2>&1 && echo %d\n", script, i)
	}
	for word := range strings.FieldsSeq(inside(t, in, box, all.String()+"true")) {
		var i int
		if _, err := fmt.Sscan(word, &i); err != nil || i >= len(scripts) {
			t.Fatalf("a script prints %q", word)
		}
		through[scripts[i]] = true
	}
	return through
}

func TestFilesThatLeadOutOfTheSandboxAreClosed(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	in.Create(t, "box", harness.ImageDebian)
	// The first process belongs to root, and so does what attacks it. Only a capability
	// gets around that it does not let itself be traced.
	in.Create(t, "tracer", harness.ImageDebian, "--cap-add", "SYS_PTRACE")
	for _, attack := range fileAttacks {
		t.Run(attack.words, func(t *testing.T) {
			Row(t, attack.number, attack.words)
			for script := range getThrough(t, in, "box", attack.scripts) {
				t.Errorf("it gets through: %s", script)
			}
			if attack.number == ofPID1 {
				if len(getThrough(t, in, "tracer", attack.scripts)) == 0 {
					t.Error("nothing gets through with SYS_PTRACE either, so there is no attack")
				}
				return
			}
			// Root on the host gets through, so it is the sandbox that refuses. A kernel
			// may lack some of the files.
			if os.Geteuid() != 0 {
				return
			}
			if onHost := exec.Command("sh", "-c", "("+strings.Join(attack.scripts, ") || (")+")"); onHost.Run() != nil {
				t.Error("nothing gets through on the host either, so there is no attack")
			}
		})
	}
}

// firstProcess returns the pid of a sandbox's PID 1 on the host, and what it executes.
func firstProcess(t *testing.T, in *harness.Install) (pid int, program string) {
	t.Helper()
	seen, err := harness.DockerAPI.ContainerInspect(harness.Bounded(t), in.Inventory(t).Containers[0].ID)
	if err != nil {
		t.Fatal(err)
	}
	return seen.State.Pid, digest(t, fmt.Sprintf("/proc/%d/exe", seen.State.Pid))
}

func digest(t *testing.T, path string) string {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%x", sha256.Sum256(raw))
}

func TestRootInsideDoesNotEndOrReplaceTheSupervisor(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	in.Create(t, "box", harness.ImageDebian)
	pid, program := firstProcess(t, in)
	if want := digest(t, filepath.Join(in.Bin, "agbox-init")); program != want {
		t.Fatalf("PID 1 executes %s, want %s", program, want)
	}
	wantUnharmed := func(t *testing.T) {
		t.Helper()
		if now, _ := firstProcess(t, in); now != pid {
			t.Errorf("PID 1 was process %d and is %d", pid, now)
		}
		if said := in.Must(t, "exec", "box", "--", "echo", "well"); said != "well" {
			t.Errorf("a command says %q", said)
		}
	}
	t.Run("signals", func(t *testing.T) {
		Row(t, 35, "SIGKILL, SIGSTOP and a storm of other signals for PID 1")
		inside(t, in, "box", `i=0; while [ $i -lt 200 ]; do for s in KILL STOP HUP INT QUIT USR1 USR2 ALRM CHLD PIPE WINCH IO SEGV; do kill -$s 1; done; i=$((i + 1)); done`)
		wantUnharmed(t)
	})
	t.Run("files", func(t *testing.T) {
		Row(t, 36, "agbox-init and its configuration are written, removed or renamed")
		for script := range getThrough(t, in, "box", []string{
			"echo x >/.agbox/init", ": >>/.agbox/init", "rm /.agbox/init", "mv /.agbox/init /old", "ln -sf /bin/sh /.agbox/init", "chmod 777 /.agbox/init", "chown 1 /.agbox/init",
			"truncate -s 0 /.agbox/init", "echo x >/.agbox/boot.pb", "rm /.agbox/boot.pb", "mv /.agbox/boot.pb /old",
			"rmdir /.agbox/link", "mv /.agbox/link /old", "mv /var/log/agents-sandbox /old",
		}) {
			t.Errorf("it gets through: %s", script)
		}
		wantUnharmed(t)
	})
}

func TestPlacesOfMountsThatLeadElsewhereStayInTheSandbox(t *testing.T) {
	t.Parallel()
	Row(t, 37, "/.agbox, the log folder and a mount's place lead elsewhere when the sandbox starts again")
	in := harness.New(t)
	mine := write(t, in, "mine", map[string]string{"a": "mine\n"})
	in.Create(t, box, harness.ImageBusybox, "--mount", mine+":/x/deep") // its image has no /var/log, so it can be renamed
	_, program := firstProcess(t, in)
	target := filepath.Join(in.Home, "target")
	inside(t, in, box, "set -e; out=/"+strings.Repeat("../", 12)+target[1:]+"; for place in /.agbox /var/log /x; do mv $place $place.old; ln -s $out $place; done")
	in.Must(t, "stop", box)
	in.Must(t, "start", box)
	if _, now := firstProcess(t, in); now != program {
		t.Errorf("PID 1 executes %s, want %s", now, program)
	}
	harness.WantSame(t, "the mount", inside(t, in, box, "cat /x/deep/a"), "mine\n")
	// The engine resolved the links as inside, so the folder is there.
	harness.WantSame(t, "the folder inside", inside(t, in, box, "ls "+target+"; test -e "+target+"/init && echo init"), "agents-sandbox\nboot.pb\ndeep\ninit\nlink\nrun\ninit\n")
	if _, err := os.Lstat(target); err == nil {
		t.Errorf("%s was made on the host", target)
	}
}
