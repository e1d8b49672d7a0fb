package attacks

import (
	"context"
	"fmt"
	"net"
	"os"
	"testing"

	"github.com/docker/docker/api/types/network"

	"github.com/agbox/agbox/e2e/internal/harness"
)

// probe prints "reached" if a TCP port, a name or an abstract socket answers within a few
// seconds.
const probe = `
use Socket; my ($kind, $to, $port) = @ARGV; alarm 3; $SIG{ALRM} = sub { print "silent"; exit };
if ($kind eq "name") { print gethostbyname($to) ? "reached" : "unknown"; exit }
if ($kind eq "abstract") { socket(S, AF_UNIX, SOCK_STREAM, 0) or die; print connect(S, sockaddr_un("\0$to")) ? "reached" : "refused"; exit }
socket(S, AF_INET, SOCK_STREAM, 0) or die; print connect(S, sockaddr_in($port, inet_aton($to))) ? "reached" : "refused";
`

// flood tries 10,000 connections, 50 at a time, each for 50 ms, and prints how many were made.
const flood = `
use Socket; use Fcntl; my $to = sockaddr_in(80, inet_aton($ARGV[0])); my $made = 0;
for (1..200) {
	my @all;
	for (1..50) { socket(my $s, AF_INET, SOCK_STREAM, 0) or die; fcntl($s, F_SETFL, O_NONBLOCK); connect($s, $to); push @all, $s }
	select(undef, undef, undef, 0.05);
	for my $s (@all) { $made++ if getpeername($s); close $s }
}
print $made;
`

// acceptAll listens on port 80.
const acceptAll = `use Socket; socket(S, AF_INET, SOCK_STREAM, 0); bind(S, sockaddr_in(80, INADDR_ANY)) or die; listen(S, 9); while (accept(C, S)) { close C }`

func TestASandboxDoesNotReachItsNeighbours(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	own := in.Create(t, "box", harness.ImageDebian)
	in.Create(t, "other", harness.ImageDebian, "--hostname", "other-host", "--", "perl", "-e", acceptAll)
	address, networkID, name, boxID := "", "", "", ""
	for _, c := range in.Inventory(t).Containers {
		seen, err := harness.DockerAPI.ContainerInspect(harness.Bounded(t), c.ID)
		if err != nil {
			t.Fatal(err)
		}
		if c.Identity.SandboxID == own {
			boxID = c.ID
			continue
		}
		name = c.Name
		for _, endpoint := range seen.NetworkSettings.Networks {
			address, networkID = endpoint.IPAddress, endpoint.NetworkID
		}
	}
	try := func(from string, args ...string) string {
		return in.Must(t, append([]string{"exec", "-e", "RES_OPTIONS=timeout:1 attempts:1", from, "--", "perl", "-e", probe}, args...)...)
	}
	harness.Eventually(t, "the other sandbox listens", func() bool { return try("other", "tcp", address, "80") == "reached" })

	t.Run("abstract", func(t *testing.T) {
		Row(t, 87, "an abstract socket of the host")
		abstract := fmt.Sprintf("agbox-attack-%d", os.Getpid())
		lis, err := net.Listen("unix", "@"+abstract)
		if err != nil {
			t.Fatal(err)
		}
		defer lis.Close()
		if got := try("box", "abstract", abstract); got != "refused" {
			t.Errorf("it is %s", got)
		}
	})
	Row(t, 88, "addresses and ports of another sandbox")
	Row(t, 89, "names of another sandbox")
	names := []string{name, "other", "other-host"}
	if got := try("box", "tcp", address, "80"); got == "reached" {
		t.Errorf("port 80 of the other sandbox is %s", got)
	}
	for _, name := range names {
		if got := try("box", "name", name); got == "reached" {
			t.Errorf("the name %s is %s", name, got)
		}
	}
	// While the engine makes a network, its own rules between networks are away for a moment.
	over := make(chan struct{})
	churned := make(chan error, 1)
	go func() { churned <- churn(t.Context(), over) }()
	made := in.Must(t, "exec", "box", "--", "perl", "-e", flood, address)
	close(over)
	if err := <-churned; err != nil || made != "0" {
		t.Errorf("%s connections to the other sandbox were made while networks came and went (%v)", made, err)
	}
	// On one network, both are reached: so it is the network that keeps them apart.
	if err := harness.DockerAPI.NetworkConnect(harness.Bounded(t), networkID, boxID, nil); err != nil {
		t.Fatal(err)
	}
	if got := try("box", "tcp", address, "80"); got != "reached" {
		t.Errorf("on one network, port 80 is %s", got)
	}
	if got := try("box", "name", name); got != "reached" {
		t.Errorf("on one network, the name is %s", got)
	}
	if err := harness.DockerAPI.NetworkDisconnect(harness.Bounded(t), networkID, boxID, true); err != nil {
		t.Fatal(err)
	}
}

// churn makes networks of the engine and removes them until over is closed.
func churn(ctx context.Context, over <-chan struct{}) error {
	for i := 0; ; i++ {
		select {
		case <-over:
			return nil
		default:
		}
		made, err := harness.DockerAPI.NetworkCreate(ctx, fmt.Sprintf("agbox-churn-%d-%d", os.Getpid(), i), network.CreateOptions{})
		if err != nil {
			return err
		}
		if err := harness.DockerAPI.NetworkRemove(ctx, made.ID); err != nil {
			return err
		}
	}
}
