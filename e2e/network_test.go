package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	dockernetwork "github.com/docker/docker/api/types/network"

	"github.com/agbox/agbox/e2e/internal/harness"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/runtime"
)

type portLine struct {
	Container     string `json:"container"`
	ContainerPort uint16 `json:"container_port"`
	Protocol      string `json:"protocol"`
	HostIP        string `json:"host_ip"`
	HostPort      uint16 `json:"host_port"`
}

func (in *install) ports(t *testing.T, box string) []portLine {
	t.Helper()
	var lines []portLine
	if err := json.Unmarshal([]byte(in.Must(t, "port", "-o", "json", box)), &lines); err != nil {
		t.Fatal(err)
	}
	return lines
}

func get(address string) string {
	resp, err := http.Get("http://" + address + "/name")
	if err != nil {
		return ""
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(resp.Body)
	return strings.TrimSpace(string(body))
}

func TestPortsArePublishedOnThisMachineAloneAndListed(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	const serve = `command: [sh, -c, "mkdir -p /www; hostname >/www/name; exec httpd -f -p 80 -h /www"]`
	in.createNamed(t, "demo", "image: "+harness.ImageBusybox+`
hostname: main
`+serve+`
ports: [{container_port: 80}, {container_port: 5353, protocol: udp, host_ip: 0.0.0.0}]
services:
  - name: web
    image: agbox-test/busybox:latest
    `+serve+`
    ports: [{container_port: 80}]
`)
	lines := in.ports(t, "demo")
	if len(lines) != 3 {
		t.Fatalf("the ports are %+v", lines)
	}
	for i, want := range []portLine{{"primary", 80, "tcp", "127.0.0.1", 0}, {"primary", 5353, "udp", "0.0.0.0", 0}, {"web", 80, "tcp", "127.0.0.1", 0}} {
		got := lines[i]
		want.HostPort = got.HostPort
		if got != want || got.HostPort == 0 {
			t.Errorf("a port is %+v, want %+v on a free port", got, want)
		}
	}
	address := func(l portLine) string { return net.JoinHostPort(l.HostIP, strconv.Itoa(int(l.HostPort))) }
	harness.Eventually(t, "the primary answers", func() bool { return get(address(lines[0])) == "main" })
	harness.Eventually(t, "the service answers", func() bool { return get(address(lines[2])) == "web" })
	harness.WantSame(t, "by name", in.Must(t, "exec", "demo", "--", "wget", "-q", "-O", "-", "http://web/name"), "web")
	if outside := ownAddress(t); outside != "" {
		if got := get(net.JoinHostPort(outside, strconv.Itoa(int(lines[0].HostPort)))); got != "" {
			t.Errorf("a port for this machine alone answers on %s: %s", outside, got)
		}
	}
	if table := in.Must(t, "port", "demo"); !strings.Contains(table, address(lines[0])) {
		t.Errorf("port shows\n%s", table)
	}
	in.Must(t, "stop", "demo")
	if table := in.Must(t, "port", "demo"); !strings.Contains(table, "none while it is stopped") {
		t.Errorf("of a stopped sandbox port shows\n%s", table)
	}
	in.Must(t, "start", "demo")
	lines = in.ports(t, "demo")
	harness.Eventually(t, "the primary answers again", func() bool { return get(address(lines[0])) == "main" })
}

// ownAddress returns an address of this machine that others could use, or "". A bridge of
// the engine would do, but may be removed at any time.
func ownAddress(t *testing.T) string {
	t.Helper()
	interfaces, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range interfaces {
		if strings.HasPrefix(i.Name, "br-") || strings.HasPrefix(i.Name, "docker") {
			continue
		}
		addrs, _ := i.Addrs() // none if the interface has been removed
		for _, a := range addrs {
			if ip, ok := a.(*net.IPNet); ok && ip.IP.To4() != nil && !ip.IP.IsLoopback() {
				return ip.IP.String()
			}
		}
	}
	return ""
}

// listenOffTheBeatenTrack listens on a port that neither the kernel nor the engine
// assigns automatically, so it stays free between two uses.
func listenOffTheBeatenTrack(t *testing.T) net.Listener {
	t.Helper()
	for {
		lis, err := net.Listen("tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(10_000+rand.IntN(20_000))))
		if err == nil {
			return lis
		}
		if !errors.Is(err, syscall.EADDRINUSE) {
			t.Fatal(err)
		}
	}
}

// freePort closes a listener. Other tests start processes all the time. A process that
// was forked before holds the port until its own exec. So freePort prevents forks
// meanwhile.
func freePort(t *testing.T, lis net.Listener) {
	t.Helper()
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	if err := lis.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestATakenPortIsRefusedBeforeAnythingIsMade(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	in.Must(t, "daemon", "start")
	foreign := listenOffTheBeatenTrack(t)
	taken := foreign.Addr().(*net.TCPAddr).Port
	create := func(name string, port int) harness.Result {
		return in.Agbox(t, "create", name, "--image", harness.ImageBusybox, "-p", fmt.Sprint(port, ":80"))
	}
	for _, word := range []string{strconv.Itoa(taken), "another program listens on it", "host_port"} {
		refused(t, create("one", taken), 4, word)
	}
	freePort(t, foreign)
	create("one", taken).Want(t, 0)
	refused(t, create("two", taken), 4, "sandbox one publishes it")
	refused(t, in.Agbox(t, "create", "two", "--image", harness.ImageBusybox, "-p", fmt.Sprint("203.0.113.7:", taken, ":80")), 4, "no address of this host")
	harness.WantSame(t, "sandboxes", fmt.Sprint(strings.Count(in.Must(t, "ls", "--deleted"), "\n")), "1")

	// If the port is taken while the sandbox is stopped, its start reports that in a
	// sentence.
	in.Must(t, "stop", "one")
	again, err := net.Listen("tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(taken)))
	if err != nil {
		t.Fatal(err)
	}
	r := in.Agbox(t, "start", "one")
	freePort(t, again)
	refused(t, r, 4, "was taken by something else")
	in.Must(t, "start", "one")
}

// The services of an internal network are reached by their names, and nothing else: no address
// outside, no host and no name. The engine's own name server is another way out.
func TestAnInternalNetworkLeadsNowhereElse(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	dir := in.write(t, "project", map[string]string{"compose.yaml": `
services:
  web:
    image: ` + harness.ImageBusybox + `
    command: ["sh", "-c", "mkdir /www; echo here >/www/name; exec httpd -f -p 80 -h /www"]
    healthcheck: {test: [CMD, wget, -q, -O, /dev/null, "http://127.0.0.1/name"], interval: 0.5s, retries: 60}
    networks: [back]
  main: {image: ` + harness.ImageBusybox + `, x-agbox: primary, networks: [back]}
networks: {back: {internal: true}}
`})
	listener, err := net.Listen("tcp", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	in.Must(t, "create", "demo", "--compose", filepath.Join(dir, "compose.yaml"))
	harness.WantSame(t, "the service", in.inside(t, "demo", "wget -q -O - http://web/name"), "here\n")
	if mode := in.inspect(t, "demo").GetCreateSpec().GetNetwork(); mode != agboxv1.NetworkMode_NETWORK_MODE_INTERNAL {
		t.Errorf("inspect shows the network %s", mode)
	}
	network := in.Inventory(t).Networks[0]
	made, err := harness.DockerAPI.NetworkInspect(harness.Bounded(t), network.ID, dockernetwork.InspectOptions{})
	if err != nil || !made.Internal {
		t.Errorf("the engine's network: %+v, %v", made, err)
	}
	host, err := net.InterfaceByName(network.Interface)
	if err != nil {
		t.Fatal(err)
	}
	addresses, err := host.Addrs()
	if err != nil {
		t.Fatal(err)
	}
	port := strconv.Itoa(listener.Addr().(*net.TCPAddr).Port)
	targets := []string{"1.1.1.1 53"}
	for _, a := range addresses {
		if ip, ok := a.(*net.IPNet); ok && ip.IP.To4() != nil {
			targets = append(targets, ip.IP.String()+" "+port)
		}
	}
	for _, target := range targets {
		if r := in.Agbox(t, "exec", "demo", "--", "sh", "-c", "nc -w 2 "+target+" </dev/null"); r.Code == 0 {
			t.Errorf("%s is reached", target)
		}
	}
	if r := in.Agbox(t, "exec", "demo", "--", "nslookup", "example.com"); r.Code == 0 {
		t.Errorf("a name is resolved: %s", r.Stdout)
	}
	c, err := harness.DockerAPI.ContainerInspect(harness.Bounded(t), runtime.PrimaryName(in.SandboxID(t, "demo")))
	if err != nil || !slices.Equal(c.HostConfig.DNS, []string{"127.0.0.1"}) {
		t.Errorf("the name servers are %q, %v", c.HostConfig.DNS, err)
	}
	in.Must(t, "stop", "demo")
	in.Must(t, "start", "demo")
	harness.WantSame(t, "the service after a start", in.inside(t, "demo", "wget -q -O - http://web/name"), "here\n")
}
