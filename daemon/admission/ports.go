package admission

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/netip"
	"strconv"
	"syscall"

	"github.com/containerd/errdefs"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/daemon/machine"
	"github.com/agbox/agbox/internal/fault"
)

// localhost is the default address of published ports.
const localhost = "127.0.0.1"

// checkPorts refuses a new sandbox if one of its host ports is in use, before anything is
// made. If a port is taken later, only the start fails.
func (c *Controller) checkPorts(ctx context.Context, id string, spec *agboxv1.CreateSpec) error {
	ports := chosenPorts(spec)
	if len(ports) == 0 {
		return nil
	}
	if _, err := c.o.Sandboxes.FindSandbox(ctx, id); err == nil {
		return nil // a repeated request: the ports are its own
	}
	engine, err := c.o.Engine.Abilities(ctx)
	if err != nil {
		return err
	}
	for _, p := range ports {
		if err := c.oursHas(p); err != nil {
			return err
		}
		if engine.Local {
			if err := tryPort(ctx, p); err != nil {
				return err
			}
		}
	}
	return nil
}

// chosenPorts returns the mappings of all containers that name a host port.
func chosenPorts(spec *agboxv1.CreateSpec) []*agboxv1.PortMapping {
	var chosen []*agboxv1.PortMapping
	add := func(ports []*agboxv1.PortMapping) {
		for _, p := range ports {
			if p.GetHostPort() != 0 {
				chosen = append(chosen, p)
			}
		}
	}
	add(spec.GetPorts())
	for _, service := range spec.GetServices() {
		add(service.GetPorts())
	}
	return chosen
}

// oursHas looks for the port among sandboxes that run or will run.
func (c *Controller) oursHas(wanted *agboxv1.PortMapping) error {
	for _, sb := range c.o.Sandboxes.Sandboxes() {
		if sb.State != machine.Pending && sb.State != machine.Ready {
			continue
		}
		for _, p := range chosenPorts(sb.Spec) {
			if p.GetHostPort() == wanted.GetHostPort() && p.GetProtocol() == wanted.GetProtocol() && sameAddress(p, wanted) {
				return portTaken(wanted, "sandbox "+cmp.Or(sb.Name, sb.ID)+" publishes it").With("sandbox_id", sb.ID)
			}
		}
	}
	return nil
}

func sameAddress(a, b *agboxv1.PortMapping) bool {
	x, xErr := netip.ParseAddr(cmp.Or(a.GetHostIp(), localhost))
	y, yErr := netip.ParseAddr(cmp.Or(b.GetHostIp(), localhost))
	if xErr != nil || yErr != nil {
		return false
	}
	return x == y || (x.IsUnspecified() || y.IsUnspecified()) && x.Is4() == y.Is4()
}

// tryPort listens on a port for a moment. It accepts ports that it may not try, such as
// ports below 1024 for an unprivileged user. Like the engine, it listens on one address
// family only: plain "0.0.0.0" would mean all addresses of both.
func tryPort(ctx context.Context, p *agboxv1.PortMapping) error {
	host := cmp.Or(p.GetHostIp(), localhost)
	address := net.JoinHostPort(host, strconv.Itoa(int(p.GetHostPort())))
	family := "6"
	if ip, err := netip.ParseAddr(host); err == nil && ip.Is4() {
		family = "4"
	}
	var config net.ListenConfig
	var err error
	switch p.GetProtocol() {
	case agboxv1.PortProtocol_PORT_PROTOCOL_TCP:
		var l net.Listener
		if l, err = config.Listen(ctx, "tcp"+family, address); err == nil {
			err = l.Close()
		}
	case agboxv1.PortProtocol_PORT_PROTOCOL_UDP:
		var l net.PacketConn
		if l, err = config.ListenPacket(ctx, "udp"+family, address); err == nil {
			err = l.Close()
		}
	}
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return portTaken(p, "another program listens on it")
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return fault.New(errdefs.ErrFailedPrecondition, agboxv1.ErrorReason_PORT_TAKEN,
			"Port %d cannot be published on %s, which is no address of this host: correct host_ip.", p.GetHostPort(), p.GetHostIp())
	}
	return nil
}

func portTaken(p *agboxv1.PortMapping, why string) *fault.Error {
	return fault.New(errdefs.ErrAlreadyExists, agboxv1.ErrorReason_PORT_TAKEN,
		"Port %d of the host cannot be published on %s, because %s: choose another host_port, or 0 for a free one.",
		p.GetHostPort(), cmp.Or(p.GetHostIp(), localhost), why)
}
