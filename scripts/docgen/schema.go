package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"buf.build/gen/go/bufbuild/protovalidate/protocolbuffers/go/buf/validate"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/spec/document"
)

// object is a JSON object. encoding/json sorts its keys, so the output is stable.
type object = map[string]any

// messages returns the messages of a sandbox file, outermost first.
func messages() []protoreflect.MessageDescriptor {
	all := []protoreflect.MessageDescriptor{new(agboxv1.CreateSpec).ProtoReflect().Descriptor()}
	seen := map[protoreflect.FullName]bool{all[0].FullName(): true}
	for i := 0; i < len(all); i++ {
		for j := range all[i].Fields().Len() {
			m := all[i].Fields().Get(j).Message()
			if m == nil || document.FilledIn(all[i].Fields().Get(j).Name()) || m.IsMapEntry() || m.FullName() == "google.protobuf.Duration" || seen[m.FullName()] {
				continue
			}
			seen[m.FullName()] = true
			all = append(all, m)
		}
	}
	return all
}

// schemaOf returns the JSON Schema of a sandbox file, in draft 7, which editors support.
func schemaOf(comments map[string]string) ([]byte, error) {
	definitions := object{}
	var root object
	for i, m := range messages() {
		properties := object{}
		var required []string
		for j := range m.Fields().Len() {
			f := m.Fields().Get(j)
			if document.FilledIn(f.Name()) {
				continue
			}
			if needed(f) {
				required = append(required, string(f.Name()))
			}
			properties[string(f.Name())] = fieldSchema(f, comments[string(m.Name())+"."+string(f.Name())])
		}
		schema := object{"type": "object", "additionalProperties": false, "properties": properties, "description": comments[string(m.Name())]}
		if len(required) > 0 {
			schema["required"] = required
		}
		if i == 0 {
			properties["base"] = baseSchema()
			properties["companion_containers"] = companionsSchema()
			root = schema
			continue
		}
		definitions[string(m.Name())] = schema
	}
	definitions[companion] = companionSchema(definitions["ServiceSpec"].(object))
	root["$schema"] = "http://json-schema.org/draft-07/schema#"
	root["title"] = "A sandbox of agbox (agbox.yaml)"
	root["definitions"] = definitions
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	err := enc.Encode(root)
	return out.Bytes(), err
}

// companion is the name of the schema of one entry in companion_containers.
const companion = "CompanionContainer"

// companionsSchema is the schema of companion_containers, a key that is not in the
// .proto file: a map from names to services.
func companionsSchema() object {
	return object{
		"description":          "Services under their names, for which READY does not wait unless they say required.",
		"type":                 []string{"object", "null"},
		"additionalProperties": object{"$ref": "#/definitions/" + companion},
	}
}

// companionSchema is the schema of a service without its name, which is the map's key.
func companionSchema(service object) object {
	properties := maps.Clone(service["properties"].(object))
	delete(properties, "name")
	required := slices.DeleteFunc(slices.Clone(service["required"].([]string)), func(field string) bool { return field == "name" })
	return object{"type": "object", "additionalProperties": false, "properties": properties, "required": required, "description": "A service whose name is the key."}
}

// baseSchema is the schema of "base", a key that is not in the .proto file.
func baseSchema() object {
	file := object{"anyOf": []object{{"type": "string"}, {
		"type": "object", "additionalProperties": false, "required": []string{"file"}, "properties": object{
			"file":    object{"type": "string", "description": "Path of the file, relative to this one."},
			"format":  object{"enum": []string{"agbox", "compose", "devcontainer"}, "description": "Language of the file, where its name does not tell."},
			"primary": object{"type": "string", "description": "Of a compose file: the service that is the primary container."},
		},
	}}}
	return object{
		"description": "Files to begin with: a devcontainer.json, a compose file or another sandbox file. Each overrides the ones before it, and this file overrides all.",
		"anyOf":       []any{file, object{"type": "array", "items": file}},
	}
}

func fieldSchema(f protoreflect.FieldDescriptor, comment string) object {
	var s object
	switch {
	case f.IsMap() && f.MapValue().Kind() == protoreflect.MessageKind:
		s = object{"type": "object", "additionalProperties": valueSchema(f.MapValue())}
	case f.IsMap():
		s = object{"anyOf": []object{
			{"type": "object", "additionalProperties": object{"type": []string{"string", "number"}}},
			{"type": "array", "items": object{"type": "string", "pattern": "="}},
		}}
	case f.IsList():
		list := object{"type": "array", "items": valueSchema(f)}
		if n := rules(f).GetRepeated().GetMaxItems(); n > 0 {
			list["maxItems"] = n
		}
		s = list
		if document.HasWhole(f.Name()) && f.Kind() == protoreflect.StringKind {
			s = object{"anyOf": []object{list, {"type": "string"}}}
		}
	default:
		s = valueSchema(f)
	}
	if comment != "" {
		if ref, isRef := s["$ref"]; isRef { // draft 7 ignores the siblings of a $ref
			s = object{"allOf": []object{{"$ref": ref}}}
		}
		s["description"] = comment
	}
	return s
}

func rules(f protoreflect.FieldDescriptor) *validate.FieldRules {
	r, _ := proto.GetExtension(f.Options(), validate.E_Field).(*validate.FieldRules)
	return r
}

// needed reports whether the rules of a field refuse its empty value.
func needed(f protoreflect.FieldDescriptor) bool {
	r := rules(f).GetString()
	refused := r.GetMinLen() > 0 || len(r.GetIn()) > 0 || rules(f).GetUint32().GetGte() > 0
	if p := r.GetPattern(); p != "" {
		refused = refused || !regexp.MustCompile(p).MatchString("")
	}
	return refused && !f.IsList() && !f.IsMap()
}

func valueSchema(f protoreflect.FieldDescriptor) object {
	switch f.Kind() {
	case protoreflect.MessageKind:
		return messageSchema(f.Message())
	case protoreflect.EnumKind:
		prefix := ""
		if v := f.Enum().Values().Get(0); v != nil {
			word := document.EnumWord(v)
			prefix = string(v.Name())[:len(v.Name())-len(word)]
		}
		return object{"anyOf": []object{{"enum": document.EnumWords(f.Enum())}, {"type": "string", "pattern": "^" + prefix}}}
	case protoreflect.BoolKind:
		return object{"type": "boolean"}
	case protoreflect.Uint32Kind:
		s := object{"type": "integer", "minimum": rules(f).GetUint32().GetGte()}
		if most := rules(f).GetUint32().GetLte(); most > 0 {
			s["maximum"] = most
		}
		return s
	case protoreflect.Uint64Kind:
		return object{"type": "integer", "minimum": rules(f).GetUint64().GetGte()}
	case protoreflect.Int64Kind:
		return object{"anyOf": []object{{"type": "integer", "minimum": -1}, {"enum": []string{"unlimited"}}}}
	}
	return textSchema(f)
}

func textSchema(f protoreflect.FieldDescriptor) object {
	s := object{"type": "string"}
	if f.IsList() || document.Numeric(f.Name()) {
		s["type"] = []string{"string", "number"}
	}
	r := rules(f).GetString()
	if f.IsList() {
		r = rules(f).GetRepeated().GetItems().GetString()
	}
	if p := r.GetPattern(); p != "" {
		s["pattern"] = p
	}
	if in := r.GetIn(); len(in) > 0 {
		s["enum"] = in
	}
	if n := r.GetMaxLen(); n > 0 {
		s["maxLength"] = n
	}
	if n := r.GetMinLen(); n > 0 {
		s["minLength"] = n
	}
	return s
}

func messageSchema(m protoreflect.MessageDescriptor) object {
	if m.FullName() == "google.protobuf.Duration" {
		return object{"type": "string", "pattern": `^(0|([0-9.]+d)?([0-9.]+(ns|us|µs|ms|s|m|h))*)$`, "examples": []string{"500ms", "10m", "1h30m"}}
	}
	ref := object{"$ref": fmt.Sprintf("#/definitions/%s", m.Name())}
	if !document.HasShort(m.Name()) {
		return ref
	}
	short := object{"type": "string"}
	if m.Name() == "PortMapping" {
		short["type"] = []string{"string", "integer"}
	}
	return object{"anyOf": []object{short, ref}}
}

var (
	blockBegins = regexp.MustCompile(`^(?:message|enum) (\w+) \{`)
	fieldBegins = regexp.MustCompile(`^(?:optional |repeated |map<[^>]*> )?(?:[\w.]+ )?(\w+) = -?\d+`)
)

// readComments extracts the comments of a .proto file. It relies on the style of this
// repository: a comment is above its declaration, each declaration is on one line, and
// messages are not nested. The keys are "Message" and "Message.field".
func readComments(proto string) map[string]string {
	comments := make(map[string]string)
	var block string
	var pending []string
	for line := range strings.Lines(proto) {
		line = strings.TrimSpace(line)
		if text, ok := strings.CutPrefix(line, "//"); ok {
			pending = append(pending, strings.TrimSpace(text))
			continue
		}
		if m := blockBegins.FindStringSubmatch(line); m != nil {
			block = m[1]
			comments[block] = strings.Join(pending, " ")
		} else if m := fieldBegins.FindStringSubmatch(line); m != nil && block != "" {
			comments[block+"."+m[1]] = strings.Join(pending, " ")
		} else if line == "}" {
			block = ""
		}
		pending = nil
	}
	return comments
}
