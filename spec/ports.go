package spec

import (
	"net/netip"
	"slices"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/spec/document"
)

// defaultHostIP is the listening address of ports unless the spec says otherwise.
var defaultHostIP = netip.AddrFrom4([4]byte{127, 0, 0, 1})

// published is a host port that a container of the sandbox publishes.
type published struct {
	ip       netip.Addr
	port     uint32
	protocol agboxv1.PortProtocol
	path     []any
}

// ports checks that no two containers of the sandbox publish on the same host port.
func (r *resolver) ports() {
	type port struct {
		*agboxv1.PortMapping
		path []any
	}
	var all []port
	for i, p := range r.spec.GetPorts() {
		all = append(all, port{p, []any{"ports", i}})
	}
	for i, s := range r.spec.GetServices() {
		for j, p := range s.GetPorts() {
			all = append(all, port{p, []any{"services", i, "ports", j}})
		}
	}
	slices.SortStableFunc(all, func(a, b port) int { return r.before(a.path, b.path) })
	var taken []published
	for _, p := range all {
		taken = r.publish(p.PortMapping, p.path, taken)
	}
}

// internal checks what an internal network leaves of other settings.
func (r *resolver) internal() {
	if r.spec.GetNetwork() != agboxv1.NetworkMode_NETWORK_MODE_INTERNAL {
		return
	}
	refuse := func(at ...any) {
		r.problem(at, "No port leads into an internal network: remove the port, or write 'network: open'")
	}
	for i := range r.spec.GetPorts() {
		refuse("ports", i)
	}
	for i, s := range r.spec.GetServices() {
		for j := range s.GetPorts() {
			refuse("services", i, "ports", j)
		}
	}
	if r.spec.GetSecurity().GetAllowHost() {
		r.problem([]any{"security", "allow_host"}, "An internal network reaches no host: leave allow_host out, or write 'network: open'")
	}
}

func (r *resolver) publish(p *agboxv1.PortMapping, path []any, taken []published) []published {
	ip := defaultHostIP
	if text := p.GetHostIp(); text != "" {
		var err error
		if ip, err = netip.ParseAddr(text); err != nil {
			r.problem(append(path, "host_ip"), "%.80q is not an IP address: write for example 127.0.0.1", text)
			return taken
		}
	}
	if p.GetHostPort() == 0 {
		return taken // the engine chooses a free one
	}
	for _, other := range taken {
		if other.port == p.GetHostPort() && other.protocol == p.GetProtocol() && overlap(other.ip, ip) {
			r.problem(append(path, "host_port"), "Port %d/%s of the host is published already (%s): choose another host_port, or 0 for a free one",
				p.GetHostPort(), protocol(p), r.whereIs(other.path))
			return taken
		}
	}
	return append(taken, published{ip, p.GetHostPort(), p.GetProtocol(), path})
}

func overlap(a, b netip.Addr) bool {
	return a == b || a.IsUnspecified() && a.Is4() == b.Is4() || b.IsUnspecified() && a.Is4() == b.Is4()
}

func protocol(p *agboxv1.PortMapping) string {
	if v := p.GetProtocol().Descriptor().Values().ByNumber(p.GetProtocol().Number()); v != nil {
		return document.EnumWord(v)
	}
	return "?"
}
