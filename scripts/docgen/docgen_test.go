package main

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"buf.build/go/protovalidate"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/agbox/agbox/client"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/spec"
)

const root = "../.."

func TestTheGeneratedDocumentsAreCurrent(t *testing.T) {
	files, err := generate(root)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range files {
		got, err := os.ReadFile(filepath.Join(root, name))
		if err != nil || string(got) != string(want) {
			t.Errorf("%s is not current (%v): run 'go run ./scripts/docgen' in the repository", name, err)
		}
	}
}

func TestEveryFieldHasAComment(t *testing.T) {
	comments, err := allComments(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range messages() {
		// The example of the block agent shows the blocks in it.
		if within := strings.HasPrefix(string(m.Name()), "Agent") && m.Name() != "AgentSpec"; !within && len(examples[string(m.Name())]) == 0 {
			t.Errorf("%s has no example", m.Name())
		}
		for i := range m.Fields().Len() {
			if f := m.Fields().Get(i); meaning(f, comments) == "" {
				t.Errorf("%s.%s has no comment", m.Name(), f.Name())
			}
		}
	}
}

func TestEveryExampleIsValid(t *testing.T) {
	rules := protovalidate.GlobalValidator
	files, err := filepath.Glob(filepath.Join(root, "docs/examples/*.yaml"))
	if err != nil || len(files) < 12 {
		t.Fatalf("there are the examples %v, %v", files, err)
	}
	for _, file := range files {
		if strings.HasSuffix(file, "compose.yaml") {
			continue // base files of base.yaml
		}
		req, err := client.SpecFiles{File: file}.Request()
		if err != nil {
			t.Fatal(err)
		}
		req.HomeDir = "/home/me" // the repository is not below it
		r := spec.Resolve(spec.Input{Request: req, Rules: rules})
		if len(r.Problems) > 0 {
			t.Errorf("%s: %v", file, r.Problems)
		}
		if filepath.Base(file) == "base.yaml" && (r.Spec.GetEnvs()["ROLE"] != "app" || r.Spec.GetEnvs()["PROJECT"] == "" || len(r.Spec.GetServices()) != 1) {
			t.Errorf("the base files became %v", r.Spec)
		}
	}
}

// TestTheExampleOfAnAgentHasTheDefaults also checks that it has every field with a default.
func TestTheExampleOfAnAgentHasTheDefaults(t *testing.T) {
	rules := protovalidate.GlobalValidator
	req, err := client.SpecFiles{File: filepath.Join(root, "docs/examples/agent.yaml")}.Request()
	if err != nil {
		t.Fatal(err)
	}
	got := spec.Resolve(spec.Input{Request: req, Rules: rules}).Spec.GetAgent()
	all := &agboxv1.AgentProbes{Liveness: new(agboxv1.AgentProbe), Readiness: new(agboxv1.AgentProbe), Startup: new(agboxv1.AgentProbe)}
	if want := agents.RulesOf(&agboxv1.AgentSpec{Probes: all}); !reflect.DeepEqual(agents.RulesOf(got), want) {
		t.Errorf("the rules of the example are\n%+v\nand the defaults\n%+v", agents.RulesOf(got), want)
	}
	for i := range got.ProtoReflect().Descriptor().Fields().Len() {
		f := got.ProtoReflect().Descriptor().Fields().Get(i)
		if f.Name() == "user" || f.Name() == "working_dir" {
			continue // empty means that of the sandbox
		}
		if !got.ProtoReflect().Has(f) {
			t.Errorf("the example does not have %s", f.Name())
		}
		if f.Kind() != protoreflect.MessageKind || f.IsMap() || f.Message().FullName() == "google.protobuf.Duration" {
			continue
		}
		inner := got.ProtoReflect().Get(f).Message()
		for j := range inner.Descriptor().Fields().Len() {
			if g := inner.Descriptor().Fields().Get(j); !inner.Has(g) && g.Kind() != protoreflect.BoolKind {
				t.Errorf("the example does not have %s.%s", f.Name(), g.Name())
			}
		}
	}
}
