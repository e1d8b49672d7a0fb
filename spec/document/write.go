package document

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
)

// WriteYAML writes a message as a file that reads back as the same message. It writes
// only fields that are set and that a user may set.
func WriteYAML(m protoreflect.Message) ([]byte, error) {
	var b bytes.Buffer
	out := yaml.NewEncoder(&b)
	out.SetIndent(2)
	if err := out.Encode(written(m)); err != nil {
		return nil, err
	}
	if err := out.Close(); err != nil {
		return nil, err
	}
	return escape(b.Bytes()), nil
}

// WriteNode writes a node as a file that reads back as the same node, but for its lines.
func WriteNode(n *Node) ([]byte, error) {
	raw, err := yaml.Marshal(writtenNode(n))
	return escape(raw), err
}

// Placed writes a node as a file that reads back as the same node, with its parts where they are, as far as that
// is possible: what is reported about them names the right lines.
func Placed(n *Node) []byte {
	p := &placer{line: 1, column: 1}
	p.place(n)
	return escape([]byte(p.b.String()))
}

// placer writes in flow style, in which a line may break between any two parts.
type placer struct {
	b            strings.Builder
	line, column int
}

func (p *placer) put(s string) {
	p.b.WriteString(s)
	p.column += utf8.RuneCountInString(s)
}

// to goes to where a part was, unless it is there already or beyond.
func (p *placer) to(n *Node) {
	for ; p.line < n.Line; p.line++ {
		p.b.WriteByte('\n')
		p.column = 1
	}
	if p.line == n.Line && p.column < n.Column {
		p.put(strings.Repeat(" ", n.Column-p.column))
	}
}

func (p *placer) place(n *Node) {
	switch n.Kind {
	case Map:
		p.put("{")
		for i, e := range n.Entries {
			if i > 0 {
				p.put(",")
			}
			p.place(e.Key)
			p.put(": ")
			p.place(e.Value)
		}
		p.put("}")
	case List:
		p.put("[")
		for i, item := range n.Items {
			if i > 0 {
				p.put(",")
			}
			p.place(item)
		}
		p.put("]")
	case String:
		p.to(n)
		p.put(doubleQuoted(n.Text))
	case Null:
		p.put("null")
	default:
		p.to(n)
		p.put(n.Text)
	}
}

// doubleQuoted is a text on one line, between double quotes.
func doubleQuoted(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r > 0xffff && !unicode.IsPrint(r):
			fmt.Fprintf(&b, `\U%08x`, r)
		case !unicode.IsPrint(r):
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
	return b.String()
}

func writtenNode(n *Node) *yaml.Node {
	switch n.Kind {
	case Map:
		out := &yaml.Node{Kind: yaml.MappingNode}
		for _, e := range n.Entries {
			out.Content = append(out.Content, text(e.Key.Text), writtenNode(e.Value))
		}
		return out
	case List:
		out := &yaml.Node{Kind: yaml.SequenceNode}
		for _, item := range n.Items {
			out.Content = append(out.Content, writtenNode(item))
		}
		return out
	case String:
		return text(n.Text)
	case Null:
		return word("null")
	}
	return word(n.Text)
}

// escape escapes the characters that control a terminal or change the direction of text.
// They are only in double quotes, see text. The encoder escapes most, but not all.
func escape(out []byte) []byte {
	if bytes.IndexFunc(out, steers) < 0 {
		return out
	}
	var b bytes.Buffer
	for _, r := range string(out) {
		if steers(r) {
			fmt.Fprintf(&b, `\u%04x`, r)
		} else {
			b.WriteRune(r)
		}
	}
	return b.Bytes()
}

// steers reports whether a character controls a terminal or changes the direction of text.
// Line breaks and tabs, which text may have, do not.
func steers(r rune) bool {
	return r != '\n' && r != '\t' && (unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r))
}

func text(s string) *yaml.Node {
	n := new(yaml.Node)
	n.SetString(s)
	// A plain word that looks like another type must not be read as that type.
	if n.ShortTag() != "!!str" || n.Style == 0 && !plainly(s) || strings.ContainsFunc(s, steers) {
		n.Tag, n.Style = "!!str", yaml.DoubleQuotedStyle
	}
	return n
}

// plainly reports whether every YAML reader reads the unquoted word as a string, even one
// of version 1.1, which reads "yes" and "12:30" as other types.
func plainly(s string) bool {
	switch s {
	case "", "y", "n", "yes", "no", "on", "off", "Y", "N", "Yes", "No", "On", "Off", "YES", "NO", "ON", "OFF":
		return false
	}
	var n yaml.Node
	if err := yaml.Unmarshal([]byte(s), &n); err != nil || len(n.Content) != 1 {
		return false
	}
	only := n.Content[0]
	return only.Kind == yaml.ScalarNode && only.ShortTag() == "!!str" && only.Value == s && n.HeadComment+n.LineComment+n.FootComment+only.LineComment+only.HeadComment+only.FootComment == ""
}

func word(s string) *yaml.Node { return &yaml.Node{Kind: yaml.ScalarNode, Value: s} }

func written(m protoreflect.Message) *yaml.Node {
	out := &yaml.Node{Kind: yaml.MappingNode}
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		if !m.Has(f) || FilledIn(f.Name()) {
			continue
		}
		out.Content = append(out.Content, word(string(f.Name())), writtenField(f, m.Get(f)))
	}
	return out
}

func writtenField(f protoreflect.FieldDescriptor, v protoreflect.Value) *yaml.Node {
	switch {
	case f.IsMap():
		values := make(map[string]*yaml.Node)
		v.Map().Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
			values[k.String()] = writtenValue(f.MapValue(), v)
			return true
		})
		out := &yaml.Node{Kind: yaml.MappingNode}
		for _, k := range slices.Sorted(maps.Keys(values)) {
			out.Content = append(out.Content, text(k), values[k])
		}
		return out
	case f.IsList():
		out := &yaml.Node{Kind: yaml.SequenceNode}
		for i := range v.List().Len() {
			out.Content = append(out.Content, writtenValue(f, v.List().Get(i)))
		}
		return out
	}
	return writtenValue(f, v)
}

func writtenValue(f protoreflect.FieldDescriptor, v protoreflect.Value) *yaml.Node {
	switch f.Kind() {
	case protoreflect.MessageKind:
		if d, ok := v.Message().Interface().(*durationpb.Duration); ok {
			return word(FormatDuration(d.AsDuration()))
		}
		return written(v.Message())
	case protoreflect.EnumKind:
		if value := f.Enum().Values().ByNumber(v.Enum()); value != nil {
			return word(EnumWord(value))
		}
		return word(strconv.Itoa(int(v.Enum())))
	case protoreflect.StringKind:
		return text(v.String())
	}
	return word(v.String())
}
