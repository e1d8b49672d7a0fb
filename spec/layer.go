package spec

import (
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
