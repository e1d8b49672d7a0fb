package spec

import (
	"path"
	"path/filepath"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/spec/document"
)

// layer is a message that is filled from a file of another tool, whose fields have other
// names. It records where each field came from.
type layer struct {
	m  protoreflect.Message
	at *document.Origin
}

func newLayer(m proto.Message, at *document.Origin) *layer {
	if at.Fields == nil {
		at.Fields = make(map[string]*document.Origin)
	}
	return &layer{m: m.ProtoReflect(), at: at}
}

// field returns the descriptor of a field. The field must exist.
func (l *layer) field(name string) protoreflect.FieldDescriptor {
	return l.m.Descriptor().Fields().ByName(protoreflect.Name(name))
}

// set sets a scalar.
func (l *layer) set(name string, value any, at *document.Origin) {
	l.m.Set(l.field(name), protoreflect.ValueOf(value))
	l.at.Fields[name] = at
}

// list returns the origin of a list. It makes the origin for the first item.
func (l *layer) list(name string, at *document.Origin) *document.Origin {
	o := l.at.Fields[name]
	if o == nil {
		o = at.Under(at.Path)
		l.at.Fields[name] = o
	}
	return o
}

// add appends a message to a list.
func (l *layer) add(name string, item proto.Message, at *document.Origin) {
	l.append(name, item, document.Describe(item.ProtoReflect(), at), at)
}

// append appends a message to a list. The origins of its fields are known.
func (l *layer) append(name string, item proto.Message, from, at *document.Origin) {
	l.m.Mutable(l.field(name)).List().Append(protoreflect.ValueOfMessage(item.ProtoReflect()))
	o := l.list(name, at)
	o.Items = append(o.Items, from)
}

// words appends strings to a list.
func (l *layer) words(name string, words []string, at *document.Origin) {
	for _, w := range words {
		l.m.Mutable(l.field(name)).List().Append(protoreflect.ValueOfString(w))
		o := l.list(name, at)
		o.Items = append(o.Items, at)
	}
}

// entry sets a key of a map.
func (l *layer) entry(name, key, value string, at *document.Origin) {
	l.m.Mutable(l.field(name)).Map().Set(protoreflect.ValueOfString(key).MapKey(), protoreflect.ValueOfString(value))
	o := l.list(name, at)
	if o.Fields == nil {
		o.Fields = make(map[string]*document.Origin)
	}
	o.Fields[key] = at
}

// below returns the layer of a message within the message.
func (l *layer) below(name string, at *document.Origin) *layer {
	o := l.list(name, at)
	if o.Fields == nil {
		o.Fields = make(map[string]*document.Origin)
	}
	return &layer{m: l.m.Mutable(l.field(name)).Message(), at: o}
}

func (l *layer) spec() *agboxv1.CreateSpec {
	s, _ := l.m.Interface().(*agboxv1.CreateSpec)
	return s
}

// add merges one layer. Its relative paths refer to dir.
func (r *resolver) add(layer *agboxv1.CreateSpec, at *document.Origin, dir string) {
	r.absolute(layer, at, dir)
	r.imageOrBuild(layer, at)
	if at.File != "" {
		// A missing field is reported in the last file.
		r.origin.File, r.origin.Line, r.origin.Column = at.File, max(at.Line, 1), max(at.Column, 1)
	}
	document.Merge(r.spec.ProtoReflect(), r.origin, layer.ProtoReflect(), at)
}

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

// absolute makes the host paths of a layer absolute: "~" is the caller's home, and
// relative paths refer to the folder of the file.
func (r *resolver) absolute(layer *agboxv1.CreateSpec, at *document.Origin, dir string) {
	for i, m := range layer.GetMounts() {
		m.Source = r.absolutePath(m.GetSource(), locate(at, "mounts", i, "source"), dir)
	}
	for i, c := range layer.GetCopies() {
		c.Source = r.absolutePath(c.GetSource(), locate(at, "copies", i, "source"), dir)
	}
	if w := layer.GetWorkspace(); w != nil {
		w.Source = r.absolutePath(w.GetSource(), locate(at, "workspace", "source"), dir)
	}
	r.absoluteBuild(layer.GetBuild(), at, dir)
	for i, s := range layer.GetServices() {
		r.absoluteBuild(s.GetBuild(), locate(at, "services", i), dir)
		for j, c := range s.GetCopies() {
			c.Source = r.absolutePath(c.GetSource(), locate(at, "services", i, "copies", j, "source"), dir)
		}
	}
	if a := layer.GetAgent(); a != nil {
		a.Work = r.absolutePath(a.GetWork(), locate(at, "agent", "work"), dir)
	}
}

// absoluteBuild is absolute for the build of a container at an origin.
func (r *resolver) absoluteBuild(b *agboxv1.BuildSpec, at *document.Origin, dir string) {
	if b == nil {
		return
	}
	b.Context = r.absolutePath(b.GetContext(), locate(at, "build", "context"), dir)
	for i, f := range b.GetFeatures() {
		f.Source = r.absolutePath(f.GetSource(), locate(at, "build", "features", i, "source"), dir)
	}
}

func (r *resolver) absolutePath(path string, at *document.Origin, dir string) string {
	home := r.Request.GetHomeDir()
	switch {
	case path == "" || strings.Contains(path, "\x00"):
		return path // reported by the rules
	case strings.HasPrefix(path, "$"):
		r.report.Problem(at, "%.80q begins with a variable, and variables are not replaced here: write ~ for your home, or the path itself", path)
	case path == "~" || strings.HasPrefix(path, "~/"):
		if filepath.IsAbs(home) {
			return filepath.Join(home, path[1:])
		}
		r.report.Problem(at, "%.80q begins with ~, and the request does not say which home that is: give home_dir, or write an absolute path", path)
	case strings.HasPrefix(path, "~"):
		r.report.Problem(at, "%.80q names somebody's home by ~: write an absolute path, or ./%[1]s if the name begins with ~", path)
	case filepath.IsAbs(path):
		return filepath.Clean(path)
	case filepath.IsAbs(dir):
		return filepath.Join(dir, path)
	default:
		r.report.Problem(at, "%.80q is relative, and the request does not say to which folder: give config_dir, or write an absolute path", path)
	}
	return path
}
