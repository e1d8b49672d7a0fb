package e2e

import (
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/agbox/agbox/e2e/internal/harness"
)

// allowed are the capabilities that a sandbox may have inside, with their numbers in
// capability.h of the kernel.
var allowed = map[string]uint{
	"CHOWN": 0, "DAC_OVERRIDE": 1, "FOWNER": 3, "FSETID": 4, "KILL": 5,
	"SETGID": 6, "SETUID": 7, "NET_BIND_SERVICE": 10, "SETFCAP": 31,
}

func TestASandboxIsSafeByDefault(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	box := in.Create(t, "demo", harness.ImageDebian)
	inside := func(t *testing.T, script string) string {
		t.Helper()
		return in.Must(t, "exec", "demo", "--", "bash", "-c", script)
	}
	t.Run("rights", func(t *testing.T) {
		for _, process := range []string{"self", "1"} {
			wantConfined(t, inside(t, "cat /proc/"+process+"/status"))
		}
		for _, forbidden := range []string{
			"mknod /tmp/disk b 8 0", "mount -t tmpfs none /mnt", "chroot / true", "ip link set lo down", "hostname other",
			"date -s 2000-01-01", "echo 1 >/proc/sys/kernel/panic", "echo b >/proc/sysrq-trigger", "cat /proc/1/environ", "cat /proc/1/mem",
		} {
			if in.Agbox(t, "exec", "demo", "--", "bash", "-c", forbidden).Code == 0 {
				t.Errorf("%q is possible", forbidden)
			}
		}
	})
	t.Run("namespaces", func(t *testing.T) {
		for _, kind := range []string{"mnt", "pid", "net", "ipc", "uts", "cgroup"} {
			host, err := os.Readlink("/proc/self/ns/" + kind)
			if err != nil {
				t.Fatal(err)
			}
			if ours := inside(t, "readlink /proc/self/ns/"+kind); ours == host || ours == "" {
				t.Errorf("the %s namespace is %q, and the host's is %q", kind, ours, host)
			}
		}
	})
	t.Run("processes", func(t *testing.T) {
		limit := inside(t, "cat /sys/fs/cgroup/pids.max 2>/dev/null || cat /sys/fs/cgroup/pids/pids.max")
		if n, err := strconv.Atoi(limit); err != nil || n < 1 || n > 4096 {
			t.Errorf("the limit of processes is %q", limit)
		}
	})
	t.Run("devices", func(t *testing.T) {
		if found := inside(t, "find /dev -type b; ls -d /dev/mem /dev/kmsg /dev/kvm /dev/fuse /dev/dri 2>/dev/null || true"); found != "" {
			t.Errorf("there are devices: %s", found)
		}
	})
	t.Run("sockets", func(t *testing.T) {
		if found := inside(t, "find / -xdev -type s 2>/dev/null; ls -d /run/docker.sock /var/run/docker.sock /run/containerd 2>/dev/null || true"); found != "" {
			t.Errorf("there are sockets: %s", found)
		}
	})
	t.Run("mounts", func(t *testing.T) { wantOwnMountsOnly(t, in, box) })
	t.Run("supervisor", func(t *testing.T) {
		for _, file := range []string{"/.agbox/init", "/.agbox/boot.pb"} {
			in.Agbox(t, "exec", "demo", "--", "bash", "-c", "echo x >"+file).Want(t, 1)
			in.Agbox(t, "exec", "demo", "--", "rm", "-f", file).Want(t, 1)
		}
	})
}

// wantConfined reads /proc/PID/status.
func wantConfined(t *testing.T, status string) {
	t.Helper()
	field := make(map[string]string)
	for line := range strings.Lines(status) {
		key, value, _ := strings.Cut(line, ":")
		field[key] = strings.TrimSpace(value)
	}
	var bounding uint64
	for _, bit := range allowed {
		bounding |= 1 << bit
	}
	for _, set := range []string{"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"} {
		bits, err := strconv.ParseUint(field[set], 16, 64)
		if err != nil {
			t.Fatal(err)
		}
		if bits&^bounding != 0 || set == "CapBnd" && bits != bounding {
			t.Errorf("%s of %s is %016x, allowed are %016x", set, field["Name"], bits, bounding)
		}
	}
	if field["NoNewPrivs"] != "1" || field["Seccomp"] != "2" {
		t.Errorf("%s has NoNewPrivs %s and Seccomp %s, want 1 and 2", field["Name"], field["NoNewPrivs"], field["Seccomp"])
	}
}

// wantOwnMountsOnly checks that a sandbox has only those mounts of the host that the
// engine always makes and that the supervisor needs.
func wantOwnMountsOnly(t *testing.T, in *install, box string) {
	t.Helper()
	host := in.primary(t, box).inspected.HostConfig
	if host.Privileged || len(host.Binds) != 0 || len(host.Devices) != 0 || len(host.DeviceRequests) != 0 || len(host.PortBindings) != 0 {
		t.Errorf("the primary is privileged (%v), or has binds %v, devices %v %v or ports %v",
			host.Privileged, host.Binds, host.Devices, host.DeviceRequests, host.PortBindings)
	}
	writable := map[string]bool{"/.agbox/link": true, "/var/log/agents-sandbox": true}
	readOnly := map[string]bool{"/.agbox/init": true, "/.agbox/boot.pb": true}
	for _, m := range host.Mounts {
		if !strings.HasPrefix(m.Source, in.Home+"/data/") || !writable[m.Target] && !(readOnly[m.Target] && m.ReadOnly) {
			t.Errorf("%s of the host is mounted on %s (read-only: %v)", m.Source, m.Target, m.ReadOnly)
		}
	}
	// Secrets of the install are not accessible.
	text := in.Must(t, "exec", "demo", "--", "cat", "/proc/self/mountinfo")
	if strings.Contains(text, "ids.db") || strings.Contains(text, "docker.sock") {
		t.Errorf("the mounts are\n%s", text)
	}
}
