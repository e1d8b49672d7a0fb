package docker

import (
	"encoding/json"
	"net/netip"
	"os"
	"slices"
	"strings"
)

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
