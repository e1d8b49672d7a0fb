package contract

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
)

const (
	wireTable    = "../../proto/agbox/v1/testdata/wire.tsv"
	protoPackage = "agbox.v1"
	serviceName  = "SandboxService"
)

// published makes the descriptors of the published contract from its table. They are not
// in the global registry, which has those of the daemon's own API.
func published(t *testing.T) protoreflect.ServiceDescriptor {
	t.Helper()
	file, err := protodesc.NewFile(publishedFile(t), protoregistry.GlobalFiles)
	if err != nil {
		t.Fatal(err)
	}
	return file.Services().ByName(serviceName)
}

// publishedFile is the published contract as one file.
func publishedFile(t *testing.T) *descriptorpb.FileDescriptorProto {
	t.Helper()
	in, err := os.Open(wireTable)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	b := newBuilder()
	for lines := bufio.NewScanner(in); lines.Scan(); {
		if line := lines.Text(); line != "" && !strings.HasPrefix(line, "#") {
			if err := b.row(strings.Split(line, "\t")); err != nil {
				t.Fatalf("%q: %v", line, err)
			}
		}
	}
	return b.file
}

// builder converts rows of the table into a file descriptor.
type builder struct {
	file     *descriptorpb.FileDescriptorProto
	enums    map[string]*descriptorpb.EnumDescriptorProto
	messages map[string]*descriptorpb.DescriptorProto
}

func newBuilder() *builder {
	return &builder{
		file: &descriptorpb.FileDescriptorProto{
			Name: proto.String("published.proto"), Package: proto.String(protoPackage), Syntax: proto.String("proto3"),
			Dependency: []string{"google/protobuf/duration.proto", "google/protobuf/timestamp.proto"},
			Service:    []*descriptorpb.ServiceDescriptorProto{{Name: proto.String(serviceName)}},
		},
		enums: make(map[string]*descriptorpb.EnumDescriptorProto), messages: make(map[string]*descriptorpb.DescriptorProto),
	}
}

// row adds one row: kind, owner, name, number, type.
func (b *builder) row(cells []string) error {
	const columns = 5
	cells = append(cells, make([]string, columns)...)
	kind, owner, name, number, typ := cells[0], cells[1], cells[2], cells[3], cells[4]
	if kind == "rpc" {
		input, output, _ := strings.Cut(typ, " -> ")
		output, streams := strings.CutPrefix(output, "stream ")
		b.message(input)
		b.message(output)
		b.file.Service[0].Method = append(b.file.Service[0].Method, &descriptorpb.MethodDescriptorProto{
			Name: proto.String(name), InputType: qualified(input), OutputType: qualified(output), ServerStreaming: proto.Bool(streams),
		})
		return nil
	}
	n, err := strconv.ParseInt(number, 10, 32)
	if err != nil {
		return err
	}
	if kind == "enum" {
		e := b.enums[owner]
		if e == nil {
			e = &descriptorpb.EnumDescriptorProto{Name: proto.String(owner)}
			b.enums[owner] = e
			b.file.EnumType = append(b.file.EnumType, e)
		}
		e.Value = append(e.Value, &descriptorpb.EnumValueDescriptorProto{Name: proto.String(name), Number: proto.Int32(int32(n))})
		return nil
	}
	return b.field(b.message(owner), name, int32(n), typ)
}

func (b *builder) message(name string) *descriptorpb.DescriptorProto {
	m := b.messages[name]
	if m == nil {
		m = &descriptorpb.DescriptorProto{Name: proto.String(name)}
		b.messages[name] = m
		b.file.MessageType = append(b.file.MessageType, m)
	}
	return m
}

func (b *builder) field(m *descriptorpb.DescriptorProto, name string, number int32, typ string) error {
	f := &descriptorpb.FieldDescriptorProto{
		Name: proto.String(name), Number: proto.Int32(number), Label: descriptorpb.FieldDescriptorProto_LABEL_OPTIONAL.Enum(),
	}
	typ, oneof, inOneof := strings.Cut(typ, " (oneof ")
	switch {
	case inOneof:
		f.OneofIndex = oneofOf(m, strings.TrimSuffix(oneof, ")"))
	case strings.HasPrefix(typ, "optional "):
		typ = strings.TrimPrefix(typ, "optional ")
		f.Proto3Optional, f.OneofIndex = proto.Bool(true), oneofOf(m, "_"+name)
	case strings.HasPrefix(typ, "repeated "):
		typ = strings.TrimPrefix(typ, "repeated ")
		f.Label = descriptorpb.FieldDescriptorProto_LABEL_REPEATED.Enum()
	case typ == "map<string, string>":
		entry := mapEntry(name)
		m.NestedType = append(m.NestedType, entry)
		f.Label = descriptorpb.FieldDescriptorProto_LABEL_REPEATED.Enum()
		typ = m.GetName() + "." + entry.GetName()
	}
	m.Field = append(m.Field, f)
	return b.typed(f, typ)
}

var scalars = map[string]descriptorpb.FieldDescriptorProto_Type{
	"string": descriptorpb.FieldDescriptorProto_TYPE_STRING, "bytes": descriptorpb.FieldDescriptorProto_TYPE_BYTES,
	"bool": descriptorpb.FieldDescriptorProto_TYPE_BOOL, "int32": descriptorpb.FieldDescriptorProto_TYPE_INT32,
	"uint32": descriptorpb.FieldDescriptorProto_TYPE_UINT32, "uint64": descriptorpb.FieldDescriptorProto_TYPE_UINT64,
}

func (b *builder) typed(f *descriptorpb.FieldDescriptorProto, typ string) error {
	if scalar, ok := scalars[typ]; ok {
		f.Type = scalar.Enum()
		return nil
	}
	f.Type = descriptorpb.FieldDescriptorProto_TYPE_MESSAGE.Enum()
	if b.enums[typ] != nil {
		f.Type = descriptorpb.FieldDescriptorProto_TYPE_ENUM.Enum()
	}
	f.TypeName = qualified(typ)
	if strings.HasPrefix(typ, "google.protobuf.") {
		f.TypeName = proto.String("." + typ)
	} else if strings.ToUpper(typ[:1]) != typ[:1] {
		return fmt.Errorf("there is no type %s", typ)
	}
	return nil
}

func qualified(name string) *string { return proto.String("." + protoPackage + "." + name) }

func oneofOf(m *descriptorpb.DescriptorProto, name string) *int32 {
	for i, o := range m.GetOneofDecl() {
		if o.GetName() == name {
			return proto.Int32(int32(i))
		}
	}
	m.OneofDecl = append(m.OneofDecl, &descriptorpb.OneofDescriptorProto{Name: proto.String(name)})
	return proto.Int32(int32(len(m.OneofDecl) - 1))
}

// mapEntry returns the message that encodes an entry of map<string, string>.
func mapEntry(field string) *descriptorpb.DescriptorProto {
	var name strings.Builder
	for word := range strings.SplitSeq(field, "_") {
		name.WriteString(strings.ToUpper(word[:1]) + word[1:])
	}
	part := func(name string, number int32) *descriptorpb.FieldDescriptorProto {
		return &descriptorpb.FieldDescriptorProto{
			Name: proto.String(name), Number: proto.Int32(number), Label: descriptorpb.FieldDescriptorProto_LABEL_OPTIONAL.Enum(),
			Type: descriptorpb.FieldDescriptorProto_TYPE_STRING.Enum(),
		}
	}
	return &descriptorpb.DescriptorProto{
		Name: proto.String(name.String() + "Entry"), Field: []*descriptorpb.FieldDescriptorProto{part("key", 1), part("value", 2)},
		Options: &descriptorpb.MessageOptions{MapEntry: proto.Bool(true)},
	}
}
