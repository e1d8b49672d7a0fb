package spec

import (
	"slices"
	"strings"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/spec/document"
)

// companionsKey is the published key of a sandbox file for services that READY does not
// wait for: a map from the name of each service to its other fields.
const companionsKey = "companion_containers"

// agboxFile reads a sandbox file into a layer.
func (r *resolver) agboxFile(name string, node *document.Node) (*agboxv1.CreateSpec, *document.Origin) {
	reader := &document.Reader{File: name, Report: r.report}
	companions := node.Take(companionsKey)
	layer := new(agboxv1.CreateSpec)
	at := reader.Message(node, layer.ProtoReflect(), "")
	requiredInFile(layer)
	if companions.Value != nil {
		r.companions(reader, companions, newLayer(layer, at))
	}
	return layer, at
}

// companions adds the services of a map, ordered by name.
func (r *resolver) companions(reader *document.Reader, all document.Entry, into *layer) {
	at := reader.At(all.Key, companionsKey)
	switch all.Value.Kind {
	case document.Map:
	case document.Null:
		return
	default:
		r.report.Problem(at, "Here should be a map such as 'redis: {image: redis:7}': a list of services is written under services")
		return
	}
	entries := slices.SortedFunc(slices.Values(all.Value.Entries), func(a, b document.Entry) int { return strings.Compare(a.Key.Text, b.Key.Text) })
	for _, e := range entries {
		path := document.Child(companionsKey, e.Key.Text)
		if own := e.Value.Take("name"); own.Key != nil {
			r.report.Problem(reader.At(own.Key, document.Child(path, "name")), "The key is the name of the service: leave name out")
		}
		service := new(agboxv1.ServiceSpec)
		from := reader.Message(e.Value, service.ProtoReflect(), path)
		if e.Value.Kind != document.Map && e.Value.Kind != document.Null {
			continue // reported by the reader
		}
		service.Name, from.Fields["name"] = e.Key.Text, reader.At(e.Key, path)
		into.append("services", service, from, at)
	}
}

// requiredInFile sets the default of files: a service is required.
func requiredInFile(layer *agboxv1.CreateSpec) {
	for _, s := range layer.GetServices() {
		if s.Required == nil {
			s.Required = new(true)
		}
	}
}

// requiredElsewhere sets the default of companion_containers and of requests, as
// published: READY does not wait for a service, unless a required one depends on it.
func (r *resolver) requiredElsewhere() {
	byName := make(map[string]*agboxv1.ServiceSpec)
	for _, s := range r.spec.GetServices() {
		byName[s.GetName()] = s
	}
	for changed := true; changed; {
		changed = false
		for _, s := range r.spec.GetServices() {
			for _, d := range s.GetDependsOn() {
				if on := byName[d.GetName()]; s.GetRequired() && on != nil && on.Required == nil {
					on.Required, changed = new(true), true
				}
			}
		}
	}
	for _, s := range r.spec.GetServices() {
		if s.Required == nil {
			s.Required = new(false)
		}
	}
}
