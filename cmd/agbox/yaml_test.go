package main

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"
)

// YAML is the JSON in another notation: a program reads the same from both.
func TestYAMLIsTheJSON(t *testing.T) {
	_, socket := serveScripted(t)
	agbox(t, socket, "create", "demo", "--image", "good", "--label", "x=true", "--label", "n=012", "--label", "e=a: b\n#c\x1b[2J\u202e\u0085")
	agbox(t, socket, "exec", "-d", "demo", "exit", "3")
	for _, line := range []string{"ls", "ps -a", "inspect demo", "image ls", "version", "daemon status", "events demo", "preset ls"} {
		args := strings.Fields(line)
		code, asJSON, errs := agbox(t, socket, append(args, "-o", "json")...)
		_, asYAML, _ := agbox(t, socket, append(args, "-o", "yaml")...)
		if code != 0 || len(asYAML) == 0 {
			t.Errorf("%s: code %d, %q, %q", line, code, errs, asYAML)
		}
		if strings.ContainsAny(asYAML, "\x1b\u202e\u0085") {
			t.Errorf("%s controls the terminal: %q", line, asYAML)
		}
		want, got := json.NewDecoder(strings.NewReader(asJSON)), yaml.NewDecoder(strings.NewReader(asYAML))
		for want.More() {
			var w, g any
			if err := want.Decode(&w); err != nil {
				t.Fatal(err)
			}
			if err := got.Decode(&g); err != nil {
				t.Fatalf("%s: %v\n%s", line, err, asYAML)
			}
			raw, err := json.Marshal(g)
			if err != nil {
				t.Fatal(err)
			}
			if err := json.Unmarshal(raw, &g); err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(w, g) {
				t.Errorf("%s:\n%s\nis not\n%s", line, asYAML, asJSON)
			}
		}
	}
}

func TestQuietPrintsIDsWhateverTheFormatIs(t *testing.T) {
	_, socket := serveScripted(t)
	agbox(t, socket, "create", "demo", "--image", "good")
	agbox(t, socket, "exec", "-d", "demo", "exit", "3")
	for _, line := range []string{"ls -q", "ps -aq"} {
		_, want, _ := agbox(t, socket, strings.Fields(line)...)
		for _, format := range []string{"json", "yaml", "wide"} {
			code, out, errs := agbox(t, socket, append(strings.Fields(line), "-o", format)...)
			if code != 0 || want == "" || out != want {
				t.Errorf("%s -o %s: code %d, %q, want %q; %q", line, format, code, out, want, errs)
			}
		}
	}
}

// Every command that prints JSON prints YAML.
func TestYAMLIsWhereJSONIs(t *testing.T) {
	var walk func(*cobra.Command)
	walk = func(cmd *cobra.Command) {
		if f := cmd.Flags().Lookup("output"); f != nil && strings.Contains(f.Usage, "json") {
			if err := f.Value.Set("yaml"); err != nil || f.Value.String() != "yaml" {
				t.Errorf("%s: %v, %q", cmd.CommandPath(), err, f.Value)
			}
		}
		if cmd.PersistentPreRun != nil && cmd.HasParent() || cmd.PersistentPreRunE != nil || cmd.PreRun != nil || cmd.PreRunE != nil {
			t.Errorf("%s has a hook, which replaces that for YAML", cmd.CommandPath())
		}
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
	}
	walk(newCLI(t, "").rootCommand())
}

func TestAWrittenPieceOfJSONMayHaveSeveralValues(t *testing.T) {
	var out bytes.Buffer
	y := &yamlWriter{w: &out}
	for _, piece := range []string{`{"a":["1",1,1.50,18446744073709551615,null,true,{},[]]}` + "\n" + `"x"`, `{"a":"l1\nl2"}`} {
		if _, err := y.Write([]byte(piece)); err != nil {
			t.Fatal(err)
		}
	}
	want := "a:\n  - \"1\"\n  - 1\n  - 1.50\n  - 18446744073709551615\n  - null\n  - true\n  - {}\n  - []\n---\nx\n---\na: |-\n  l1\n  l2\n"
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
}
