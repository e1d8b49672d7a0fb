package docker

import (
	"cmp"
	"context"
	"encoding/json"
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
