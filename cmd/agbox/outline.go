package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// printOutline writes the set fields of a message as indented lines that read like
// YAML, with the field names of the .proto files.
func printOutline(w io.Writer, m proto.Message) error {
	var o outline
	o.fields(m.ProtoReflect(), "")
	_, err := io.WriteString(w, o.String())
	return err
}

type outline struct{ strings.Builder }

func (o *outline) fields(m protoreflect.Message, indent string) {
	list := m.Descriptor().Fields()
	for i := range list.Len() {
		f := list.Get(i)
		if !m.Has(f) {
			continue
		}
		v, key := m.Get(f), indent+string(f.Name())+":"
		switch {
		case f.IsMap():
			o.WriteString(key + "\n")
			o.entries(f, v.Map(), indent+"  ")
		case f.IsList():
			o.WriteString(key + "\n")
			o.items(f, v.List(), indent)
		default:
			o.value(f, v, key, indent)
		}
	}
}

func (o *outline) entries(f protoreflect.FieldDescriptor, m protoreflect.Map, indent string) {
	type entry struct {
		key   string
		value protoreflect.Value
	}
	var all []entry
	m.Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
		all = append(all, entry{k.String(), v})
		return true
	})
	slices.SortFunc(all, func(a, b entry) int { return cmp.Compare(a.key, b.key) })
	for _, e := range all {
		o.value(f.MapValue(), e.value, indent+plainOrQuoted(e.key)+":", indent)
	}
}

func (o *outline) items(f protoreflect.FieldDescriptor, list protoreflect.List, indent string) {
	for i := range list.Len() {
		o.value(f, list.Get(i), indent+"-", indent)
	}
}

// value writes one value after its key. A message goes on the lines below, indented.
func (o *outline) value(f protoreflect.FieldDescriptor, v protoreflect.Value, key, indent string) {
	if f.Kind() != protoreflect.MessageKind {
		fmt.Fprintf(o, "%s %s\n", key, scalar(f, v))
		return
	}
	switch m := v.Message().Interface().(type) {
	case *timestamppb.Timestamp:
		fmt.Fprintf(o, "%s %s\n", key, stamp(m))
	case *durationpb.Duration:
		fmt.Fprintf(o, "%s %v\n", key, m.AsDuration())
	default:
		var inner outline
		inner.fields(v.Message(), indent+"  ")
		if text := inner.String(); strings.HasSuffix(key, "-") && text != "" {
			// The first field of a list item goes on the line of the dash.
			fmt.Fprintf(o, "%s %s", key, strings.TrimPrefix(text, indent+"  "))
			return
		}
		fmt.Fprintf(o, "%s\n%s", key, inner.String())
	}
}

func scalar(f protoreflect.FieldDescriptor, v protoreflect.Value) string {
	switch f.Kind() {
	case protoreflect.EnumKind:
		if name := f.Enum().Values().ByNumber(v.Enum()); name != nil {
			return string(name.Name())
		}
		return strconv.Itoa(int(v.Enum()))
	case protoreflect.StringKind:
		return plainOrQuoted(v.String())
	case protoreflect.BytesKind:
		return strconv.Quote(string(v.Bytes()))
	}
	return v.String()
}

// plainOrQuoted quotes strings that YAML would read differently or that hold control
// characters.
func plainOrQuoted(s string) string {
	quote := s == "" || strings.TrimSpace(s) != s || strings.IndexFunc(s, unprintable) >= 0 ||
		strings.ContainsAny(s[:1], "-?:,[]{}#&*!|>'\"%@`") || strings.Contains(s, ": ") || strings.HasSuffix(s, ":") || strings.Contains(s, " #")
	if quote {
		return strconv.Quote(s)
	}
	return s
}
