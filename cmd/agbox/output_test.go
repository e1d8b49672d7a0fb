package main

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"unicode"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// steering has every kind of character that controls a terminal or turns text around.
const steering = "a\x1b[2J\x7f\u0080\u0085\u009b31m\u009f\u061c\u200e\u200f\u202a\u202e\u2066\u2069z ü\u200d"

// wantSteady wants text without characters that steer.
func wantSteady(t *testing.T, text string) {
	t.Helper()
	for _, r := range strings.TrimSuffix(text, "\n") {
		if unicode.IsControl(r) && r != '\n' || unicode.Is(unicode.Bidi_Control, r) {
			t.Errorf("%q has %U", text, r)
			return
		}
	}
}

func TestJSONAndTablesDoNotSteerATerminal(t *testing.T) {
	box := &agboxv1.SandboxHandle{SandboxId: steering}
	var list, line, one bytes.Buffer
	if err := printItems(&app{stdout: &list}, output{}, []*agboxv1.SandboxHandle{box}); err != nil {
		t.Fatal(err)
	}
	if err := printJSONLine(&line, box); err != nil {
		t.Fatal(err)
	}
	if err := printJSON(&one, map[string]string{"x": steering}); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{list.String(), line.String(), one.String(), printable(steering), printableLines(steering)} {
		wantSteady(t, text)
	}
	if !strings.Contains(one.String(), `\u202e`) {
		t.Errorf("JSON has %s, want the escape \\u202e", one.String())
	}
}

func FuzzJSONKeepsTextAndDoesNotSteer(f *testing.F) {
	f.Add(steering)
	f.Add("\u202egpj.exe")
	f.Add("\u009b2J\u2028")
	f.Fuzz(func(t *testing.T, text string) {
		text = strings.ToValidUTF8(text, "?")
		var out bytes.Buffer
		if err := printJSON(&out, text); err != nil {
			t.Fatal(err)
		}
		wantSteady(t, out.String())
		wantSteady(t, printable(text))
		var back string
		if err := json.Unmarshal(out.Bytes(), &back); err != nil || back != text {
			t.Errorf("%q comes back as %q (%v)", text, back, err)
		}
	})
}

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
