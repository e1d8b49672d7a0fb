package document

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
)

// Reader fills messages from the nodes of one file.
type Reader struct {
	File   string
	Report *Report
}

// filledIn are fields that only the daemon sets.
var filledIn = []protoreflect.Name{"tool_projections", "sources_resolved", "published", "derived", "reference"}

// FilledIn reports whether only the daemon sets the field.
func FilledIn(field protoreflect.Name) bool { return slices.Contains(filledIn, field) }

// At returns the origin of a node.
func (r *Reader) At(n *Node, path string) *Origin {
	return &Origin{File: cmp.Or(n.File, r.File), Line: n.Line, Column: n.Column, Path: path}
}

// Message fills m from a map and returns the origins of its fields. Invalid parts are
// reported and left out.
func (r *Reader) Message(n *Node, m protoreflect.Message, path string) *Origin {
	return r.message(n, m, r.At(n, path))
}

func (r *Reader) message(n *Node, m protoreflect.Message, o *Origin) *Origin {
	path := o.Path
	o.Fields = make(map[string]*Origin)
	if n.Kind == Null {
		return o
	}
	if n.Kind != Map {
		r.Report.Problem(o, "Here should be a map of fields such as %s, and there is %s", example(m.Descriptor()), n.what())
		return o
	}
	fields := m.Descriptor().Fields()
	for _, e := range n.Entries {
		at := r.At(e.Key, Child(path, e.Key.Text))
		f := fields.ByName(protoreflect.Name(e.Key.Text))
		if f == nil || FilledIn(f.Name()) {
			r.unknown(at, e.Key.Text, m.Descriptor(), path)
			continue
		}
		// The origin of a field is its key: the value may start on a later line.
		if got := r.field(e.Value, f, m, at); got != nil {
			o.Fields[e.Key.Text] = got
		}
	}
	return o
}

// example names some fields of a message for a sentence.
func example(d protoreflect.MessageDescriptor) string {
	names := make([]string, 0, 3)
	for i := range min(d.Fields().Len(), 3) {
		names = append(names, string(d.Fields().Get(i).Name()))
	}
	return strings.Join(names, ", ")
}

// field sets one field and returns its origin, or nil if it was left out.
func (r *Reader) field(n *Node, f protoreflect.FieldDescriptor, m protoreflect.Message, o *Origin) *Origin {
	switch {
	case f.IsMap():
		return r.entries(n, f, m.Mutable(f).Map(), o)
	case f.IsList():
		return r.items(n, f, m.Mutable(f).List(), o)
	case f.Kind() == protoreflect.MessageKind && f.Message().FullName() != durationName:
		if n.Kind == String {
			if short, ok := r.short(n, f, o); short != nil {
				m.Set(f, protoreflect.ValueOfMessage(short[0].ProtoReflect()))
				return Describe(short[0].ProtoReflect(), o)
			} else if ok {
				return nil
			}
		}
		if n.Kind == Null {
			return nil
		}
		return r.message(n, m.Mutable(f).Message(), o)
	}
	v, ok := r.scalar(n, f, o)
	if !ok {
		return nil
	}
	m.Set(f, v)
	return o
}

// entries reads a map of strings, or a list of KEY=VALUE. A map of times is only a map.
func (r *Reader) entries(n *Node, f protoreflect.FieldDescriptor, into protoreflect.Map, o *Origin) *Origin {
	o.Fields = make(map[string]*Origin)
	add := func(at *Origin, key string, value protoreflect.Value) {
		if before := o.Fields[key]; before != nil {
			r.Report.Problem(at, "%s is set already, in line %d: remove one of the two", shorten(key), before.Line)
			return
		}
		into.Set(protoreflect.ValueOfString(key).MapKey(), value)
		o.Fields[key] = at
	}
	texts := f.MapValue().Kind() == protoreflect.StringKind
	switch {
	case n.Kind == Null:
	case n.Kind == Map:
		for _, e := range n.Entries {
			at := r.At(e.Key, Key(o.Path, e.Key.Text))
			if v, ok := r.listScalar(e.Value, f.MapValue(), at); ok {
				add(at, e.Key.Text, v)
			}
		}
	case n.Kind == List && texts:
		for i, item := range n.Items {
			at := r.At(item, Item(o.Path, i))
			key, value, ok := strings.Cut(item.Text, "=")
			if item.Kind != String || !ok {
				r.Report.Problem(at, "%s has no value: write KEY=VALUE, or KEY: VALUE in a map", item.what())
				continue
			}
			add(at, key, protoreflect.ValueOfString(value))
		}
	case !texts:
		r.Report.Problem(o, "Here should be a map such as NAME: 60s, and there is %s", n.what())
	default:
		r.Report.Problem(o, "Here should be a map such as KEY: VALUE, and there is %s", n.what())
	}
	return o
}

// items reads a list. One word may stand for several items, such as a range of ports.
func (r *Reader) items(n *Node, f protoreflect.FieldDescriptor, into protoreflect.List, o *Origin) *Origin {
	switch {
	case n.Kind == Null:
		return o
	case n.Kind == String && f.Kind() == protoreflect.StringKind && wholes[f.Name()] != nil:
		words, err := wholes[f.Name()](n.Text)
		if err != nil {
			r.Report.Problem(o, "%s", Sentence(err))
			return nil
		}
		for _, w := range words {
			into.Append(protoreflect.ValueOfString(w))
			o.Items = append(o.Items, o.Under(o.Path))
		}
		return o
	case n.Kind == Map && len(n.Entries) > 0 && f.Kind() == protoreflect.MessageKind && f.Message().Fields().ByName("name") != nil:
		r.Report.Problem(o, "Here should be a list, and there is a map: write '- name: %.80s' and the rest below it", n.Entries[0].Key.Text)
		return nil
	case n.Kind != List:
		r.Report.Problem(o, "Here should be a list, and there is %s: write it as [%s], or on a line of its own behind a '-'", n.what(), listExample(n))
		return nil
	}
	for i, item := range n.Items {
		r.item(item, f, into, o, Item(o.Path, i))
	}
	return o
}

func listExample(n *Node) string {
	if n.scalar() && len(n.Text) < 40 && n.Text != "" {
		return n.Text
	}
	return "..."
}

func (r *Reader) item(n *Node, f protoreflect.FieldDescriptor, into protoreflect.List, list *Origin, path string) {
	at := r.At(n, path)
	if f.Kind() != protoreflect.MessageKind || f.Message().FullName() == durationName {
		if v, ok := r.listScalar(n, f, at); ok {
			into.Append(v)
			list.Items = append(list.Items, at)
		}
		return
	}
	if n.scalar() && n.Kind != Null {
		short, known := r.short(n, f, at)
		for _, m := range short {
			into.Append(protoreflect.ValueOfMessage(m.ProtoReflect()))
			list.Items = append(list.Items, Describe(m.ProtoReflect(), at))
		}
		if known {
			return
		}
	}
	if n.Kind == Null {
		r.Report.Problem(at, "There is nothing behind the '-': write an item, or remove the line")
		return
	}
	element := into.NewElement()
	got := r.Message(n, element.Message(), path)
	if n.Kind == Map {
		into.Append(element)
		list.Items = append(list.Items, got)
	}
}

// short reads a message that is written as one word. known is false if the message has no
// such form.
func (r *Reader) short(n *Node, f protoreflect.FieldDescriptor, at *Origin) (all []proto.Message, known bool) {
	read := shorts[f.Message().Name()]
	if read == nil {
		return nil, false
	}
	all, err := read(n.Text)
	if err != nil {
		r.Report.Problem(at, "%s", Sentence(err))
		return nil, true
	}
	return all, true
}

func (r *Reader) listScalar(n *Node, f protoreflect.FieldDescriptor, at *Origin) (protoreflect.Value, bool) {
	if f.Kind() != protoreflect.StringKind {
		return r.scalar(n, f, at)
	}
	text, ok := r.text(n, at, true)
	return protoreflect.ValueOfString(text), ok
}

// numeric are text fields that accept a number.
var numeric = []protoreflect.Name{
	"cpu_limit", "memory_limit", "disk_limit", "shm_size", "size", "mode", "gpus", "user", "owner", "cost_usd", "http",
}

// Numeric reports whether a text field accepts a number.
func Numeric(field protoreflect.Name) bool { return slices.Contains(numeric, field) }

func (r *Reader) scalar(n *Node, f protoreflect.FieldDescriptor, at *Origin) (protoreflect.Value, bool) {
	wrong := func(want string) (protoreflect.Value, bool) {
		r.Report.Problem(at, "Here should be %s, and there is %s", want, n.what())
		return protoreflect.Value{}, false
	}
	switch f.Kind() {
	case protoreflect.StringKind:
		text, ok := r.text(n, at, Numeric(f.Name()))
		return protoreflect.ValueOfString(text), ok
	case protoreflect.BoolKind:
		if n.Kind != Bool {
			return wrong("true or false")
		}
		return protoreflect.ValueOfBool(strings.EqualFold(n.Text, "true")), true
	case protoreflect.EnumKind:
		return r.enum(n, f, at)
	case protoreflect.Uint32Kind:
		v, err := strconv.ParseUint(n.Text, 10, 32)
		if !n.scalar() || err != nil {
			return wrong("a whole number from 0 to 4294967295")
		}
		return protoreflect.ValueOfUint32(uint32(v)), true
	case protoreflect.Uint64Kind:
		v, err := strconv.ParseUint(n.Text, 10, 64)
		if !n.scalar() || err != nil {
			return wrong("a whole number of 0 or more")
		}
		return protoreflect.ValueOfUint64(v), true
	case protoreflect.Int64Kind:
		v, err := ParseLimit(n.Text)
		if !n.scalar() || err != nil {
			return wrong("a whole number")
		}
		return protoreflect.ValueOfInt64(v), true
	case protoreflect.MessageKind: // a duration
		if !n.scalar() || n.Kind == Null || n.Kind == Bool {
			return wrong("a time such as 500ms, 10m or 1h30m")
		}
		d, err := ParseDuration(n.Text)
		if err != nil {
			r.Report.Problem(at, "%s", Sentence(err))
			return protoreflect.Value{}, false
		}
		return protoreflect.ValueOfMessage(durationpb.New(d).ProtoReflect()), true
	}
	return wrong("something else")
}

// text reads a string. If numbers is set, a number is accepted as written. true and false
// are never accepted, because their meaning as text is unclear.
func (r *Reader) text(n *Node, at *Origin, numbers bool) (string, bool) {
	switch {
	case n.Kind == String, numbers && (n.Kind == Int || n.Kind == Float):
		return n.Text, true
	case n.Kind == Null:
		r.Report.Problem(at, "There is no value: write one, \"\" for an empty one, or remove the line")
	case n.Kind == Bool, n.Kind == Int, n.Kind == Float:
		r.Report.Problem(at, "Here should be text, and there is %s: put it in quotes if it is meant", n.Text)
	default:
		r.Report.Problem(at, "Here should be text, and there is %s", n.what())
	}
	return "", false
}

func (r *Reader) enum(n *Node, f protoreflect.FieldDescriptor, at *Origin) (protoreflect.Value, bool) {
	if v := EnumValue(f.Enum(), n.Text); v != nil && n.Kind == String {
		return protoreflect.ValueOfEnum(v.Number()), true
	}
	words := EnumWords(f.Enum())
	hint := ""
	if near := nearest(strings.ToLower(n.Text), words); near != "" {
		hint = ": write " + near + " if that is meant"
	}
	r.Report.Problem(at, "%s is not one of %s%s", n.what(), strings.Join(words, ", "), hint)
	return protoreflect.Value{}, false
}

// EnumValue finds a value by its full name or its short form. It returns nil if there is
// none.
func EnumValue(d protoreflect.EnumDescriptor, word string) protoreflect.EnumValueDescriptor {
	for i := range d.Values().Len() {
		v := d.Values().Get(i)
		if word == string(v.Name()) || word == EnumWord(v) && !unspecified(v) {
			return v
		}
	}
	return nil
}

// EnumWord returns the short form of a value: its name without the prefix of the enum, in
// lower case.
func EnumWord(v protoreflect.EnumValueDescriptor) string {
	prefix := screaming(string(v.Parent().Name())) + "_"
	return strings.ToLower(strings.TrimPrefix(string(v.Name()), prefix))
}

// EnumWords returns the short forms of an enum, without UNSPECIFIED.
func EnumWords(d protoreflect.EnumDescriptor) []string {
	var words []string
	for i := range d.Values().Len() {
		if v := d.Values().Get(i); !unspecified(v) {
			words = append(words, EnumWord(v))
		}
	}
	return words
}

func unspecified(v protoreflect.EnumValueDescriptor) bool {
	return strings.HasSuffix(string(v.Name()), "_UNSPECIFIED")
}

// screaming converts PullPolicy to PULL_POLICY.
func screaming(name string) string {
	var b strings.Builder
	for i, c := range name {
		if unicode.IsUpper(c) && i > 0 {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToUpper(c))
	}
	return b.String()
}

// Sentence makes a whole sentence of an error that is part of one.
func Sentence(err error) string {
	text := err.Error()
	first, rest := text[:1], text[1:]
	return fmt.Sprintf("%s%s", strings.ToUpper(first), rest)
}

// unknown reports that a message has no such field, and which field may be meant.
func (r *Reader) unknown(at *Origin, key string, d protoreflect.MessageDescriptor, path string) {
	names := make([]string, 0, d.Fields().Len())
	for i := range d.Fields().Len() {
		if name := d.Fields().Get(i).Name(); !FilledIn(name) {
			names = append(names, string(name))
		}
	}
	meant := elsewhere[key]
	if d.Fields().ByName(protoreflect.Name(meant)) == nil {
		meant = nearest(snake(key), names)
	}
	if meant == "" {
		r.Report.Problem(at, "There is no field %s here: the fields are %s", shorten(key), strings.Join(names, ", "))
		return
	}
	r.Report.Problem(at, "There is no field %s here: write %s if that is meant", shorten(key), meant)
	// Otherwise the missing field would be reported too.
	r.Report.Spoil(at.File, Child(path, meant))
}
