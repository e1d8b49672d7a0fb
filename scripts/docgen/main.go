// Docgen generates the documentation of sandbox files from the .proto files that define
// them: docs/spec.md for people and docs/agbox.schema.json for editors.
//
//	go run ./scripts/docgen
package main

import (
	_ "embed"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/agbox/agbox/spec/document"
)

func main() {
	root := "."
	if len(os.Args) > 1 {
		root = os.Args[1]
	}
	files, err := generate(root)
	if err != nil {
		fmt.Fprintln(os.Stderr, "docgen:", err)
		os.Exit(1)
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(root, name), content, 0o644); err != nil {
			fmt.Fprintln(os.Stderr, "docgen:", err)
			os.Exit(1)
		}
	}
}

// allComments reads the comments of the .proto files that define sandbox files.
func allComments(root string) (map[string]string, error) {
	comments := make(map[string]string)
	for _, name := range []string{"spec.proto", "agent.proto"} {
		proto, err := os.ReadFile(filepath.Join(root, "proto/agbox/v1", name))
		if err != nil {
			return nil, err
		}
		maps.Copy(comments, readComments(string(proto)))
	}
	return comments, nil
}

// generate returns the content of all files by their paths in the repository.
func generate(root string) (map[string][]byte, error) {
	comments, err := allComments(root)
	if err != nil {
		return nil, err
	}
	schema, err := schemaOf(comments)
	if err != nil {
		return nil, err
	}
	page, err := pageOf(comments, filepath.Join(root, "docs/examples"))
	if err != nil {
		return nil, err
	}
	return map[string][]byte{"docs/agbox.schema.json": schema, "docs/spec.md": page}, nil
}

// intro has the parts of the page that the .proto file does not contain.
//
//go:embed intro.md
var intro string

// examples maps a message to the files in docs/examples that show it.
var examples = map[string][]string{
	"CreateSpec": {"sandbox", "limits", "tools"}, "WorkspaceSpec": {"workspace"}, "MountSpec": {"mounts"}, "CopySpec": {"copies"},
	"TmpfsSpec": {"tmpfs"}, "VolumeSpec": {"volumes"}, "PortMapping": {"ports"}, "UlimitSpec": {"limits"}, "SecuritySpec": {"security"},
	"BuildSpec": {"build"}, "FeatureSpec": {"features"}, "ServiceSpec": {"services"}, "HealthcheckConfig": {"healthcheck"}, "ServiceDependency": {"dependencies"},
	"AgentSpec": {"agent"},
}

// titles maps a message to its heading.
var titles = map[string]string{
	"CreateSpec": "The sandbox", "WorkspaceSpec": "workspace", "MountSpec": "mounts", "CopySpec": "copies", "BuildSpec": "build", "FeatureSpec": "features", "TmpfsSpec": "tmpfs", "VolumeSpec": "volumes",
	"PortMapping": "ports", "UlimitSpec": "ulimits", "SecuritySpec": "security", "ServiceSpec": "services", "HealthcheckConfig": "healthcheck", "ServiceDependency": "depends_on",
	"AgentSpec": "agent", "AgentHeartbeat": "heartbeat", "AgentDrain": "drain", "AgentContextLimits": "context", "AgentRetry": "retry", "AgentReduced": "reduced", "AgentBudget": "budget", "AgentMaySpawn": "may_spawn", "AgentStack": "stack", "AgentBreakerLimits": "breaker",
	"AgentProbes": "probes", "AgentProbe": "probe", "AgentCalls": "calls", "AgentTells": "tells",
}

// pageOf returns the content of docs/spec.md.
func pageOf(comments map[string]string, dir string) ([]byte, error) {
	var b strings.Builder
	b.WriteString("<!-- Written by go run ./scripts/docgen; change scripts/docgen/intro.md, docs/examples, spec.proto and agent.proto instead. -->\n")
	text, err := withFiles(intro, dir)
	if err != nil {
		return nil, err
	}
	b.WriteString(text)
	for _, m := range messages() {
		if err := block(&b, m, comments, dir); err != nil {
			return nil, err
		}
	}
	return []byte(b.String()), nil
}

// withFiles replaces lines of the form "@@ LANGUAGE FILE" by the content of the file.
func withFiles(text, dir string) (string, error) {
	var b strings.Builder
	for line := range strings.Lines(text) {
		var language, name string
		if n, _ := fmt.Sscanf(line, "@@ %s %s", &language, &name); n < 2 {
			b.WriteString(line)
			continue
		}
		if err := fence(&b, language, filepath.Join(dir, name)); err != nil {
			return "", err
		}
	}
	return b.String(), nil
}

func fence(b *strings.Builder, language, file string) error {
	content, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	fmt.Fprintf(b, "```%s\n%s```\n", language, content)
	return nil
}

func block(b *strings.Builder, m protoreflect.MessageDescriptor, comments map[string]string, dir string) error {
	title := titles[string(m.Name())]
	if title == "" {
		return fmt.Errorf("the message %s has no heading: write one into titles, and an example into examples", m.Name())
	}
	fmt.Fprintf(b, "\n## %s\n\n%s\n\n| field | value | meaning |\n|---|---|---|\n", title, plain(m.Name(), comments[string(m.Name())]))
	for i := range m.Fields().Len() {
		f := m.Fields().Get(i)
		if document.FilledIn(f.Name()) {
			continue
		}
		fmt.Fprintf(b, "| `%s` | %s | %s |\n", f.Name(), valueOf(f), cell(meaning(f, comments)))
	}
	for _, name := range examples[string(m.Name())] {
		b.WriteString("\n")
		if err := fence(b, "yaml", filepath.Join(dir, name+".yaml")); err != nil {
			return err
		}
	}
	return nil
}

// plain returns the comment of a message without the message's name at its beginning.
func plain(message protoreflect.Name, comment string) string {
	text := strings.TrimPrefix(comment, string(message)+" ")
	text = strings.TrimPrefix(text, "is ")
	if text == "" {
		return ""
	}
	return strings.ToUpper(text[:1]) + text[1:]
}

func cell(text string) string { return strings.ReplaceAll(text, "|", "\\|") }

// meaning returns the comment of a field, followed by those of its enum values.
func meaning(f protoreflect.FieldDescriptor, comments map[string]string) string {
	text := comments[string(f.Parent().Name())+"."+string(f.Name())]
	if text == "" && f.Message() != nil {
		text = plain(f.Message().Name(), comments[string(f.Message().Name())])
	}
	if f.Kind() != protoreflect.EnumKind {
		return text
	}
	for i := range f.Enum().Values().Len() {
		v := f.Enum().Values().Get(i)
		if why := comments[string(f.Enum().Name())+"."+string(v.Name())]; why != "" && !strings.HasSuffix(string(v.Name()), "_UNSPECIFIED") {
			text += fmt.Sprintf(" `%s`: %s", document.EnumWord(v), why)
		}
	}
	return strings.TrimSpace(text)
}

// valueOf describes the values of a field.
func valueOf(f protoreflect.FieldDescriptor) string {
	var word string
	switch f.Kind() {
	case protoreflect.BoolKind:
		word = "true or false"
	case protoreflect.EnumKind:
		word = "`" + strings.Join(document.EnumWords(f.Enum()), "`, `") + "`"
	case protoreflect.Uint32Kind, protoreflect.Uint64Kind, protoreflect.Int64Kind:
		word = "number"
	case protoreflect.MessageKind:
		switch {
		case f.IsMap() && f.MapValue().Kind() == protoreflect.MessageKind:
			return "map of times"
		case f.IsMap():
			return "map, or list of `KEY=VALUE`"
		case f.Message().FullName() == "google.protobuf.Duration":
			word = "time"
		default:
			title := titles[string(f.Message().Name())]
			word = fmt.Sprintf("[%s](#%s)", title, title)
		}
	default:
		word = "text"
	}
	if f.IsList() {
		return "list of " + word
	}
	return word
}
