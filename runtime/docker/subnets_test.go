package docker

import (
	"net/netip"
	"strconv"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/agbox/agbox/internal/ids"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

func prefixes(texts ...string) []netip.Prefix {
	var list []netip.Prefix
	for _, text := range texts {
		list = append(list, netip.MustParsePrefix(text))
	}
	return list
}

func TestEverySubnetOfARangeIsPickedOnce(t *testing.T) {
	p, err := newPool(prefixes("10.1.0.0/24", "10.9.0.5/27"))
	must(t, err)
	used := prefixes("10.1.0.64/26", "10.9.0.31/32")
	seen := map[netip.Prefix]bool{}
	for i := range 16 - 4 + 1 {
		subnet, ok := p.pick("sandbox-"+strconv.Itoa(i), subnetBits, used)
		if !ok {
			t.Fatalf("the pool is exhausted after %d subnets", i)
		}
		for _, other := range used {
			if subnet.Overlaps(other) {
				t.Errorf("%v overlaps %v, which is in use", subnet, other)
			}
		}
		if subnet.Bits() != subnetBits || seen[subnet] {
			t.Errorf("the subnet %v has a wrong size or was picked before", subnet)
		}
		seen[subnet] = true
		used = append(used, subnet)
	}
	if subnet, ok := p.pick("one-more", subnetBits, used); ok {
		t.Errorf("the full pool picked %v", subnet)
	}
}

func TestASandboxOfManyContainersGetsALargerSubnet(t *testing.T) {
	p, err := newPool(prefixes("10.1.0.0/26", "10.2.0.0/25"))
	must(t, err)
	for containers, length := range map[int]int{0: 28, 1: 28, 13: 28, 14: 27, 29: 27, 30: 26, 62: 25} {
		subnet, ok := p.pick("a", subnetFor(containers), nil)
		if !ok || subnet.Bits() != length || subnet != subnet.Masked() {
			t.Errorf("for %d containers it is %v, want a /%d", containers, subnet, length)
		}
	}
	if subnet, ok := p.pick("a", subnetFor(126), nil); ok {
		t.Errorf("126 containers get %v", subnet)
	}
}

func TestSandboxesStartTheirSearchAtDifferentSubnets(t *testing.T) {
	p, err := newPool(nil)
	must(t, err)
	first := map[netip.Prefix]bool{}
	for range 100 {
		subnet, _ := p.pick(ids.New(), subnetBits, nil)
		first[subnet] = true
	}
	if len(first) < 80 {
		t.Errorf("100 sandboxes begin at only %d subnets", len(first))
	}
}

func TestARoutedRangeIsSkipped(t *testing.T) {
	p, err := newPool(nil)
	must(t, err)
	subnet, ok := p.pick("sandbox", subnetBits, prefixes("10.0.0.0/8"))
	if !ok || !defaultRanges[1].Contains(subnet.Addr()) {
		t.Errorf("behind a route to 10.0.0.0/8 the subnet is %v, want one of %v", subnet, defaultRanges[1])
	}
}

func TestInvalidRangesAreRefused(t *testing.T) {
	for _, text := range []string{"fd00::/64", "10.0.0.0/29", "0.0.0.0/0"} {
		_, err := New(Options{SubnetRanges: prefixes(text)})
		wantFault(t, err, errdefs.ErrInvalidArgument, agboxv1.ErrorReason_INVALID_REQUEST, text)
	}
}

func TestRoutesAreReadWithoutDefaults(t *testing.T) {
	const table = `Iface	Destination	Gateway 	Flags	RefCnt	Use	Metric	Mask		MTU	Window	IRTT
eth0	00000000	010200C0	0003	0	0	0	00000000	0	0	0
tun0	00000000	010200C0	0003	0	0	0	00000080	0	0	0
docker0	000011AC	00000000	0001	0	0	0	0000FFFF	0	0	0
br-1	1004DE0A	00000000	0001	0	0	0	F0FFFFFF	0	0	0
broken	zz	00000000
`
	got := parseRoutes(strings.NewReader(table))
	want := prefixes("172.17.0.0/16", "10.222.4.16/28")
	if len(got) != len(want) || got[0] != want[0] || got[1] != want[1] {
		t.Errorf("the routes are %v, want %v", got, want)
	}
}
