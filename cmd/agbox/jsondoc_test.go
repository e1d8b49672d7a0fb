package main

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/agbox/agbox/cmd/agbox/view"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// jsonOutputs says what each command with -o json prints: how, and which message or struct.
var jsonOutputs = []struct {
	command, how string
	what         any
}{
	{"ls", "an array", &agboxv1.SandboxHandle{}},
	{"ps", "an array", &agboxv1.ExecStatus{}},
	{"inspect", "an array; of a command it has the element exec, with ExecStatus", &agboxv1.GetSandboxResponse{}},
	{"events", "one object per line; of one SANDBOX only the event, SandboxEvent", &agboxv1.WatchEventsResponse{}},
	{"logs", "one object per line; the last one of a command that has ended has end, with LogEnd", jsonPiece{}},
	{"top", "an array", &agboxv1.Process{}},
	{"stats", "one object per second and line", &agboxv1.WatchStatsResponse{}},
	{"port", "an array", portLine{}},
	{"image ls", "an array", &agboxv1.Image{}},
	{"pool ls", "an array", &agboxv1.Pool{}},
	{"preset ls", "an array", presetItem{}},
	{"tools ls", "an array", toolItem{}},
	{"trust ls", "an array", trustAnswer{}},
	{"doctor", "one object", &agboxv1.DoctorResponse{}},
	{"daemon status", "one object", daemonStatus{}},
	{"version", "one object", versions{}},
	{"agent ls", "an array", &agboxv1.Agent{}},
	{"agent tree", "an array, each agent after its parent", &agboxv1.Agent{}},
	{"agent inspect", "one object", &agboxv1.Agent{}},
	{"agent leases", "an array", &agboxv1.LeaseEntry{}},
	{"agent inbox", "an array", &agboxv1.AgentMessage{}},
	{"agent checkpoints", "an array", &agboxv1.AgentCheckpoint{}},
	{"agent logs", "as logs", jsonPiece{}},
	{"agent attach", "one object per line: an event, or output as of logs", &agboxv1.AgentEvent{}},
}

// alsoDocumented are messages that only the remarks of jsonOutputs and fields of structs name.
var alsoDocumented = []proto.Message{&agboxv1.SandboxEvent{}, &agboxv1.LogEnd{}, &agboxv1.EngineStatus{}}

// jsonDoc writes the reference of the JSON output.
type jsonDoc struct {
	strings.Builder
	todo []protoreflect.MessageDescriptor
}

// elsewhere are messages that other documents describe.
var elsewhere = map[protoreflect.FullName]string{"agents_sandbox.v1.CreateSpec": "spec.md", "agbox.v1.CreateSpec": "spec.md"}

func (d *jsonDoc) add(m protoreflect.MessageDescriptor) {
	if !slices.Contains(d.todo, m) && elsewhere[m.FullName()] == "" {
		d.todo = append(d.todo, m)
	}
}

// fields writes a table about the fields of a message.
func (d *jsonDoc) fields(m protoreflect.MessageDescriptor) {
	fmt.Fprintf(d, "\n### %s\n\n| field | value |\n|---|---|\n", m.Name())
	for i := range m.Fields().Len() {
		f := m.Fields().Get(i)
		text := d.value(f)
		if o := f.ContainingOneof(); o != nil && !o.IsSynthetic() {
			text += ", if it is that"
		}
		fmt.Fprintf(d, "| `%s` | %s |\n", f.Name(), text)
	}
}

// value describes the value of a field.
func (d *jsonDoc) value(f protoreflect.FieldDescriptor) string {
	switch {
	case f.IsMap():
		return "object: " + d.single(f.MapValue()) + " by " + d.single(f.MapKey())
	case f.IsList():
		return "array of " + d.single(f)
	}
	text := d.single(f)
	if f.HasPresence() && (f.ContainingOneof() == nil || f.ContainingOneof().IsSynthetic()) || f.Name() == "exit_code" {
		text += " or null"
	}
	return text
}

// single describes one value.
func (d *jsonDoc) single(f protoreflect.FieldDescriptor) string {
	switch f.Kind() {
	case protoreflect.MessageKind:
		m := f.Message()
		switch m.FullName() {
		case "google.protobuf.Timestamp":
			return "time"
		case "google.protobuf.Duration":
			return "seconds"
		}
		d.add(m)
		if file := elsewhere[m.FullName()]; file != "" {
			return fmt.Sprintf("object with the fields of [%s](%[1]s)", file)
		}
		return fmt.Sprintf("[%s](#%s)", m.Name(), strings.ToLower(string(m.Name())))
	case protoreflect.EnumKind:
		var words []string
		for i := range f.Enum().Values().Len() {
			words = append(words, "`"+view.EnumWord(f.Enum(), f.Enum().Values().Get(i).Number())+"`")
		}
		return strings.Join(words, ", ")
	case protoreflect.StringKind:
		return "string"
	case protoreflect.BytesKind:
		return "string in base64"
	case protoreflect.BoolKind:
		return "boolean"
	case protoreflect.DoubleKind, protoreflect.FloatKind:
		return "number or null"
	}
	return "number"
}

// goFields writes a table about the fields of a struct.
func (d *jsonDoc) goFields(t reflect.Type, name string) {
	fmt.Fprintf(d, "\n### %s\n\n| field | value |\n|---|---|\n", name)
	d.goRows(t)
}

func (d *jsonDoc) goRows(t reflect.Type) {
	for _, f := range reflect.VisibleFields(t) {
		name, rest, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "" || name == "-" {
			continue
		}
		text := goValue(f.Type)
		if strings.Contains(rest, "omitempty") {
			text = strings.TrimSuffix(text, " or null") + ", or missing"
		}
		fmt.Fprintf(d, "| `%s` | %s |\n", name, text)
	}
}

// goValue describes a value of a Go type.
func goValue(t reflect.Type) string {
	switch {
	case t.PkgPath() == "time":
		return "time"
	case t.Name() == "RawMessage":
		return "object"
	case t.Kind() == reflect.Pointer:
		return goValue(t.Elem()) + " or null"
	case t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Uint8:
		return "string in base64"
	case t.Kind() == reflect.Slice:
		return "array of " + goValue(t.Elem())
	case t.Kind() == reflect.Map:
		return "object: " + goValue(t.Elem()) + " by " + goValue(t.Key())
	case t.Kind() == reflect.Struct:
		var names []string
		for _, f := range reflect.VisibleFields(t) {
			if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" && name != "-" {
				names = append(names, "`"+name+"` ("+goValue(f.Type)+")")
			}
		}
		return "object with " + strings.Join(names, ", ")
	case t.Kind() == reflect.String:
		return "string"
	case t.Kind() == reflect.Bool:
		return "boolean"
	}
	return "number"
}

// reference is all that follows the marker in docs/json.md.
func (d *jsonDoc) reference() string {
	d.WriteString("## Commands\n\n| command | prints | of |\n|---|---|---|\n")
	var structs []reflect.Type
	for _, out := range jsonOutputs {
		var name string
		if m, ok := out.what.(proto.Message); ok {
			d.add(m.ProtoReflect().Descriptor())
			name = string(m.ProtoReflect().Descriptor().Name())
		} else {
			name = structName(reflect.TypeOf(out.what))
			if !slices.Contains(structs, reflect.TypeOf(out.what)) {
				structs = append(structs, reflect.TypeOf(out.what))
			}
		}
		fmt.Fprintf(d, "| `agbox %s` | %s | [%s](#%s) |\n", out.command, out.how, name, strings.ToLower(name))
	}
	for _, m := range alsoDocumented {
		d.add(m.ProtoReflect().Descriptor())
	}
	d.WriteString("\n## Objects\n")
	for _, t := range structs {
		d.goFields(t, structName(t))
	}
	for i := 0; i < len(d.todo); i++ { // fields adds further ones
		d.fields(d.todo[i])
	}
	return d.String()
}

// structName is the name of a struct in the document.
func structName(t reflect.Type) string {
	return map[string]string{
		"jsonPiece": "Output", "portLine": "Port", "presetItem": "Preset", "toolItem": "Tool", "trustAnswer": "TrustedFile", "daemonStatus": "DaemonStatus", "versions": "Versions",
	}[t.Name()]
}

func TestJSONIsDocumented(t *testing.T) {
	path := filepath.Join("..", "..", "docs", "json.md")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	const marker = "-update -->\n"
	prose, is, found := strings.Cut(string(text), marker)
	if !found {
		t.Fatalf("%s lacks the line that ends with %q", path, marker)
	}
	want := "\n" + new(jsonDoc).reference()
	if *update {
		if err := os.WriteFile(path, []byte(prose+marker+want), 0o644); err != nil {
			t.Fatal(err)
		}
		is = want
	}
	if is != want {
		t.Errorf("%s does not describe the JSON of this code: run this test with -update, and look whether the change keeps the promise of %[1]s", path)
	}
}

func TestEachCommandWithJSONIsDocumented(t *testing.T) {
	var documented, have []string
	for _, out := range jsonOutputs {
		documented = append(documented, out.command)
	}
	var walk func(*cobra.Command)
	walk = func(cmd *cobra.Command) {
		if f := cmd.LocalFlags().Lookup("output"); f != nil && strings.Contains(f.Usage, "json") && cmd.Name() != "show" { // config show prints sandbox files
			have = append(have, strings.TrimPrefix(cmd.CommandPath(), "agbox "))
		}
		for _, c := range cmd.Commands() {
			walk(c)
		}
	}
	walk(newCLI(t, "").rootCommand())
	slices.Sort(documented)
	slices.Sort(have)
	if !slices.Equal(documented, have) {
		t.Errorf("documented are\n%q\nbut there are\n%q", documented, have)
	}
}
