package view

import (
	"encoding/json"
	"strings"
	"testing"
)

var items = []json.RawMessage{
	json.RawMessage(`{"name":"web","state":"ready","exit_code":null,"size":18446744073709551615,"n":3,"share":0.5,"labels":{"team":"red"},"words":["a","b c"]}`),
	json.RawMessage(`{"name":"a\u001b[2J\u202e\nb","state":"failed","exit_code":7,"size":1,"n":12,"share":2,"labels":{"team":"<x>"},"words":[]}`),
}

func printed(t *testing.T, text string, options Options) (string, error) {
	t.Helper()
	f, err := ParseTemplate(text)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	err = f.Print(&b, items, options)
	return b.String(), err
}

func TestTemplatesPrintFields(t *testing.T) {
	for text, want := range map[string]string{
		`{{.name}}: {{.state}}`:                             "web: ready\n" + `a\x1b[2J\u202e\nb: failed` + "\n",
		`{{.size}} {{.share}} {{.labels.team}}`:             "18446744073709551615 0.5 red\n1 2 <x>\n",
		`[{{.exit_code}}]{{if .exit_code}} ended{{end}}`:    "[]\n[7] ended\n",
		`{{if gt .n 9}}many{{end}}`:                         "\nmany\n",
		`{{if eq .state "ready"}}+{{else}}-{{end}}`:         "+\n-\n",
		`{{join .words ","}}\t{{len .words}}`:               "a,b c\t2\n\t0\n",
		`{{upper .state}}{{truncate .state 3}}`:             "READYre…\nFAILEDfa…\n",
		`{{json .labels}}{{json .exit_code}}`:               "{\"team\":\"red\"}null\n{\"team\":\"<x>\"}7\n",
		`{{index (split .state "a") 0}}`:                    "re\nf\n", // of ready and failed
		"table {{.name}}\t{{.exit_code}}\t{{.labels.team}}": "NAME                EXIT CODE   TEAM\nweb                             red\na\\x1b[2J\\u202e\\nb   7           <x>\n",
	} {
		if got, err := printed(t, text, Options{}); err != nil || got != want {
			t.Errorf("%s: %q, %v, want %q", text, got, err, want)
		}
	}
}

func TestJSONIsOneLinePerItem(t *testing.T) {
	got, err := printed(t, "json", Options{})
	lines := strings.Split(got, "\n")
	if err != nil || len(lines) != 3 || strings.ContainsAny(got, "\x1b\u202e") {
		t.Fatalf("%q, %v", got, err)
	}
	for i := range items {
		var got, want any
		if err := json.Unmarshal([]byte(lines[i]), &got); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(items[i], &want); err != nil {
			t.Fatal(err)
		}
		a, _ := json.Marshal(got)
		b, _ := json.Marshal(want)
		if string(a) != string(b) {
			t.Errorf("%s, want %s", a, b)
		}
	}
}

func TestATableFitsTheTerminal(t *testing.T) {
	got, err := printed(t, `table {{.name}}\t{{.state}}\t{{.size}}`, Options{Width: 30})
	for line := range strings.Lines(got) {
		if Width(strings.TrimSuffix(line, "\n")) > 30 {
			t.Errorf("%q", line)
		}
	}
	if err != nil || !strings.HasPrefix(got, "NAME") {
		t.Errorf("%q, %v", got, err)
	}
}

func TestKeysAreEscapedToo(t *testing.T) {
	f, err := ParseTemplate(`{{.labels}}`)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	if err := f.Print(&b, []json.RawMessage{json.RawMessage(`{"labels":{"\u001b[2J":"x"}}`)}, Options{}); err != nil || b.String() != `map[\x1b[2J:x]`+"\n" {
		t.Errorf("%q, %v", b.String(), err)
	}
}

func TestMistakesAreExplained(t *testing.T) {
	for text, want := range map[string]string{
		`{{.nam}}`: `there is no field "nam"; the fields are exit_code, labels, n, name, share, size, state, words`,
		`{{.name`:  "--format:1: unclosed action",
		`{{nope}}`: `--format:1: function "nope" not defined`,
	} {
		if _, err := printed(t, text, Options{}); err == nil || err.Error() != want {
			t.Errorf("%s: %v", text, err)
		}
	}
}
