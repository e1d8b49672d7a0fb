package attacks

import (
	"errors"
	"strings"
	"testing"

	"github.com/agbox/agbox/client"
	"github.com/agbox/agbox/e2e/internal/harness"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// impostor puts a process between the daemon and the supervisor: it listens in place of
// the supervisor and passes everything on. The supervisor refuses that, but the daemon must
// not have sent anything before. The
// process that called listen, whose pid the kernel tells, ends at once: a daemon that
// looks for it finds nobody.
const impostor = `
use Socket; use IO::Select; use IO::Handle; $| = 1; $SIG{PIPE} = "IGNORE";
my $link = "/.agbox/link";
rename("$link/guest.sock", "$link/own") unless -e "$link/own";
unlink "$link/guest.sock";
socket(my $s, PF_UNIX, SOCK_STREAM, 0) or die;
bind($s, sockaddr_un("$link/guest.sock")) or die;
chmod 0777, "$link/guest.sock"; # for a daemon that is not root
if (($ARGV[0] // "") eq "gone") { my $kid = fork; if (!$kid) { listen($s, 9); exit 0 } waitpid($kid, 0) }
else { listen($s, 9) or die }
print "listens\n";
while (accept(my $c, $s)) {
  print "linked\n";
  next if fork;
  socket(my $up, PF_UNIX, SOCK_STREAM, 0); connect($up, sockaddr_un("$link/own")) or exit 1;
  my $sel = IO::Select->new($c, $up);
  while (my @ready = $sel->can_read) { for my $r (@ready) {
    my $n = sysread($r, my $buf, 65536); exit 0 unless $n;
    my $to = $r == $c ? $up : $c; my $done = 0;
    while ($done < $n) { my $w = syswrite($to, $buf, $n - $done, $done); exit 0 unless $w; $done += $w }
  } }
  exit 0;
}
`

// wantUntrusted wants an exec to be refused because the supervisor was replaced.
func wantUntrusted(t *testing.T, c *client.Client, box string) {
	t.Helper()
	_, err := c.CreateExec(harness.Bounded(t), &agboxv1.CreateExecRequest{SandboxId: box, Command: []string{"true"}})
	var e *client.Error
	if !errors.As(err, &e) || e.Reason != agboxv1.ErrorReason_SUPERVISOR_TAMPERED.String() {
		t.Errorf("an exec gives %v, want SUPERVISOR_TAMPERED", err)
	}
}

func TestAProcessBetweenTheDaemonAndTheSupervisorIsRefused(t *testing.T) {
	Row(t, 7, "a process of the sandbox listens for the supervisor and passes calls on")
	Row(t, 7, "the same, and the process that called listen has ended")
	in := harness.New(t)
	c := in.Client(t)
	other := in.Create(t, "other", harness.ImageBusybox)
	for _, how := range []string{"alive", "gone"} {
		box := in.Create(t, how, harness.ImageDebian)
		p := in.Start(t, "exec", box, "--", "perl", "-e", impostor, how)
		p.AwaitOutput(t, "listens")
		in.KillDaemon(t)
		in.Must(t, "daemon", "start")
		wantUntrusted(t, c, box)
		harness.Eventually(t, "the sandbox is shown as tampered with", func() bool {
			out, err := c.GetSandbox(harness.Bounded(t), box)
			return err == nil && out.GetSandbox().GetDegraded() && strings.Contains(out.GetSandbox().GetDegradedReason(), "can no longer be trusted")
		})
		if said := in.Agbox(t, "doctor").Stdout; !strings.Contains(said, "tampered") {
			t.Errorf("%s: doctor says %q", how, said)
		}
		if said := in.Must(t, "exec", other, "--", "echo", "well"); said != "well" {
			t.Errorf("%s: the neighbour says %q", how, said)
		}
		in.Must(t, "rm", "--wait", "-f", box)
		p.Wait(t)
	}
}
