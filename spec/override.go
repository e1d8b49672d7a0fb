package spec

import (
	"path"
	"slices"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/spec/document"
)

// override removes from the merged files what the caller itself names, in lists whose items
// are otherwise put one after the other. So a flag can replace an item of a file, or vouch
// for one that a file must not ask for.
func (r *resolver) override(fields *agboxv1.CreateSpec) {
	s := r.spec
	at := func(list string) *document.Origin { return r.origin.Fields[list] }
	s.Mounts = others(at("mounts"), s.GetMounts(), fields.GetMounts(), func(a, b *agboxv1.MountSpec) bool {
		return path.Clean(a.GetTarget()) == path.Clean(b.GetTarget())
	})
	s.Ports = others(at("ports"), s.GetPorts(), fields.GetPorts(), func(a, b *agboxv1.PortMapping) bool {
		return a.GetContainerPort() == b.GetContainerPort() && a.GetHostPort() == b.GetHostPort() && a.GetProtocol() == b.GetProtocol()
	})
	s.Services = others(at("services"), s.GetServices(), fields.GetServices(), func(a, b *agboxv1.ServiceSpec) bool { return a.GetName() == b.GetName() })
	if s.GetSecurity() == nil || at("security") == nil {
		return
	}
	equal := func(a, b string) bool { return a == b }
	below := at("security").Fields
	s.Security.CapAdd = others(below["cap_add"], s.GetSecurity().GetCapAdd(), fields.GetSecurity().GetCapAdd(), equal)
	s.Security.CapDrop = others(below["cap_drop"], s.GetSecurity().GetCapDrop(), fields.GetSecurity().GetCapDrop(), equal)
	s.Security.Devices = others(below["devices"], s.GetSecurity().GetDevices(), fields.GetSecurity().GetDevices(), equal)
}

// others returns the items of a list that are not the same as one of by, and removes the
// origins of the rest.
func others[T any](at *document.Origin, list, by []T, same func(a, b T) bool) []T {
	if at == nil || len(list) == 0 || len(by) == 0 {
		return list
	}
	var kept []T
	var origins []*document.Origin
	for i, item := range list {
		if slices.ContainsFunc(by, func(b T) bool { return same(item, b) }) {
			continue
		}
		kept, origins = append(kept, item), append(origins, at.Items[i])
	}
	at.Items = origins
	return kept
}
