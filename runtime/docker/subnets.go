package docker

import (
	"bufio"
	"encoding/binary"
	"encoding/hex"
	"hash/fnv"
	"io"
	"math/bits"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/agbox/agbox/internal/fault"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

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
