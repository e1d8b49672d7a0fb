package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"buf.build/go/protovalidate"

	"github.com/agbox/agbox/client"
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
			t.Errorf("%s is not current (%v): run 'go run ./internal/docgen' in the repository", name, err)
		}
	}
}

func TestEveryFieldHasAComment(t *testing.T) {
	proto, err := os.ReadFile(filepath.Join(root, "proto/agbox/v1/spec.proto"))
	if err != nil {
		t.Fatal(err)
	}
	comments := readComments(string(proto))
	for _, m := range messages() {
		if len(examples[string(m.Name())]) == 0 {
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
	rules, err := protovalidate.New()
	if err != nil {
		t.Fatal(err)
	}
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
