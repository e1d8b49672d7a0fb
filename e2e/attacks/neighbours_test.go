package attacks

import (
	"fmt"
	"net"
	"os"
	"testing"

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

// acceptAll listens on port 80.
const acceptAll = `use Socket; socket(S, AF_INET, SOCK_STREAM, 0); bind(S, sockaddr_in(80, INADDR_ANY)) or die; listen(S, 9); while (accept(C, S)) { close C }`

func TestASandboxDoesNotReachItsNeighbours(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	own := in.Create(t, "box", harness.ImageDebian)
	in.Create(t, "other", harness.ImageDebian, "--hostname", "other-host", "--", "perl", "-e", acceptAll)
	address, network, name, boxID := "", "", "", ""
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
			address, network = endpoint.IPAddress, endpoint.NetworkID
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
	// On one network, both are reached: so it is the network that keeps them apart.
	if err := harness.DockerAPI.NetworkConnect(harness.Bounded(t), network, boxID, nil); err != nil {
		t.Fatal(err)
	}
	if got := try("box", "tcp", address, "80"); got != "reached" {
		t.Errorf("on one network, port 80 is %s", got)
	}
	if got := try("box", "name", name); got != "reached" {
		t.Errorf("on one network, the name is %s", got)
	}
	if err := harness.DockerAPI.NetworkDisconnect(harness.Bounded(t), network, boxID, true); err != nil {
		t.Fatal(err)
	}
}
