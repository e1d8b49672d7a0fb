package attacks

import (
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/agbox/agbox/e2e/internal/harness"
)

// call is a system call that root in a sandbox tries. Its arguments are such that it
// changes nothing where it is allowed.
type call struct {
	name   string
	number uintptr
	// args are the arguments in Perl. A string is passed as a pointer.
	args string
	// rare is true if the kernel may be built without the call.
	rare bool
}

// callAttacks are attacks on the host's kernel by number in ATTACKS.md.
var callAttacks = []struct {
	number int
	words  string
	calls  []call
}{
	{19, "namespaces of its own or of the host", []call{
		{"unshare of users", unix.SYS_UNSHARE, "0x10000000", true}, {"unshare of mounts", unix.SYS_UNSHARE, "0x00020000", false},
		{"setns", unix.SYS_SETNS, "-1, 0", false},
	}},
	{20, "mounts, old and new calls", []call{
		{"mount", unix.SYS_MOUNT, "0, 0, 0, 0, 0", false}, {"umount2", unix.SYS_UMOUNT2, `"/none", 0`, false},
		{"pivot_root", unix.SYS_PIVOT_ROOT, `"/none", "/none"`, false}, {"chroot", unix.SYS_CHROOT, `"/none"`, false},
		{"fsopen", unix.SYS_FSOPEN, `"none", 0`, false}, {"move_mount", unix.SYS_MOVE_MOUNT, `-1, "", -1, "", 0`, false},
		{"open_tree", unix.SYS_OPEN_TREE, `-1, "none", 0`, false},
	}},
	{21, "programs and watches in the kernel: bpf, perf, userfaultfd, fanotify", []call{
		{"bpf", unix.SYS_BPF, "0, 0, 0", true}, {"perf_event_open", unix.SYS_PERF_EVENT_OPEN, "0, 0, -1, -1, 0", true},
		{"userfaultfd", unix.SYS_USERFAULTFD, "0x40000000", true}, {"fanotify_init", unix.SYS_FANOTIFY_INIT, "0, 0", true},
	}},
	{22, "keyrings, which the kernel does not divide by container", []call{
		{"keyctl", unix.SYS_KEYCTL, "0, -4, 0", true}, {"add_key", unix.SYS_ADD_KEY, `0, 0, 0, 0, 0`, true},
		{"request_key", unix.SYS_REQUEST_KEY, "0, 0, 0, 0", true},
	}},
	{23, "kernel modules, another kernel, reboot, swap", []call{
		{"init_module", unix.SYS_INIT_MODULE, `0, 0, ""`, true}, {"finit_module", unix.SYS_FINIT_MODULE, `-1, "", 0`, true},
		{"delete_module", unix.SYS_DELETE_MODULE, `"agbox_none", 0`, true}, {"kexec_load", unix.SYS_KEXEC_LOAD, "0, 0, 0, 0xfff0", true},
		{"reboot", unix.SYS_REBOOT, "0, 0, 0, 0", false}, {"swapon", unix.SYS_SWAPON, `"/none", 0`, true}, {"acct", unix.SYS_ACCT, `"/none"`, true},
	}},
	{24, "a file of the host by its handle", []call{
		{"open_by_handle_at", unix.SYS_OPEN_BY_HANDLE_AT, "-1, 0, 0", true},
	}},
	{25, "clock, host name and log of the kernel", []call{
		{"settimeofday", unix.SYS_SETTIMEOFDAY, "0, 0", false}, {"clock_settime", unix.SYS_CLOCK_SETTIME, "0, 0", false},
		{"sethostname", unix.SYS_SETHOSTNAME, "0, -1", false}, {"syslog", unix.SYS_SYSLOG, "10, 0, 0", true},
	}},
	{26, "PID 1 is traced", []call{
		{"ptrace", unix.SYS_PTRACE, "0x4206, 1, 0, 0", false}, // PTRACE_SEIZE, which does not stop it
	}},
	{27, "raw packets, on IP and on the link", []call{
		{"raw socket", unix.SYS_SOCKET, "2, 3, 1", false}, {"packet socket", unix.SYS_SOCKET, "17, 3, 0", true},
	}},
	{28, "devices are made", []call{
		{"block device", unix.SYS_MKNODAT, `-100, "/tmp/block$$", 060600, 0x800`, false}, {"character device", unix.SYS_MKNODAT, `-100, "/tmp/char$$", 020600, 0x101`, false},
	}},
	{29, "more rights and priority than root in a sandbox has", []call{
		{"capset", unix.SYS_CAPSET, `pack("LL", 0x20080522, 0), pack("L6", 1 << 21, 1 << 21, 0, 0, 0, 0)`, false}, // CAP_SYS_ADMIN
		{"setpriority", unix.SYS_SETPRIORITY, "0, 0, -20", false}, {"personality", unix.SYS_PERSONALITY, "0x0040000", false},
	}},
}

// withoutWalls are flags that let all of these calls reach the kernel. A host may lack some
// capabilities, so --privileged would not work everywhere.
func withoutWalls() []string {
	flags := []string{"--seccomp-unconfined"}
	for _, capability := range []string{
		"SYS_ADMIN", "SYS_CHROOT", "SYS_PTRACE", "SYS_MODULE", "SYS_BOOT", "SYS_TIME", "SYS_NICE", "SYS_PACCT", "SYSLOG", "NET_RAW", "MKNOD", "DAC_READ_SEARCH",
	} {
		flags = append(flags, "--cap-add", capability)
	}
	return flags
}

// script tries all calls, each in a process of its own, and prints how each ended.
func script() string {
	var b strings.Builder
	b.WriteString(`$| = 1; sub try { my ($name, @call) = @_; my $kid = fork; if (!$kid) { $! = 0; my $r = syscall(shift @call, @call);
		printf "%s: %s\n", $name, $r >= 0 ? "allowed" : $!{EPERM} || $!{EACCES} ? "refused" : $!{ENOSYS} ? "missing" : "reached"; POSIX::_exit(0) } waitpid($kid, 0) }` + "\n")
	for _, attack := range callAttacks {
		for _, c := range attack.calls {
			fmt.Fprintf(&b, "try(%q, %d, %s);\n", c.name, c.number, c.args)
		}
	}
	return b.String()
}

// outcomes are the lines "name: outcome" that an attack printed.
func outcomes(text string) map[string]string {
	all := make(map[string]string)
	for line := range strings.Lines(text) {
		name, outcome, _ := strings.Cut(strings.TrimSpace(line), ": ")
		all[name] = outcome
	}
	return all
}

func TestCallsThatReachTheHostThroughTheKernelAreRefused(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	in.Create(t, "box", harness.ImageDebian)
	in.Create(t, "open", harness.ImageDebian, withoutWalls()...)
	held := outcomes(in.Must(t, "exec", "box", "--", "perl", "-MPOSIX", "-MErrno", "-e", script()))
	// Without the walls the kernel examines the arguments. That shows that it is not they
	// that are refused.
	open := outcomes(in.Must(t, "exec", "open", "--", "perl", "-MPOSIX", "-MErrno", "-e", script()))
	for _, attack := range callAttacks {
		t.Run(attack.words, func(t *testing.T) {
			Row(t, attack.number, attack.words)
			for _, c := range attack.calls {
				if got := held[c.name]; got != "refused" && got != "missing" {
					t.Errorf("%s is %q", c.name, got)
				}
				// In a user namespace the kernel itself refuses some to root of the sandbox.
				if got := open[c.name]; *placeName != inNamespaces && got != "allowed" && got != "reached" && !(c.rare && got == "missing") {
					t.Errorf("%s is %q without the walls, so it is no attack", c.name, got)
				}
			}
		})
	}
}
