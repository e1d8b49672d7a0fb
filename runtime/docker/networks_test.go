package docker

import (
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/network"

	"github.com/agbox/agbox/internal/ids"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/runtime"
)

// networkOf returns the spec of a new sandbox's network.
func networkOf(install string) runtime.NetworkSpec {
	id := runtime.Identity{InstallID: install, SandboxID: ids.New(), Nonce: ids.New(), Role: runtime.RoleNetwork}
	return runtime.NetworkSpec{Identity: id, Name: runtime.NetworkName(id.SandboxID)}
}

func TestNetworksAvoidEachOtherUntilThePoolIsFull(t *testing.T) {
	e, install := testEngine(t)
	var err error
	// Two random subnets, so that leftovers of a killed test run do not matter.
	both := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 223, byte(rand.IntN(256)), byte(rand.IntN(8) * 32)}), subnetBits-1)
	e.subnets, err = newPool([]netip.Prefix{both})
	must(t, err)
	// The host routes none of it, as with an engine in a virtual machine.
	e.routed = func() []netip.Prefix { return nil }
	one, two, three := networkOf(install), networkOf(install), networkOf(install)
	first, err := e.EnsureNetwork(t.Context(), one)
	must(t, err)
	second, err := e.EnsureNetwork(t.Context(), two)
	must(t, err)
	subnets := map[netip.Prefix]bool{}
	for _, id := range []string{first.ID, second.ID} {
		seen, err := rawClient(t).NetworkInspect(t.Context(), id, network.InspectOptions{})
		must(t, err)
		if seen.Driver != "bridge" || seen.Internal {
			t.Errorf("the network is %+v", seen)
		}
		subnet := netip.MustParsePrefix(seen.IPAM.Config[0].Subnet)
		if subnet.Bits() != subnetBits || !both.Overlaps(subnet) {
			t.Errorf("the subnet is %v, want a /%d of %v", subnet, subnetBits, both)
		}
		subnets[subnet] = true
	}
	if len(subnets) != 2 {
		t.Errorf("two networks have the subnets %v", subnets)
	}
	_, err = e.EnsureNetwork(t.Context(), three)
	wantFault(t, err, errdefs.ErrResourceExhausted, agboxv1.ErrorReason_NETWORK_POOL_EXHAUSTED, both.String())
	again, err := e.EnsureNetwork(t.Context(), one)
	if err != nil || again.ID != first.ID {
		t.Errorf("with a full pool the first network is found as %v, %v; want %s", again.ID, err, first.ID)
	}
	inv, err := e.Inventory(t.Context(), install)
	must(t, err)
	if len(inv.Networks) != 2 {
		t.Errorf("the networks are %v, want two", inv.Networks)
	}
	must(t, e.RemoveNetwork(t.Context(), first.ID))
	if _, err := e.EnsureNetwork(t.Context(), three); err != nil {
		t.Errorf("after a removal there is still no subnet: %v", err)
	}
}

func TestTheHostsOwnSubnetsAreSkipped(t *testing.T) {
	e, install := testEngine(t)
	spec := networkOf(install)
	made, err := e.EnsureNetwork(t.Context(), spec)
	must(t, err)
	seen, err := rawClient(t).NetworkInspect(t.Context(), made.ID, network.InspectOptions{})
	must(t, err)
	subnet := netip.MustParsePrefix(seen.IPAM.Config[0].Subnet)
	if len(overlapping(hostPrefixes(), subnet)) == 0 {
		t.Errorf("the host does not know the subnet %v of a network here", subnet)
	}
	if next, _ := e.subnets.pick(spec.SandboxID, subnetBits, hostPrefixes()); next.Overlaps(subnet) {
		t.Errorf("%v would be picked again", next)
	}
}

func TestResolversAreThoseThatTheEngineAsks(t *testing.T) {
	for name, c := range map[string]struct {
		files map[string]string
		want  string
	}{
		"of the host": {
			map[string]string{hostResolvers: "# x\nsearch a.b\nnameserver 10.0.0.2\nnameserver fe80::1%eth0\nnameserver 10.0.0.2\nnameserver 192.0.2.1\n"},
			"[10.0.0.2 192.0.2.1 fe80::1]",
		},
		"behind the stub of systemd": {
			map[string]string{hostResolvers: "nameserver 127.0.0.53\noptions edns0\n", behindStub: "nameserver 192.168.1.1\n"},
			"[192.168.1.1]",
		},
		"of the engine's settings": {
			map[string]string{engineSettings: `{"dns": ["172.17.0.1"], "debug": true}`, hostResolvers: "nameserver 10.0.0.2\n"},
			"[172.17.0.1]",
		},
		"settings without servers": {
			map[string]string{engineSettings: `{"debug": true}`, hostResolvers: "nameserver 10.0.0.2"},
			"[10.0.0.2]",
		},
		"settings that cannot be read": {
			map[string]string{engineSettings: "{", hostResolvers: "nameserver 10.0.0.2"},
			"[10.0.0.2]",
		},
		"no files":        {nil, "[]"},
		"only a loopback": {map[string]string{hostResolvers: "nameserver ::1\nnameserver 127.0.0.1\nnameserver nonsense\nnameserver\n"}, "[]"},
	} {
		t.Run(name, func(t *testing.T) {
			got := fmt.Sprint(resolvers(func(path string) ([]byte, error) {
				if text, ok := c.files[path]; ok {
					return []byte(text), nil
				}
				return nil, fs.ErrNotExist
			}))
			if got != c.want {
				t.Errorf("resolvers are %s, want %s", got, c.want)
			}
		})
	}
}
