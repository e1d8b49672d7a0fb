package attacks

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/nftables"

	"github.com/agbox/agbox/e2e/internal/harness"
	"github.com/agbox/agbox/runtime/fence"
)

func TestASandboxReachesNoAddressOfItsHost(t *testing.T) {
	t.Parallel()
	Row(t, 14, "services of the host on the gateway, docker0 and other addresses, by TCP, UDP and broadcast")
	in := harness.New(t)
	port := hostService(t)
	fenced := in.Create(t, "fenced", harness.ImageDebian)
	open := in.Create(t, "open", harness.ImageDebian, "--allow-host")
	links, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, l := range links {
		ofATest := slices.ContainsFunc([]string{"br-", "veth", otherMachine}, func(kind string) bool { return strings.HasPrefix(l.Name, kind) })
		if l.Flags&net.FlagLoopback == 0 && !ofATest { // another test may end now, and its interface with it
			names = append(names, l.Name)
		}
	}
	var tries []string
	for _, name := range append(names, bridge(t, in, fenced), bridge(t, in, open)) {
		for _, address := range addresses(t, name, true) {
			tries = append(tries, fmt.Sprintf("tcp %s %d", address, port), fmt.Sprintf("udp %s %d", address, port))
		}
	}
	if len(tries) < 6 {
		t.Fatalf("the host has too few addresses: %v", tries)
	}
	tries = append(tries, fmt.Sprintf("broadcast 255.255.255.255 %d", port))
	wantReached(t, in, fenced, nil, tries)
	// The flag lifts the rules, so the attempts are good ones.
	tries = append(tries, fmt.Sprintf("tcp host.docker.internal %d", port))
	wantReached(t, in, open, tries, tries)
	if said := in.Must(t, "inspect", open); !strings.Contains(said, "it may reach the addresses of the host") {
		t.Errorf("inspect shows\n%s", said)
	}
}

func TestASandboxReachesNoPublishedPortOfAnother(t *testing.T) {
	t.Parallel()
	Row(t, 14, "a port of another container that is published on the host's addresses")
	in := harness.New(t)
	fenced := in.Create(t, "fenced", harness.ImageDebian)
	open := in.Create(t, "open", harness.ImageDebian, "--allow-host", "-p", "0.0.0.0::8080")
	web := serve(t, in, open)
	_, port, _ := net.SplitHostPort(lastWord(in.Must(t, "port", open)))
	tries := []string{fmt.Sprintf("tcp %s %s", addresses(t, bridge(t, in, fenced), true)[0], port)}
	wantReached(t, in, open, tries, tries)
	wantReached(t, in, fenced, nil, tries)
	web.Signal(t, syscall.SIGINT)
	web.Wait(t)
}

func TestWhatASandboxNeedsWorksBesideTheRulesAgainstTheHost(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	box := in.Create(t, "demo", harness.ImageDebian, "--service", "db="+harness.ImageRedis, "-p", "8080")
	const ask = `my $s = IO::Socket::IP->new(PeerHost => "db", PeerPort => 6379, Type => SOCK_STREAM, Timeout => 5) or die $@; print $s "PING\r\n"; $s->flush; print scalar <$s>`
	if said := in.Must(t, "exec", box, "--", "perl", "-MIO::Socket::IP", "-e", ask); said != "+PONG" {
		t.Errorf("the service says %q", said)
	}
	web := serve(t, in, box)
	conn, err := net.Dial("tcp", lastWord(in.Must(t, "port", box)))
	if err != nil {
		t.Fatal(err)
	}
	said := make([]byte, 5)
	if _, err := conn.Read(said); err != nil || string(said) != "hello" {
		t.Errorf("the published port says %q, %v", said, err)
	}
	_ = conn.Close()
	web.Signal(t, syscall.SIGINT)
	web.Wait(t)
}

// A DNS server of the host is often one of its own addresses. The daemon learns of a new
// one at a resync.
func TestADNSServerOfTheHostIsReachedOnItsPortOnly(t *testing.T) {
	t.Parallel()
	Row(t, 14, "other ports of a DNS server that is an address of the host")
	in := harness.New(t)
	list := filepath.Join(write(t, in, "etc", map[string]string{"resolv.conf": "nameserver 192.0.2.53\n"}), "resolv.conf")
	start := exec.CommandContext(harness.Bounded(t), "unshare", "--mount", "sh", "-c",
		"mount --bind "+list+" /etc/resolv.conf && exec "+filepath.Join(in.Bin, "agbox")+" daemon start")
	start.Env = in.Command(t.Context(), "agbox").Env
	if out, err := start.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	box := in.Create(t, "demo", harness.ImageDebian)
	gateway := addresses(t, bridge(t, in, box), true)[0]
	answerOn(t, gateway+":53")
	dns, other := "tcp "+gateway+" 53", fmt.Sprintf("tcp %s %d", gateway, hostService(t))
	wantReached(t, in, box, nil, []string{dns, other})
	if err := os.WriteFile(list, []byte("nameserver "+gateway+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, "the DNS server is reached", func() bool { return len(reached(t, in, box, dns)) > 0 })
	wantReached(t, in, box, []string{dns}, []string{dns, other})
}

func TestASandboxReachesNoLinkLocalAddress(t *testing.T) {
	t.Parallel()
	Row(t, 14, "a metadata service on a link-local address")
	in := harness.New(t)
	linkLocal, other, port := elsewhere(t)
	metadata, internet := fmt.Sprintf("tcp %s %d", linkLocal, port), fmt.Sprintf("tcp %s %d", other, port)
	fenced := in.Create(t, "fenced", harness.ImageDebian)
	open := in.Create(t, "open", harness.ImageDebian, "--allow-host")
	wantReached(t, in, fenced, []string{internet}, []string{metadata, internet})
	wantReached(t, in, open, []string{metadata, internet}, []string{metadata, internet})
}

// The engine of these tests gives no IPv6 to containers, so the test does.
func TestASandboxReachesNoIPv6AddressOfItsHost(t *testing.T) {
	t.Parallel()
	Row(t, 14, "a service of the host by IPv6")
	in := harness.New(t)
	port := hostService(t)
	for name, flags := range map[string][]string{"fenced": nil, "open": {"--allow-host"}} {
		box := in.Create(t, name, harness.ImageDebian, flags...)
		giveIPv6(t, in, box)
		link := bridge(t, in, box)
		harness.Eventually(t, "the bridge has an address that answers", func() bool { return settled(t, "self", link) })
		tries := []string{fmt.Sprintf("tcp %s%%eth0 %d", addresses(t, link, false)[0], port)}
		if name == "open" {
			wantReached(t, in, box, tries, tries)
		} else {
			wantReached(t, in, box, nil, tries)
		}
	}
}

func TestRulesAgainstTheHostSurviveTheDaemonAndComeBack(t *testing.T) {
	t.Parallel()
	Row(t, 14, "a service of the host, after a kill of the daemon, and after a removal of the rules")
	in := harness.New(t)
	box := in.Create(t, "demo", harness.ImageDebian)
	table := &nftables.Table{Name: fence.TablePrefix + in.Status(t).InstallID, Family: nftables.TableFamilyINet}
	stands := func() bool {
		_, err := new(nftables.Conn).ListTableOfFamily(table.Name, table.Family)
		return err == nil
	}
	tries := []string{fmt.Sprintf("tcp %s %d", addresses(t, bridge(t, in, box), true)[0], hostService(t))}
	in.KillDaemon(t)
	if !stands() {
		t.Error("the rules are gone with the daemon")
	}
	wantReached(t, in, box, nil, tries)
	// As "nft flush ruleset" does, but only to this install.
	conn := new(nftables.Conn)
	conn.DelTable(table)
	if err := conn.Flush(); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, "the rules stand again", stands)
	wantReached(t, in, box, nil, tries)
	in.Must(t, "rm", "--wait", "-f", box)
	in.Must(t, "daemon", "stop")
	if stands() {
		t.Error("the rules are left behind")
	}
}

func TestOnlyTheCallerOrTheOperatorLiftsTheRulesAgainstTheHost(t *testing.T) {
	t.Parallel()
	Row(t, 14, "a sandbox file asks for the host's addresses; a policy forbids them")
	in := harness.New(t)
	asks := write(t, in, "asks", map[string]string{"agbox.yaml": "image: " + harness.ImageBusybox + "\nsecurity: {allow_host: true}\n"})
	if r := from(t, in, asks, "create", "demo"); r.Code == 0 || !strings.Contains(r.Stderr, "it may reach the addresses of this machine") {
		t.Errorf("without an answer: exit code %d, stderr %q", r.Code, r.Stderr)
	}
	from(t, in, asks, "create", "demo", "--trust").Want(t, 0)
	in.Must(t, "stop", "demo")
	in.Must(t, "daemon", "stop")
	withPolicy(t, in, "allow: {host_access: false}\n")
	in.Must(t, "daemon", "start")
	const forbids = "perator's policy "
	for _, r := range []harness.Result{
		from(t, in, asks, "create", "other", "--trust"), in.Agbox(t, "create", "--image", harness.ImageBusybox, "--allow-host"), in.Agbox(t, "start", "demo"),
	} {
		if r.Code == 0 || !strings.Contains(r.Stderr, forbids) {
			t.Errorf("%v: exit code %d, stderr %q", r.Args, r.Code, r.Stderr)
		}
	}
	in.Must(t, "daemon", "stop")
	settings := filepath.Join(in.Home, "config", "agboxd.yaml")
	before, err := os.ReadFile(settings)
	if err != nil {
		t.Fatal(err)
	}
	write(t, in, "config", map[string]string{"agboxd.yaml": string(before) + "host-fence: off\n"})
	if r := in.Agbox(t, "daemon", "start"); r.Code == 0 || !strings.Contains(r.Stderr, "forbids with allow.host_access") {
		t.Errorf("a daemon without rules starts: exit code %d, stderr %q", r.Code, r.Stderr)
	}
	write(t, in, "config", map[string]string{"agboxd.yaml": string(before)})
}

func TestADaemonThatCannotMakeRulesAgainstTheHostSaysSo(t *testing.T) {
	t.Parallel()
	Row(t, 14, "a daemon without root, with and without the setting that requires the rules")
	in := harness.New(t, func(in *harness.Install) {
		socket, err := os.Stat(strings.TrimPrefix(harness.DockerAPI.DaemonHost(), "unix://"))
		if err != nil {
			t.Fatal(err)
		}
		in.Who = &syscall.Credential{Uid: victim, Gid: victim, Groups: []uint32{socket.Sys().(*syscall.Stat_t).Gid}}
	})
	in.Create(t, "demo", harness.ImageBusybox)
	const why = "Sandboxes cannot be kept from this host's addresses: agboxd has no right to make rules for the network: run it as root, or give it CAP_NET_ADMIN."
	if said := strings.Join(strings.Fields(in.Must(t, "doctor")), " "); !strings.Contains(said, why) {
		t.Errorf("doctor says\n%s", said)
	}
	in.Must(t, "daemon", "stop")
	write(t, in, "config", map[string]string{"agboxd.yaml": "host-fence: require\n"})
	if r := in.Agbox(t, "create", "strict", "--image", harness.ImageBusybox); r.Code == 0 || !strings.Contains(r.Stderr, why) {
		t.Errorf("exit code %d, stderr %q", r.Code, r.Stderr)
	}
}
