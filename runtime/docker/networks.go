package docker

import (
	"bufio"
	"cmp"
	"context"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"hash/fnv"
	"io"
	"math/bits"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/network"
	"github.com/docker/docker/client"

	"github.com/agbox/agbox/internal/fault"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/runtime"
)

// EnsureNetwork creates the network, or finds the one that it created before, with
// the same name and identity. Faults: NAME_TAKEN_IN_ENGINE for a foreign network of
// that name, NETWORK_POOL_EXHAUSTED.
func (e *Engine) EnsureNetwork(ctx context.Context, spec runtime.NetworkSpec) (runtime.Network, error) {
	var id string
	used := e.routed()
	for {
		subnet, free := e.subnets.pick(spec.SandboxID, subnetFor(spec.Containers), used)
		if !free {
			// This network may exist already and have the last subnet.
			return e.findNetwork(ctx, spec, e.poolExhausted())
		}
		err := e.call(ctx, "create the sandbox's network", func(cli *client.Client) error {
			var err error
			id, err = createNetwork(ctx, cli, spec, subnet)
			return err
		})
		switch {
		case err == nil:
			return runtime.Network{Identity: spec.Identity, ID: id, Name: spec.Name, Interface: bridgeName(network.Summary{ID: id})}, nil
		case errdefs.IsConflict(err):
			return e.findNetwork(ctx, spec, networkTaken(spec.Name))
		case !subnetOverlaps(err):
			return runtime.Network{}, err
		}
		// The engine has networks that this host does not route, for example because
		// it runs in a virtual machine. With their list, the next attempt succeeds
		// unless others take subnets at the same time.
		taken, err := e.engineSubnets(ctx)
		if err != nil {
			return runtime.Network{}, err
		}
		used = append(append(used, subnet), taken...)
	}
}

func createNetwork(ctx context.Context, cli *client.Client, spec runtime.NetworkSpec, subnet netip.Prefix) (string, error) {
	made, err := cli.NetworkCreate(ctx, spec.Name, network.CreateOptions{
		Driver: "bridge", Internal: spec.Internal,
		IPAM:   &network.IPAM{Driver: "default", Config: []network.IPAMConfig{{Subnet: subnet.String()}}},
		Labels: encodeLabels(spec.Identity),
	})
	return made.ID, err
}

// bridgeName returns the name of the network's interface on the engine's host. Unless an
// option sets it, the engine makes it from the id.
func bridgeName(n network.Summary) string {
	if name := n.Options["com.docker.network.bridge.name"]; name != "" {
		return name
	}
	return "br-" + n.ID[:min(len(n.ID), 12)]
}

// subnetOverlaps reports whether another network has the subnet. The engine has no
// status of its own for that.
func subnetOverlaps(err error) bool {
	return strings.Contains(err.Error(), "overlap")
}

func networkTaken(name string) error {
	return fault.New(errdefs.ErrAlreadyExists, agboxv1.ErrorReason_NAME_TAKEN_IN_ENGINE,
		"Docker has a network %q that is not this sandbox's: rename or remove it ('docker network rm %s'), or choose another sandbox id.", name, name)
}

func (e *Engine) poolExhausted() error {
	return fault.New(errdefs.ErrResourceExhausted, agboxv1.ErrorReason_NETWORK_POOL_EXHAUSTED,
		"No free subnet is left in %s: remove sandboxes, or configure agboxd with another range that this host does not route.", e.subnets)
}

// engineSubnets returns the IPv4 subnets of all networks of the engine.
func (e *Engine) engineSubnets(ctx context.Context) ([]netip.Prefix, error) {
	var subnets []netip.Prefix
	err := e.call(ctx, "list its networks", func(cli *client.Client) error {
		all, err := cli.NetworkList(ctx, network.ListOptions{})
		subnets = nil
		for _, n := range all {
			for _, config := range n.IPAM.Config {
				if p, err := netip.ParsePrefix(config.Subnet); err == nil && p.Addr().Is4() {
					subnets = append(subnets, p)
				}
			}
		}
		return err
	})
	return subnets, err
}

// findNetwork returns the network with the spec's name and identity, or the error
// none if there is none. Before API 1.44 names are not unique. Of several networks it
// keeps one that containers were created for, or else the oldest, and removes the unused
// others.
func (e *Engine) findNetwork(ctx context.Context, spec runtime.NetworkSpec, none error) (runtime.Network, error) {
	var twins []network.Summary
	used := make(map[string]bool)
	err := e.call(ctx, "list the sandbox's networks", func(cli *client.Client) error {
		filter := ownFilter(spec.InstallID, spec.SandboxID)
		found, err := cli.NetworkList(ctx, network.ListOptions{Filters: filter})
		if err != nil {
			return err
		}
		twins = slices.DeleteFunc(found, func(n network.Summary) bool {
			id, ok := decodeLabels(n.Labels)
			return !ok || id != spec.Identity || n.Name != spec.Name
		})
		if len(twins) < 2 {
			return nil
		}
		containers, err := cli.ContainerList(ctx, container.ListOptions{All: true, Filters: filter})
		for _, c := range containers {
			used[c.HostConfig.NetworkMode] = true
		}
		return err
	})
	if err != nil {
		return runtime.Network{}, err
	}
	if len(twins) == 0 {
		return runtime.Network{}, none
	}
	slices.SortFunc(twins, func(a, b network.Summary) int {
		switch {
		case used[a.ID] && !used[b.ID]:
			return -1
		case used[b.ID] && !used[a.ID]:
			return 1
		}
		return cmp.Or(a.Created.Compare(b.Created), strings.Compare(a.ID, b.ID))
	})
	for _, twin := range twins[1:] {
		if used[twin.ID] {
			continue // it remains until the sandbox is removed
		}
		if err := e.removeTwin(ctx, twin.ID); err != nil {
			return runtime.Network{}, err
		}
	}
	return runtime.Network{Identity: spec.Identity, ID: twins[0].ID, Name: spec.Name, Interface: bridgeName(twins[0])}, nil
}

// removeTwin removes a duplicate network that no container was created for. It keeps the
// network if a container is attached to it.
func (e *Engine) removeTwin(ctx context.Context, id string) error {
	err := e.call(ctx, "remove the sandbox's duplicate network", func(cli *client.Client) error {
		return cli.NetworkRemove(ctx, id)
	})
	if errdefs.IsNotFound(err) || err != nil && networkInUse(err) {
		return nil
	}
	return err
}

// RemoveNetwork removes a network by id. It disconnects remaining endpoints by
// force, because they can outlive their containers. It succeeds if the network does
// not exist.
func (e *Engine) RemoveNetwork(ctx context.Context, id string) error {
	err := e.call(ctx, "remove the sandbox's network", func(cli *client.Client) error {
		err := cli.NetworkRemove(ctx, id)
		if err == nil || !networkInUse(err) {
			return err
		}
		if err := disconnectAll(ctx, cli, id); err != nil {
			return err
		}
		return cli.NetworkRemove(ctx, id)
	})
	if errdefs.IsNotFound(err) {
		return nil
	}
	return err
}

func networkInUse(err error) bool {
	return strings.Contains(err.Error(), "active endpoints")
}

func disconnectAll(ctx context.Context, cli *client.Client, id string) error {
	seen, err := cli.NetworkInspect(ctx, id, network.InspectOptions{})
	if err != nil {
		return err
	}
	for attached, endpoint := range seen.Containers {
		if strings.HasPrefix(attached, "ep-") {
			// The container no longer exists. The engine identifies its endpoint by the
			// container's former name.
			attached = endpoint.Name
		}
		if err := cli.NetworkDisconnect(ctx, id, attached, true); err != nil && !errdefs.IsNotFound(err) {
			return err
		}
	}
	return nil
}

// subnetBits is the prefix length of most networks: 16 addresses, 13 of them for
// containers.
const subnetBits = 28

// reservedAddresses is the number of addresses for the network itself, its gateway
// and broadcasts.
const reservedAddresses = 3

// subnetFor returns the prefix length of a network for the given number of containers.
func subnetFor(containers int) int {
	length := subnetBits
	for length > 0 && 1<<(32-length) < containers+reservedAddresses {
		length--
	}
	return length
}

// widestRoute is the shortest prefix length that counts as used by the host. Shorter
// ones are default routes, including the two halves into which VPNs split them.
const widestRoute = 8

// defaultRanges are tried in order. There are several so that a VPN that routes all
// of 10.0.0.0/8 does not leave agbox without networks. They avoid the ranges that
// the engine itself uses first.
var defaultRanges = []netip.Prefix{
	netip.MustParsePrefix("10.222.0.0/16"),
	netip.MustParsePrefix("172.29.0.0/16"),
	netip.MustParsePrefix("192.168.208.0/20"),
}

// pool picks subnets from its ranges. It keeps no state: the routes of the host and
// the networks of the engine say which are in use.
type pool struct {
	ranges []netip.Prefix
}

func newPool(ranges []netip.Prefix) (pool, error) {
	if len(ranges) == 0 {
		return pool{ranges: defaultRanges}, nil
	}
	masked := make([]netip.Prefix, 0, len(ranges))
	for _, r := range ranges {
		if !r.Addr().Is4() || r.Bits() < widestRoute || r.Bits() > subnetBits {
			return pool{}, fault.New(errdefs.ErrInvalidArgument, agboxv1.ErrorReason_INVALID_REQUEST,
				"The network range %s cannot be used: give an IPv4 range between /%d and /%d, for example 10.222.0.0/16.", r, widestRoute, subnetBits)
		}
		masked = append(masked, r.Masked())
	}
	return pool{ranges: masked}, nil
}

// pick returns a subnet with the given prefix length that overlaps nothing in used,
// or false if there is none. A hash of the sandbox id chooses where in each range
// the search begins, so that concurrent sandboxes seldom pick the same subnet.
func (p pool) pick(sandboxID string, length int, used []netip.Prefix) (netip.Prefix, bool) {
	h := fnv.New32a()
	_, _ = h.Write([]byte(sandboxID))
	for _, r := range p.ranges {
		if length < r.Bits() {
			continue
		}
		slots := uint32(1) << (length - r.Bits())
		base := binary.BigEndian.Uint32(r.Addr().AsSlice())
		inRange := overlapping(used, r)
		for i := range slots {
			slot := (h.Sum32() + i) % slots
			var addr [4]byte
			binary.BigEndian.PutUint32(addr[:], base+slot<<(32-length))
			subnet := netip.PrefixFrom(netip.AddrFrom4(addr), length)
			if len(overlapping(inRange, subnet)) == 0 {
				return subnet, true
			}
		}
	}
	return netip.Prefix{}, false
}

func (p pool) String() string {
	names := make([]string, 0, len(p.ranges))
	for _, r := range p.ranges {
		names = append(names, r.String())
	}
	return strings.Join(names, ", ")
}

func overlapping(prefixes []netip.Prefix, with netip.Prefix) []netip.Prefix {
	return slices.DeleteFunc(slices.Clone(prefixes), func(p netip.Prefix) bool { return !p.Overlaps(with) })
}

// hostPrefixes returns the prefixes that this host routes or has on an interface. It
// omits what it cannot read; the engine refuses a subnet that overlaps.
func hostPrefixes() []netip.Prefix {
	var used []netip.Prefix
	addrs, _ := net.InterfaceAddrs()
	for _, addr := range addrs {
		if p, err := netip.ParsePrefix(addr.String()); err == nil && p.Addr().Is4() {
			used = append(used, p.Masked())
		}
	}
	routes, err := os.Open("/proc/net/route")
	if err != nil {
		return used
	}
	defer func() { _ = routes.Close() }()
	return append(used, parseRoutes(routes)...)
}

// parseRoutes reads the kernel's IPv4 routing table. The destination is in the
// second column and the mask in the eighth, hexadecimal in the machine's byte order.
func parseRoutes(table io.Reader) []netip.Prefix {
	var routes []netip.Prefix
	lines := bufio.NewScanner(table)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 8 {
			continue
		}
		dest, destErr := hex.DecodeString(fields[1])
		mask, maskErr := hex.DecodeString(fields[7])
		if destErr != nil || maskErr != nil || len(dest) != 4 || len(mask) != 4 {
			continue
		}
		ones := bits.OnesCount32(binary.NativeEndian.Uint32(mask))
		if ones < widestRoute {
			continue
		}
		var addr [4]byte
		binary.NativeEndian.PutUint32(addr[:], binary.BigEndian.Uint32(dest))
		routes = append(routes, netip.PrefixFrom(netip.AddrFrom4(addr), ones).Masked())
	}
	return routes
}

// The files from which an engine on this host learns its DNS servers.
const (
	engineSettings = "/etc/docker/daemon.json"
	hostResolvers  = "/etc/resolv.conf"
	// behindStub has the servers that systemd-resolved asks. The engine uses it if
	// hostResolvers names only the stub on a loopback address.
	behindStub = "/run/systemd/resolve/resolv.conf"
)

// Resolvers returns the DNS servers to which the engine forwards what containers ask, as
// far as the files of this host say so. The engine itself does not. Loopback addresses are
// left out, because a container does not reach them.
func (e *Engine) Resolvers() []netip.Addr {
	if !e.local() {
		return nil
	}
	return resolvers(os.ReadFile)
}

// resolvers is Resolvers for given files.
func resolvers(read func(string) ([]byte, error)) []netip.Addr {
	var settings struct {
		DNS []string `json:"dns"`
	}
	if raw, err := read(engineSettings); err == nil && json.Unmarshal(raw, &settings) == nil {
		if found := reachable(settings.DNS); len(found) > 0 {
			return found
		}
	}
	for _, file := range []string{hostResolvers, behindStub} {
		raw, err := read(file)
		if err != nil {
			continue
		}
		if found := reachable(nameservers(string(raw))); len(found) > 0 {
			return found
		}
	}
	return nil
}

// nameservers returns the addresses in a file such as resolv.conf.
func nameservers(text string) []string {
	var found []string
	for line := range strings.Lines(text) {
		if words := strings.Fields(line); len(words) >= 2 && words[0] == "nameserver" {
			found = append(found, words[1])
		}
	}
	return found
}

// reachable returns the addresses that are not loopback, sorted, each once.
func reachable(texts []string) []netip.Addr {
	var found []netip.Addr
	for _, text := range texts {
		addr, err := netip.ParseAddr(text)
		if err == nil && !addr.IsLoopback() && !addr.IsUnspecified() {
			found = append(found, addr.Unmap().WithZone(""))
		}
	}
	slices.SortFunc(found, netip.Addr.Compare)
	return slices.Compact(found)
}
