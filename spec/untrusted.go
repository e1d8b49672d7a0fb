package spec

import (
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// onlyByFlag refuses settings that files which came with a folder must not contain. The
// author of such a file may be a stranger, or an agent in an earlier sandbox.
func (r *resolver) onlyByFlag() {
	if !r.Request.GetUntrustedFiles() {
		return
	}
	r.securityByFlag(r.spec.GetSecurity(), nil)
	for _, key := range slices.Sorted(maps.Keys(r.spec.GetLabels())) {
		// The sandboxes of a folder are found by them.
		if at := []any{"labels", key}; strings.HasPrefix(key, "agbox.") && r.fromFile(at) {
			r.problem(at, `Labels that begin with "agbox." are set by agbox itself: remove it`)
		}
	}
	for i, p := range r.spec.GetPorts() {
		r.portByFlag(p, []any{"ports", i})
	}
	for i, s := range r.spec.GetServices() {
		r.securityByFlag(s.GetSecurity(), []any{"services", i})
		for j, p := range s.GetPorts() {
			r.portByFlag(p, []any{"services", i, "ports", j})
		}
	}
}

// securityByFlag refuses settings that weaken the isolation. path is that of the
// container.
func (r *resolver) securityByFlag(s *agboxv1.SecuritySpec, path []any) {
	refuse := func(asked bool, flag string, steps ...any) {
		at := append(append(path[:len(path):len(path)], "security"), steps...)
		if !asked || !r.fromFile(at) {
			return
		}
		if len(path) > 0 {
			r.problem(at, "A file must not ask for this, because anybody may have written it: remove it, or describe the service by the flag --service if you want it")
			return
		}
		r.problem(at, "A file must not ask for this, because anybody may have written it: remove it, or give the flag %s if you want it", flag)
	}
	refuse(s.GetPrivileged(), "--privileged", "privileged")
	refuse(s.GetSeccompUnconfined(), "--seccomp-unconfined", "seccomp_unconfined")
	refuse(s.GetAllowDangerousMounts(), "--allow-dangerous-mounts", "allow_dangerous_mounts")
	refuse(s.GetWritableConfig(), "--writable-config", "writable_config")
	for i, name := range s.GetCapAdd() {
		refuse(true, "--cap-add "+name, "cap_add", i)
	}
	for i, name := range s.GetDevices() {
		refuse(true, "--device "+name, "devices", i)
	}
}

func (r *resolver) portByFlag(p *agboxv1.PortMapping, path []any) {
	if p.GetHostIp() == "" || !r.fromFile(append(path, "host_ip")) {
		return
	}
	if ip, err := netip.ParseAddr(p.GetHostIp()); err != nil || ip.IsLoopback() {
		return // an invalid address is reported elsewhere
	}
	r.problem(append(path, "host_ip"), "A file must not publish a port beyond this machine, because anybody may have written it: remove the address, or give the flag --publish %s if you want it", publishFlag(p))
}

// publishFlag is the value of the flag --publish for a port.
func publishFlag(p *agboxv1.PortMapping) string {
	text := strconv.FormatUint(uint64(p.GetContainerPort()), 10)
	if p.GetHostPort() != 0 {
		text = strconv.FormatUint(uint64(p.GetHostPort()), 10) + ":" + text
	} else {
		text = ":" + text
	}
	if p.GetProtocol() != agboxv1.PortProtocol_PORT_PROTOCOL_TCP {
		text += "/" + protocol(p)
	}
	if strings.Contains(p.GetHostIp(), ":") {
		return "[" + p.GetHostIp() + "]:" + text
	}
	return p.GetHostIp() + ":" + text
}

// fromFile reports whether a field comes from a file and not from the caller.
func (r *resolver) fromFile(path []any) bool { return locate(r.origin, path...).File != "" }
