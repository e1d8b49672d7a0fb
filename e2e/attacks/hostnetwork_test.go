package attacks

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/agbox/agbox/e2e/internal/harness"
)

// attempts tries the addresses of its arguments, each "tcp|udp|broadcast ADDRESS PORT",
// and prints which ones answered. A refusal by the kernel comes at once. Only what nobody
// answers takes until the timeout.
const attempts = `
use Socket qw(:all); use IO::Socket::IP; use IO::Select;
for (@ARGV) {
  my ($how, $address, $port) = split / /;
  my %kind = $how eq "tcp" ? (Type => SOCK_STREAM, Timeout => 5) : (Type => SOCK_DGRAM);
  my ($s, $said);
  if ($how eq "broadcast") {
    $s = IO::Socket::IP->new(Proto => "udp", Type => SOCK_DGRAM, Family => AF_INET, Broadcast => 1, LocalHost => "0.0.0.0") or die $@;
    $s->send("x", 0, pack_sockaddr_in($port, inet_aton($address)));
  } else {
    $s = IO::Socket::IP->new(PeerHost => $address, PeerPort => $port, %kind);
    $s->send("x") if $s;
  }
  $s->recv($said, 99) if $s && IO::Select->new($s)->can_read($how eq "broadcast" ? 2 : 5);
  print "$_\n" if defined $said && $said ne "";
}
`

// reached returns which of the addresses answer a sandbox.
func reached(t *testing.T, in *harness.Install, box string, tries ...string) []string {
	t.Helper()
	said := in.Must(t, append([]string{"exec", box, "--", "perl", "-e", attempts}, tries...)...)
	return strings.Fields(strings.ReplaceAll(said, " ", "|"))
}

// wantReached compares what answers a sandbox.
func wantReached(t *testing.T, in *harness.Install, box string, want, tries []string) {
	t.Helper()
	var words []string
	for _, one := range want {
		words = append(words, strings.ReplaceAll(one, " ", "|"))
	}
	if got := reached(t, in, box, tries...); !slices.Equal(got, words) {
		t.Errorf("sandbox %s reaches\n%v, want\n%v", box, got, words)
	}
}

// answerOn answers by TCP on an address of the host.
func answerOn(t *testing.T, address string) (port int) {
	t.Helper()
	listener, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	answer(t, listener)
	return listener.Addr().(*net.TCPAddr).Port
}

// answer answers every connection until the end of the test.
func answer(t *testing.T, listener net.Listener) {
	var served sync.WaitGroup
	served.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Write([]byte("hello"))
			_ = conn.Close()
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		served.Wait()
	})
}

// hostService answers on one port on all addresses, by TCP and UDP, like a careless
// service of the host.
func hostService(t *testing.T) (port int) {
	t.Helper()
	port = answerOn(t, ":0")
	var served sync.WaitGroup
	packets, err := net.ListenPacket("udp4", fmt.Sprintf(":%d", port))
	if err != nil {
		t.Fatal(err)
	}
	udp := packets.(*net.UDPConn)
	raw, err := udp.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	// An answer then comes from the address that was asked.
	if err := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_PKTINFO, 1) }); err != nil {
		t.Fatal(err)
	}
	served.Go(func() {
		buffer, about := make([]byte, 16), make([]byte, 64)
		for {
			_, n, _, from, err := udp.ReadMsgUDP(buffer, about)
			if err != nil {
				return
			}
			_, _, _ = udp.WriteMsgUDP([]byte("hello"), about[:n], from)
		}
	})
	t.Cleanup(func() {
		_ = udp.Close()
		served.Wait()
	})
	return port
}

// within does something in a network namespace, named by a path.
func within(t *testing.T, namespace string, do func() error) {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	own, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = own.Close() }()
	other, err := os.Open(namespace)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Close() }()
	if err := unix.Setns(int(other.Fd()), unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
	failed := do()
	if err := unix.Setns(int(own.Fd()), unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
	if failed != nil {
		t.Fatal(failed)
	}
}

// otherMachine begins the name of the host's interface towards a machine that elsewhere made.
const otherMachine = "abm"

// elsewhere makes another machine beside the host, a network namespace, which answers by
// TCP on a link-local and on another address.
func elsewhere(t *testing.T) (linkLocal, other string, port int) {
	t.Helper()
	id := os.Getpid() % 16000
	name := fmt.Sprintf("%s%d", otherMachine, id)
	linkLocal = fmt.Sprintf("169.254.%d.%d", 64+id/256, id%256)
	near, other := fmt.Sprintf("198.18.%d.%d", id/64, id%64*4+1), fmt.Sprintf("198.18.%d.%d", id/64, id%64*4+2)
	ip := func(args ...string) {
		t.Helper()
		if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
			t.Fatalf("ip %v: %v\n%s", args, err, out)
		}
	}
	ip("netns", "add", name)
	t.Cleanup(func() { ip("netns", "del", name) })
	ip("link", "add", name, "type", "veth", "peer", "name", "inside", "netns", name)
	ip("address", "add", near+"/30", "dev", name)
	ip("link", "set", name, "up")
	ip("-n", name, "address", "add", other+"/30", "dev", "inside")
	ip("-n", name, "address", "add", linkLocal+"/32", "dev", "inside")
	ip("-n", name, "link", "set", "inside", "up")
	ip("-n", name, "route", "add", "default", "via", near)
	ip("route", "add", linkLocal+"/32", "via", other)
	// The first listener of a process finds out, for all, whether there is IPv6, by ::1.
	ip("-n", name, "link", "set", "lo", "up")
	var listener net.Listener
	within(t, "/run/netns/"+name, func() (err error) {
		listener, err = net.Listen("tcp", ":0")
		return err
	})
	answer(t, listener)
	return linkLocal, other, listener.Addr().(*net.TCPAddr).Port
}

// addresses are those of an interface of the host, of IPv4 or of IPv6.
func addresses(t *testing.T, name string, four bool) []string {
	t.Helper()
	link, err := net.InterfaceByName(name)
	if err != nil {
		t.Fatal(err)
	}
	list, err := link.Addrs()
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, one := range list {
		if p := netip.MustParsePrefix(one.String()); p.Addr().Is4() == four {
			found = append(found, p.Addr().String())
		}
	}
	return found
}

// bridge returns the host's interface in the network of a sandbox.
func bridge(t *testing.T, in *harness.Install, box string) string {
	t.Helper()
	for _, n := range in.Inventory(t).Networks {
		if n.SandboxID == box {
			return n.Interface
		}
	}
	t.Fatalf("sandbox %s has no network", box)
	return ""
}

// serve answers on port 8080 of a sandbox until it is interrupted.
func serve(t *testing.T, in *harness.Install, box string) *harness.Process {
	t.Helper()
	web := in.Start(t, "exec", box, "--", "perl", "-MIO::Socket::IP", "-e",
		`my $l = IO::Socket::IP->new(LocalPort => 8080, Listen => 5) or die $@; $| = 1; print "listening\n"; while (my $c = $l->accept) { print $c "hello"; close $c }`)
	web.AwaitOutput(t, "listening")
	return web
}

func lastWord(text string) string {
	words := strings.Fields(text)
	return words[len(words)-1]
}

// settled reports whether an interface has an address of IPv6 that the kernel has found to be
// unique. Before that it neither answers nor asks. The process is one in the interface's network,
// or "self".
func settled(t *testing.T, process, name string) bool {
	t.Helper()
	table, err := os.ReadFile(filepath.Join("/proc", process, "net/if_inet6"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(table)) {
		words := strings.Fields(line) // address, index, prefix length, scope, flags, name
		flags, err := strconv.ParseUint(words[4], 16, 32)
		if err == nil && words[5] == name && flags&unix.IFA_F_TENTATIVE == 0 {
			return true
		}
	}
	return false
}

// giveIPv6 gives the primary of a sandbox a link-local address, and waits until it can be used.
func giveIPv6(t *testing.T, in *harness.Install, box string) {
	t.Helper()
	for _, c := range in.Inventory(t).Containers {
		if c.SandboxID != box {
			continue
		}
		seen, err := harness.Engine.InspectContainer(harness.Bounded(t), c.ID)
		if err != nil {
			t.Fatal(err)
		}
		within(t, fmt.Sprintf("/proc/%d/ns/net", seen.PID), func() error {
			const settings = "/proc/sys/net/ipv6/conf/eth0/"
			return errors.Join(os.WriteFile(settings+"accept_dad", []byte("0"), 0), os.WriteFile(settings+"disable_ipv6", []byte("0"), 0))
		})
		harness.Eventually(t, "the sandbox has an address of IPv6", func() bool { return settled(t, strconv.Itoa(seen.PID), "eth0") })
	}
}
