package fence

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/google/nftables"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/agbox/agbox/internal/fault"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// Some tests need a network namespace of their own, or no rights. The test program then
// runs itself with the name of a child in this variable.
const childVariable = "AGBOX_FENCE_TEST_CHILD"

// children are the programs. An error that one returns fails the test.
var children = map[string]func() error{
	"life":   liveInNamespace,
	"nobody": withoutRights,
	"many":   manyAsk,
}

func TestMain(m *testing.M) {
	if name := os.Getenv(childVariable); name != "" {
		if err := children[name](); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func runChild(t *testing.T, name string, attr *syscall.SysProcAttr) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe")
	cmd.Env = append(os.Environ(), childVariable+"="+name)
	cmd.SysProcAttr = attr
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("child %s: %v\n%s", name, err, out)
	}
}

func TestRulesStandUntilTheirInterfaceIsGone(t *testing.T) { inNamespace(t, "life") }

func TestTheRulesAreReadOnceForAllWhoWait(t *testing.T) { inNamespace(t, "many") }

// inNamespace runs a program in a network namespace of its own.
func inNamespace(t *testing.T, program string) {
	t.Parallel()
	attr := &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET}
	if os.Getuid() != 0 { // root needs no user namespace, which some hosts forbid
		attr.Cloneflags |= unix.CLONE_NEWUSER
		attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
	runChild(t, program, attr)
}

func TestWithoutRightsNothingIsClaimed(t *testing.T) {
	t.Parallel()
	attr := new(syscall.SysProcAttr)
	if os.Getuid() == 0 {
		attr.Credential = &syscall.Credential{Uid: 65534, Gid: 65534}
	}
	runChild(t, "nobody", attr)
}

func withoutRights() error {
	f := New("one", none)
	_, gaps := f.Gaps([]string{"lo"})
	for what, err := range map[string]error{"Able": f.Able(), "Gaps": gaps, "Raise": f.Raise([]string{"lo"}), "Trim": f.Trim(), "Tidy": f.Tidy(), "Clear": f.Clear()} {
		if err := wantUnavailable(err, "agboxd has no right"); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
	}
	return nil
}

func none() []netip.Addr { return nil }

// manyAsk has many ask while one reads: they share the next reading, which sees what was changed before they asked.
func manyAsk() error {
	const many = 50
	if err := bridges(unix.SIOCBRADDBR, "br-a", "br-b"); err != nil {
		return err
	}
	var reads atomic.Int32
	release := make(chan struct{})
	f := New("one", func() []netip.Addr {
		if reads.Add(1) == 1 {
			<-release
		}
		return nil
	})
	if err := New("one", none).Raise([]string{"br-a"}); err != nil {
		return err
	}
	var asking errgroup.Group
	ask := func() error {
		if gaps, err := f.Gaps([]string{"br-a", "br-b"}); err != nil || len(gaps) > 0 {
			return fmt.Errorf("the gaps are %v, %w", gaps, err)
		}
		return nil
	}
	asking.Go(func() error {
		_, err := f.Gaps(nil)
		return err
	})
	for reads.Load() == 0 {
		time.Sleep(time.Millisecond)
	}
	if err := New("one", none).Raise([]string{"br-b"}); err != nil { // as another daemon
		return err
	}
	for range many {
		asking.Go(ask)
	}
	for stacks := make([]byte, 1<<20); strings.Count(string(stacks[:runtime.Stack(stacks, true)]), "(*Fence).read(") <= many; {
		time.Sleep(time.Millisecond)
	}
	close(release)
	if err := asking.Wait(); err != nil {
		return err
	}
	if n := reads.Load(); n != 2 {
		return fmt.Errorf("the rules were read %d times, want 2", n)
	}
	return nil
}

// bridges makes or removes bridges.
func bridges(call uintptr, names ...string) error {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	for _, name := range names {
		text, err := unix.BytePtrFromString(name)
		if err != nil {
			return err
		}
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), call, uintptr(unsafe.Pointer(text))); errno != 0 {
			return fmt.Errorf("bridge %s: %w", name, errno)
		}
	}
	return nil
}

// wantFenced checks which of br-a, br-b and br-c, as far as they exist, have rules.
func wantFenced(f *Fence, want ...string) error {
	var fenced []string
	for _, name := range []string{"br-a", "br-b", "br-c"} {
		if gaps, err := f.Gaps([]string{name}); err == nil && len(gaps) == 0 {
			fenced = append(fenced, name)
		}
	}
	if !slices.Equal(fenced, want) {
		return fmt.Errorf("rules stand for %v, want %v", fenced, want)
	}
	return nil
}

func wantUnavailable(err error, says string) error {
	if fault.ReasonOf(err) != agboxv1.ErrorReason_HOST_FENCE_UNAVAILABLE || !strings.Contains(err.Error(), says) {
		return fmt.Errorf("the error is %w", err)
	}
	return nil
}

func wantTables(want ...string) error {
	tables, err := new(nftables.Conn).ListTables()
	if err != nil {
		return err
	}
	var names []string
	for _, one := range tables {
		names = append(names, one.Name)
	}
	slices.Sort(names)
	if !slices.Equal(names, want) {
		return fmt.Errorf("the tables are %v, want %v", names, want)
	}
	return nil
}

func liveInNamespace() error {
	servers := []netip.Addr{netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("fd00::53")}
	one, two := New("one", func() []netip.Addr { return servers }), New("two", none)
	flush := func() error { // as "nft flush table" does
		conn := new(nftables.Conn)
		conn.FlushTable(one.table)
		return conn.Flush()
	}
	for i, step := range []func() error{
		func() error { return one.Able() },
		func() error { return bridges(unix.SIOCBRADDBR, "br-a", "br-b", "br-c") },
		func() error { return wantTables() },
		func() error { return one.Raise([]string{"br-a"}) },
		func() error { return one.Raise([]string{"br-a"}) },
		func() error { return one.Raise([]string{"br-b"}) },
		func() error { return two.Raise([]string{"br-c"}) },
		func() error { return errors.Join(wantFenced(one, "br-a", "br-b"), wantFenced(two, "br-c")) },
		func() error { return wantTables("agbox-one", "agbox-two") },
		func() error {
			return wantUnavailable(one.Raise([]string{"br-x"}), "br-x of the engine is not on this host")
		},
		func() error { _, err := one.Gaps([]string{"br-a", "br-x"}); return wantUnavailable(err, "br-x") },
		// Somebody removes the rules.
		flush,
		func() error { return errors.Join(wantFenced(one), wantFenced(two, "br-c")) },
		func() error { return one.Raise([]string{"br-b"}) },
		func() error { return wantFenced(one, "br-a", "br-b") },
		one.Clear,
		func() error { return errors.Join(wantFenced(one), wantTables("agbox-two")) },
		one.Clear,
		// Somebody removes the set.
		func() error { return one.Raise([]string{"br-a"}) },
		func() error {
			conn := new(nftables.Conn)
			conn.FlushTable(one.table)
			conn.DelSet(one.set())
			return conn.Flush()
		},
		func() error { return wantFenced(one) },
		func() error { return one.Raise([]string{"br-a"}) },
		func() error { return wantFenced(one, "br-a") },
		one.Clear,
		// Somebody removes the table between the look at it and the change.
		func() error { return one.add([]string{"br-b"}, []string{"br-a"}, true) },
		func() error { return wantFenced(one, "br-a", "br-b") },
		one.Clear,
		func() error { return one.Raise([]string{"br-a", "br-b"}) },
		// A later daemon finds them, and replaces them if they are not what it would make.
		func() error { return wantFenced(New("one", one.resolvers), "br-a", "br-b") },
		func() error { servers = servers[:1]; return wantFenced(one) },
		func() error { return one.Raise([]string{"br-a"}) },
		func() error { return wantFenced(one, "br-a", "br-b") },
		// Networks are removed.
		one.Trim,
		func() error { return wantFenced(one, "br-a", "br-b") },
		func() error { return bridges(unix.SIOCBRDELBR, "br-a") },
		// An older daemon has made the table.
		func() error {
			conn, forward := new(nftables.Conn), &nftables.Chain{Table: one.table, Name: "forward"}
			conn.FlushChain(forward)
			conn.DelChain(forward)
			conn.DelSet(one.same())
			return conn.Flush()
		},
		one.Trim,
		func() error { return wantFenced(one, "br-b") },
		func() error { return bridges(unix.SIOCBRDELBR, "br-b") },
		one.Trim,
		func() error { return errors.Join(wantFenced(one), wantTables("agbox-one", "agbox-two")) },
		func() error { return one.Raise([]string{"br-c"}) },
		one.Tidy,
		func() error { return wantFenced(one, "br-c") },
		func() error { return bridges(unix.SIOCBRDELBR, "br-c") },
		one.Tidy,
		one.Tidy,
		func() error { return bridges(unix.SIOCBRADDBR, "br-c") },
		func() error { return errors.Join(wantTables("agbox-two"), wantFenced(two, "br-c")) },
		// A kernel that cannot reject before it routes.
		func() error { one.drop = true; return one.Raise([]string{"br-c"}) },
		func() error { return wantFenced(one, "br-c") },
	} {
		if err := step(); err != nil {
			return fmt.Errorf("step %d: %w", i, err)
		}
	}
	return nil
}

func TestRulesRefuseTheHostAndNothingElse(t *testing.T) {
	var text strings.Builder
	for _, c := range chains([]netip.Addr{netip.MustParseAddr("10.0.0.2")}, false) {
		fmt.Fprintf(&text, "%s\n", c.name)
		for _, r := range c.rules {
			fmt.Fprintf(&text, "  %s\n", r.text)
		}
	}
	const want = `refuse
  meta l4proto tcp reject with tcp reset
  reject with icmpx port-unreachable
prerouting
  iifname != @sandboxes accept
  ct direction reply accept
  icmpv6 type 135 accept
  icmpv6 type 136 accept
  ip daddr 10.0.0.2 udp dport 53 accept
  ip daddr 10.0.0.2 tcp dport 53 accept
  ip daddr 169.254.0.0/16 goto refuse
  ip daddr 168.63.129.16/32 goto refuse
  ip daddr 100.100.100.200/32 goto refuse
  ip daddr 192.0.0.192/32 goto refuse
  ip6 daddr fd00:ec2::/32 goto refuse
  ip6 daddr fd20:ce::254/128 goto refuse
  fib daddr type local goto refuse
input
  iifname != @sandboxes accept
  ct direction reply accept
  icmpv6 type 135 accept
  icmpv6 type 136 accept
  ip daddr 10.0.0.2 udp dport 53 accept
  ip daddr 10.0.0.2 tcp dport 53 accept
  ct status dnat accept
  goto refuse, and see forward
forward
  oifname != @sandboxes accept
  iifname . oifname @same accept
  ct direction reply accept
  ct status dnat accept
  drop
`
	if text.String() != want {
		t.Errorf("the rules are\n%s", text.String())
	}
}
