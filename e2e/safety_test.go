package e2e

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/agbox/agbox/e2e/internal/harness"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// createNamed makes a sandbox from a file and waits until it is READY.
func (in *install) createNamed(t *testing.T, name, text string) {
	t.Helper()
	in.Must(t, "daemon", "start")
	c := in.Client(t)
	box, err := c.CreateSandbox(harness.Bounded(t), &agboxv1.CreateSandboxRequest{ConfigYaml: []byte("name: " + name + "\n" + text)})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.WaitReady(harness.Bounded(t), box.GetSandboxId()); err != nil {
		t.Fatal(err)
	}
}

// busyboxMount tests busybox's mount, which the other image lacks.
const busyboxMount = "mkdir -p /m; mount -t tmpfs none /m 2>/dev/null && echo mounted || echo refused"

const debian = "image: " + harness.ImageDebian + "\n"

// TestEachSafeDefaultHoldsInsideAndOnlyItsNameLoosensIt runs each test twice: in a
// sandbox with the defaults, and in one whose spec disables only that default.
func TestEachSafeDefaultHoldsInsideAndOnlyItsNameLoosensIt(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	in.createNamed(t, "plain", debian)
	in.createNamed(t, "small", "image: "+harness.ImageBusybox+"\n") // has mount
	status := func(key string) string { return `sed -n 's/^` + key + `:[[:space:]]*//p' /proc/self/status` }
	for i, c := range []struct {
		name, look, want string
		// security is the field that disables it. The test then prints the word loose.
		security, loose string
		// shown is the text of inspect then.
		shown string
	}{
		{"all but a few capabilities are dropped", status("CapBnd"), "00000000800004fb",
			"cap_add: [SYS_PTRACE]", "00000000800804fb", "primary: capability SYS_PTRACE is added"},
		{"the few can be dropped too", status("CapEff"), "00000000800004fb", "cap_drop: [SETFCAP]", "00000000000004fb", ""},
		{"nothing gains privileges", status("NoNewPrivs"), "1", "allow_new_privileges: true", "0", "primary: programs may gain new privileges"},
		{"system calls are filtered", status("Seccomp"), "2", "seccomp_unconfined: true", "0", "primary: system calls are not filtered"},
		{"devices cannot be made", "mknod /tmp/d c 1 3 2>/dev/null && echo made || echo refused", "refused",
			"cap_add: [MKNOD]", "made", "primary: capability MKNOD is added"},
		{"nothing can be mounted", busyboxMount, "refused",
			"cap_add: [SYS_ADMIN]", "mounted", "primary: capability SYS_ADMIN is added"},
		{"raw packets cannot be sent", `perl -MSocket -e 'print socket(S, AF_INET, SOCK_RAW, 1) ? "open" : "refused"'`, "refused",
			"cap_add: [NET_RAW]", "open", "primary: capability NET_RAW is added"},
		{"devices of the host are not there", "test -e /dev/fuse && echo there || echo missing", "missing",
			"devices: [/dev/fuse]", "there", "primary: devices of the host: /dev/fuse"},
		{"the root can be written, and need not be", "touch /file 2>/dev/null && echo written || echo refused", "written",
			"read_only_root: true", "refused", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			plain, image := "plain", debian
			if c.look == busyboxMount {
				plain, image = "small", "image: "+harness.ImageBusybox+"\n"
			}
			harness.WantSame(t, "by default", in.Must(t, "exec", plain, "--", "sh", "-c", c.look), c.want)
			box := "loose" + string(rune('a'+i))
			in.createNamed(t, box, image+"security: {"+c.security+"}\n")
			harness.WantSame(t, "loosened", in.Must(t, "exec", box, "--", "sh", "-c", c.look), c.loose)
			if got := in.inspect(t, box).GetLoosened(); strings.Join(got, "\n") != c.shown {
				t.Errorf("inspect shows as loosened %q, want %q", got, c.shown)
			}
			in.Must(t, "rm", "-f", box)
		})
	}
	if got := in.inspect(t, "plain").GetLoosened(); len(got) != 0 {
		t.Errorf("inspect shows as loosened %q, want nothing", got)
	}
	looks := func(look string) string { return in.Must(t, "exec", "plain", "--", "bash", "-c", look) }
	for _, ns := range []string{"pid", "net", "ipc", "uts", "mnt", "cgroup"} {
		host, err := os.Readlink("/proc/self/ns/" + ns)
		if err != nil {
			t.Fatal(err)
		}
		if inside := looks("readlink /proc/self/ns/" + ns); inside == host || inside == "" {
			t.Errorf("the namespace %s is that of the host: %s", ns, inside)
		}
	}
	harness.WantSame(t, "devices", looks("ls /dev | grep -v core | tr '\\n' ' '"), "fd full mqueue null ptmx pts random shm stderr stdin stdout tty urandom zero")
	harness.WantSame(t, "engine's socket", looks("ls /var/run/docker.sock /run/docker.sock /run/containerd 2>/dev/null; echo none"), "none")
	for _, path := range []string{"/sys/kernel", "/proc/sys/kernel/panic", "/proc/sysrq-trigger", "/proc/irq"} {
		harness.WantSame(t, path, looks("test -w "+path+" && echo writable || echo refused"), "refused")
	}
	// Package managers can do their work.
	harness.WantSame(t, "packages", looks("cd /tmp; touch f && chown agent:agent f && chmod 4755 f && install -o agent -m 4755 f g && "+
		"su nobody -s /bin/sh -c 'id -un' && dpkg -l >/dev/null && stat -c %a g"), "nobody\n4755")
}

func TestServicesHaveTheSafeDefaultsToo(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	const look = `command: [sh, -c, "cp /proc/self/status /shared/%; ((: >>/proc/sys/kernel/panic) && echo w; mknod /tmp/d c 1 3 && echo m; cat /sys/fs/cgroup/pids/pids.max /sys/fs/cgroup/pids.max 2>/dev/null) >/shared/%1; mv /shared/%1 /shared/%2; exec sleep 1000000"]
    volumes: [{name: shared, target: /shared}]
`
	in.createNamed(t, "demo", "image: "+harness.ImageBusybox+`
volumes: [{name: shared, target: /shared}]
services:
  - name: plain
    image: agbox-test/busybox:latest
    `+strings.ReplaceAll(look, "%", "plain")+`  - name: loose
    image: agbox-test/busybox:latest
    security: {cap_add: [MKNOD], allow_new_privileges: true, seccomp_unconfined: true}
    pids_limit: 77
    `+strings.ReplaceAll(look, "%", "loose"))
	read := func(name string) string { return in.Must(t, "exec", "demo", "--", "cat", "/shared/"+name) }
	for name, lines := range map[string][]string{
		"plain": {"CapBnd:\t00000000800004fb", "NoNewPrivs:\t1", "Seccomp:\t2"},
		"loose": {"CapBnd:\t00000000880004fb", "NoNewPrivs:\t0", "Seccomp:\t0"},
	} {
		harness.Eventually(t, "service "+name+" has looked", func() bool {
			return in.Agbox(t, "exec", "demo", "--", "ls", "/shared/"+name+"2").Code == 0 && read(name+"2") != ""
		})
		for _, line := range lines {
			if !slices.Contains(strings.Split(read(name), "\n"), line) {
				t.Errorf("service %s: the kernel does not say %q, but:\n%s", name, line, read(name))
			}
		}
	}
	harness.WantSame(t, "plain", read("plain2"), "4096")
	harness.WantSame(t, "loose", read("loose2"), "m\n77")
	harness.WantSame(t, "loosened", strings.Join(in.inspect(t, "demo").GetLoosened(), "; "),
		"service loose: capability MKNOD is added; service loose: programs may gain new privileges; service loose: system calls are not filtered")
}
