package e2e

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/agbox/agbox/e2e/internal/harness"
)

func TestLimitsHoldInside(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	in.createNamed(t, "demo", "image: "+harness.ImageBusybox+`
cpu_limit: "0.5"
memory_limit: 64m
pids_limit: 100
shm_size: 3m
ulimits: [{name: nofile, soft: 123, hard: 456}]
tmpfs: [{target: /fast, size: 2m, mode: "0700"}]
hostname: inside
working_dir: /tmp
user: "1000:1000"
`)
	look := func(script string) string { return in.Must(t, "exec", "-u", "0", "demo", "--", "sh", "-c", script) }
	harness.WantSame(t, "memory and swap", look(`cd /sys/fs/cgroup; if [ -e memory.max ]; then cat memory.max memory.swap.max
		else cat memory/memory.limit_in_bytes; echo $(( $(cat memory/memory.memsw.limit_in_bytes) - $(cat memory/memory.limit_in_bytes) )); fi`), "67108864\n0")
	harness.WantSame(t, "processor", look(`cd /sys/fs/cgroup; if [ -e cpu.max ]; then cat cpu.max
		else echo $(cat cpu/cpu.cfs_quota_us cpu/cpu.cfs_period_us); fi`), "50000 100000")
	harness.WantSame(t, "open files", look("ulimit -Sn; ulimit -Hn"), "123\n456")
	for path, size := range map[string]string{"/dev/shm": "3072", "/fast": "2048"} {
		harness.WantSame(t, path, look("df -k "+path+" | tail -1 | awk '{print $2}'"), size)
	}
	harness.WantSame(t, "the mode of the tmpfs", look("stat -c %a /fast"), "700")
	harness.WantSame(t, "a program in the tmpfs", look("cp /bin/busybox /fast/echo && /fast/echo runs"), "runs")
	harness.WantSame(t, "who and where", in.Must(t, "exec", "demo", "--", "sh", "-c", "id -u; pwd; hostname"), "1000\n/tmp\ninside")

	// Exceeding a limit fails at once, and the sandbox survives.
	in.Agbox(t, "exec", "-u", "0", "demo", "--", "sh", "-c", "head -c 4m /dev/zero >/fast/file").Want(t, 1)
	if out := in.Agbox(t, "exec", "demo", "--", "sh", "-c", "i=0; while [ $i -lt 200 ]; do sleep 20 & i=$((i+1)); done; echo all"); strings.Contains(out.Stdout, "all") || !strings.Contains(out.Stderr, "fork") {
		t.Errorf("200 processes fit under a limit of 100: %q, %q", out.Stdout, out.Stderr)
	}
	in.Agbox(t, "exec", "demo", "--", "sh", "-c", "tail /dev/zero").Want(t, 137)
	harness.WantSame(t, "afterwards", in.Must(t, "exec", "demo", "--", "echo", "alive"), "alive")
}

func TestWhatTheEngineCannotLimitIsRefusedBeforeAnythingIsMade(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	in.Must(t, "daemon", "start")
	for _, c := range []struct {
		flags []string
		says  string
	}{
		{[]string{"--disk", "1g"}, "disk_limit: The engine cannot limit the size of a container"},
		{[]string{"--gpus", "all"}, "gpus: The engine cannot give a GPU to a container"},
		{[]string{"--cpus", "4096"}, "cpu_limit"},
		{[]string{"--device", "/dev/no-such-device"}, "The host has no device /dev/no-such-device"},
	} {
		begun := time.Now()
		refused(t, in.Agbox(t, append([]string{"create", "demo", "--image", harness.ImageBusybox}, c.flags...)...), 2, c.says)
		t.Logf("%v was refused in %v", c.flags, time.Since(begun).Round(time.Millisecond))
	}
	harness.WantSame(t, "sandboxes", in.Must(t, "ls", "--deleted", "-q"), "")
}

func TestStatsShowWhatContainersUse(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	in.createNamed(t, "busy", "image: "+harness.ImageBusybox+`
memory_limit: 64m
services: [{name: idle, image: agbox-test/busybox:latest, command: [sleep, "1000000"], pids_limit: 50}]
`)
	in.createNamed(t, "other", "image: "+harness.ImageBusybox+"\n")
	in.Must(t, "exec", "-d", "busy", "--", "sh", "-c", "while :; do :; done")
	harness.Eventually(t, "the busy one is shown as busy", func() bool {
		lines := strings.Split(in.Must(t, "stats", "--no-stream", "busy"), "\n")
		if len(lines) != 3 {
			t.Fatalf("stats shows\n%s", strings.Join(lines, "\n"))
		}
		primary, idle := strings.Fields(lines[1]), strings.Fields(lines[2])
		if primary[1] != "primary" || idle[1] != "idle" || !strings.HasSuffix(lines[1], "/ 4096") || !strings.HasSuffix(lines[2], "/ 50") || !strings.Contains(lines[1], "/ 64 MiB") {
			t.Fatalf("stats shows\n%s", strings.Join(lines, "\n"))
		}
		busy, err := strconv.ParseFloat(primary[2], 64)
		return err == nil && busy > 10
	})
	if all := in.Must(t, "stats", "--no-stream"); !strings.Contains(all, "busy") || !strings.Contains(all, "other") {
		t.Errorf("stats of all shows\n%s", all)
	}
	refused(t, in.Agbox(t, "stats", "no-such-box"), 3, "no-such-box")
	live := in.Start(t, "stats", "-o", "json", "other")
	harness.Eventually(t, "the live figures come again", func() bool {
		return strings.Count(live.Stdout.String(), `"memory_bytes"`) >= 2
	})
	in.Must(t, "rm", "-f", "other")
	if out := live.Wait(t).Want(t, 0).Stdout; !strings.Contains(out, `"pids"`) {
		t.Errorf("the live figures are\n%s", out)
	}
}
