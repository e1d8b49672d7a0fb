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

	"github.com/agbox/agbox/cmd/agbox/view"
)

const (
	// foldIndent is how much further than its key a value goes on that is longer than a line.
	foldIndent = "    "
	// leastFold is the least number of columns that such a value has, also beyond the
	// terminal.
	leastFold = 16
)

// printOutline writes the set fields of a message as indented lines that read like
// YAML, with the field names of the .proto files. On a terminal of width columns, a value
// that is longer than a line goes on in the next ones; 0 means that none does.
func printOutline(w io.Writer, m proto.Message, width int) error {
	o := outline{width: width}
	o.fields(m.ProtoReflect(), "")
	_, err := io.WriteString(w, o.String())
	return err
}

type outline struct {
	strings.Builder
	width int
}

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
		o.line(key, scalar(f, v), indent)
		return
	}
	switch m := v.Message().Interface().(type) {
	case *timestamppb.Timestamp:
		o.line(key, stamp(m), indent)
	case *durationpb.Duration:
		o.line(key, m.AsDuration().String(), indent)
	default:
		inner := outline{width: o.width}
		inner.fields(v.Message(), indent+"  ")
		if text := inner.String(); strings.HasSuffix(key, "-") && text != "" {
			// The first field of a list item goes on the line of the dash.
			fmt.Fprintf(o, "%s %s", key, strings.TrimPrefix(text, indent+"  "))
			return
		} else if text == "" {
			fmt.Fprintf(o, "%s {}\n", key)
			return
		}
		fmt.Fprintf(o, "%s\n%s", key, inner.String())
	}
}

// line writes a printable value after its key.
func (o *outline) line(key, value, indent string) {
	if o.width == 0 {
		fmt.Fprintf(o, "%s %s\n", key, value)
		return
	}
	indent += foldIndent
	lines := view.Fold(" "+value, o.width-view.Width(key), max(leastFold, o.width-len(indent)))
	o.WriteString(strings.TrimRight(key+lines[0], " ") + "\n")
	for _, line := range lines[1:] {
		o.WriteString(indent + strings.TrimRight(line, " ") + "\n")
	}
}

func scalar(f protoreflect.FieldDescriptor, v protoreflect.Value) string {
	switch f.Kind() {
	case protoreflect.EnumKind:
		return view.EnumWord(f.Enum(), v.Enum())
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
