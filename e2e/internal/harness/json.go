package harness

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/agbox/agbox/cmd/agbox/view"
)

// ParseJSON reads a message from an object that -o json printed.
func ParseJSON(t *testing.T, text []byte, m proto.Message) {
	t.Helper()
	dec := json.NewDecoder(strings.NewReader(string(text)))
	dec.UseNumber()
	var values map[string]any
	if err := dec.Decode(&values); err != nil {
		t.Fatalf("not a JSON object: %v\n%s", err, Clip(string(text)))
	}
	canonical(m.ProtoReflect().Descriptor(), values)
	text, err := json.Marshal(values)
	if err == nil {
		err = protojson.Unmarshal(text, m)
	}
	if err != nil {
		t.Fatalf("not a %T: %v\n%s", m, err, Clip(string(text)))
	}
}

// canonical turns words and seconds into what package protojson reads, and removes null.
func canonical(d protoreflect.MessageDescriptor, values map[string]any) {
	for key, value := range values {
		f := d.Fields().ByTextName(key)
		switch list, isList := value.([]any); {
		case value == nil:
			delete(values, key)
		case f == nil || f.IsMap():
		case isList:
			for i := range list {
				list[i] = canonicalValue(f, list[i])
			}
		default:
			values[key] = canonicalValue(f, value)
		}
	}
}

func canonicalValue(f protoreflect.FieldDescriptor, value any) any {
	switch inner, isObject := value.(map[string]any); {
	case isObject:
		canonical(f.Message(), inner)
	case f.Message() != nil && f.Message().FullName() == "google.protobuf.Duration":
		return fmt.Sprint(value, "s")
	case f.Enum() != nil:
		for i := range f.Enum().Values().Len() {
			if v := f.Enum().Values().Get(i); view.EnumWord(f.Enum(), v.Number()) == value {
				return string(v.Name())
			}
		}
	}
	return value
}
