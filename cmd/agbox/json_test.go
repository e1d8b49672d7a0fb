package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"unicode"

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
	if err := printJSONList(&list, []*agboxv1.SandboxHandle{box}); err != nil {
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
