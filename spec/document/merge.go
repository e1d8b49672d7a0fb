package document

import (
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Describe makes the origin of a message that comes as a whole from one place in a file,
// or from no file.
func Describe(m protoreflect.Message, at *Origin) *Origin {
	o := at.Under(at.Path)
	o.Fields = make(map[string]*Origin)
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		child := at.Under(Child(at.Path, string(f.Name())))
		switch {
		case f.IsMap():
			child.Fields = make(map[string]*Origin)
			v.Map().Range(func(k protoreflect.MapKey, _ protoreflect.Value) bool {
				child.Fields[k.String()] = at.Under(Key(child.Path, k.String()))
				return true
			})
		case f.IsList():
			for i := range v.List().Len() {
				item := at.Under(Item(child.Path, i))
				if f.Kind() == protoreflect.MessageKind {
					item = Describe(v.List().Get(i).Message(), item)
				}
				child.Items = append(child.Items, item)
			}
		case f.Kind() == protoreflect.MessageKind && f.Message().FullName() != durationName:
			child = Describe(v.Message(), child)
		}
		o.Fields[string(f.Name())] = child
		return true
	})
	return o
}

// replaced are the lists that a merge replaces instead of appending to.
var replaced = map[protoreflect.FullName]bool{
	"agbox.v1.CreateSpec.entrypoint": true, "agbox.v1.AgentSpec.command": true, "agbox.v1.AgentRetry.delays": true,
	"agbox.v1.AgentProbe.exec": true,
}

// Merge merges src over dst, with their origins: scalars replace, maps merge by key,
// lists append, messages merge field by field. An entrypoint and the command of an agent
// replace, because each is one program with its arguments, and so do the pauses of an
// agent, of which each has its place. A scalar that a file sets to its zero value also replaces.
func Merge(dst protoreflect.Message, dstAt *Origin, src protoreflect.Message, srcAt *Origin) {
	if dstAt.Fields == nil {
		dstAt.Fields = make(map[string]*Origin)
	}
	fields := src.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		at := srcAt.Fields[string(f.Name())]
		if at == nil {
			continue // every field that is set has an origin
		}
		name, before := string(f.Name()), dstAt.Fields[string(f.Name())]
		switch {
		case f.IsMap():
			dstAt.Fields[name] = mergeMap(dst.Mutable(f).Map(), before, src.Get(f).Map(), at)
		case f.IsList():
			if replaced[f.FullName()] {
				dst.Clear(f)
				before = nil
			}
			to, from := dst.Mutable(f).List(), src.Get(f).List()
			for j := range from.Len() {
				to.Append(from.Get(j))
			}
			if before != nil {
				at = &Origin{File: at.File, Line: at.Line, Column: at.Column, Path: at.Path, Items: append(before.Items[:len(before.Items):len(before.Items)], at.Items...)}
			}
			dstAt.Fields[name] = at
		case f.Kind() == protoreflect.MessageKind && f.Message().FullName() != durationName:
			if before == nil {
				before = at.Under(at.Path)
				dstAt.Fields[name] = before
			}
			Merge(dst.Mutable(f).Message(), before, src.Get(f).Message(), at)
		case src.Has(f):
			dst.Set(f, src.Get(f))
			dstAt.Fields[name] = at
		default:
			dst.Clear(f)
			dstAt.Fields[name] = at
		}
	}
}

func mergeMap(dst protoreflect.Map, before *Origin, src protoreflect.Map, at *Origin) *Origin {
	out := at.Under(at.Path)
	out.Fields = make(map[string]*Origin)
	if before != nil {
		for k, o := range before.Fields {
			out.Fields[k] = o
		}
	}
	src.Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
		dst.Set(k, v)
		out.Fields[k.String()] = at.Fields[k.String()]
		return true
	})
	return out
}
