package attacks

import (
	"fmt"
	"strings"
	"testing"

	"github.com/docker/docker/api/types/container"
	"golang.org/x/sys/unix"

	"github.com/agbox/agbox/e2e/internal/harness"
)

// signalPID1 sends PID 1 and each of its threads every signal in each way that root has. At
// last it does so when the kernel queues no more signals for root: it then sends them
// without sender and code.
const signalPID1 = `
use POSIX ":signal_h"; $| = 1;
my @threads = map { m{(\d+)$} } glob "/proc/1/task/*";
sub storm {
	for my $sig (1 .. 64) {
		kill $sig, 1;
		for my $code (-1, -2, -3, -4, -5, -7, -60) { syscall(QUEUE, 1, $sig, pack("i4x112", $sig, 0, $code, 0)) }
		for my $tid (@threads) {
			syscall(TKILL, 1, $tid, $sig);
			syscall(QUEUETO, 1, $tid, $sig, pack("i4x112", $sig, 0, -1, 0));
		}
	}
}
storm() for 1 .. 20;
sigprocmask(SIG_BLOCK, POSIX::SigSet->new(40));
sub full { open my $f, "<", "/proc/self/status"; local $/; <$f> =~ /^SigQ:\s+(\d+)\/(\d+)/m; return $1 >= $2 }
until (full()) { kill 40, $$ for 1 .. 100 }
storm();
print "sent\n";
`

// limitPID1 sets each limit of PID 1 to nothing, through each of its threads.
const limitPID1 = `
for my $tid (1, map { m{(\d+)$} } glob "/proc/1/task/*") {
	for my $what (0 .. 15) { print "limit $what is set\n" if syscall(PRLIMIT, my $t = $tid, my $w = $what, my $none = pack("Q2", 0, 0), 0) == 0 }
}
print "tried\n";
`

// manySignals is the name of the attack with signalPID1.
const manySignals = "signals"

// withNumbers puts the numbers of system calls into a program in Perl.
func withNumbers(program string) string {
	return fmt.Sprintf("sub QUEUE() { %d } sub QUEUETO() { %d } sub TKILL() { %d } sub PRLIMIT() { %d }\n",
		unix.SYS_RT_SIGQUEUEINFO, unix.SYS_RT_TGSIGQUEUEINFO, unix.SYS_TGKILL, unix.SYS_PRLIMIT64) + program
}

func TestRootInsideDoesNotStopItsSandboxBySignalsOrLimits(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	box := in.Create(t, "box", harness.ImageDebian, "--ulimit", "sigpending="+fewSignals)
	job := in.Must(t, "exec", "-d", box, "--", "sh", "-c", "trap 'exit 7' TERM; echo begun; while :; do sleep 0.1; done")
	pid, _ := firstProcess(t, in)
	id := in.Inventory(t).Containers[0].ID
	for _, attack := range []struct{ name, words, program, says string }{
		{manySignals, "SIGTERM and every other signal for PID 1, with forged senders and codes", signalPID1, "sent"},
		{"limits", "the limits of PID 1 are set to nothing", limitPID1, "tried"},
	} {
		t.Run(attack.name, func(t *testing.T) {
			Row(t, 126, attack.words)
			if said := in.Must(t, "exec", box, "--", "perl", "-e", withNumbers(attack.program)); said != attack.says {
				t.Errorf("the attack says %q", said)
			}
			if now, _ := firstProcess(t, in); now != pid {
				t.Errorf("PID 1 was process %d and is %d", pid, now)
			}
			if said := in.Must(t, "exec", box, "--", "cat", "/proc/1/comm"); said != "init" {
				t.Errorf("a command says %q", said)
			}
			if said := in.Must(t, "ps", "-q"); said != job {
				t.Errorf("these commands run: %q", said)
			}
		})
	}

	// The engine stops it also without a daemon: with SIGTERM, and time to write the status.
	in.Must(t, "daemon", "stop")
	if err := harness.DockerAPI.ContainerStop(harness.Bounded(t), id, container.StopOptions{}); err != nil {
		t.Fatal(err)
	}
	in.Must(t, "daemon", "start")
	if r := in.Agbox(t, "wait", job); strings.TrimSpace(r.Stdout) != "7" {
		t.Errorf("the end of the command is %q, %s", r.Stdout, r.Stderr)
	}
}
