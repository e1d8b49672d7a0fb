package document

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode"

	"google.golang.org/protobuf/proto"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

func read(t *testing.T, text string) (*agboxv1.CreateSpec, *Origin, *Report) {
	t.Helper()
	report := new(Report)
	spec := new(agboxv1.CreateSpec)
	node := YAML("agbox.yaml", []byte(text), report)
	if node == nil {
		return nil, nil, report
	}
	r := Reader{File: "agbox.yaml", Report: report}
	return spec, r.Message(node, spec.ProtoReflect(), ""), report
}

func TestAFileMayBeWrittenAsPeopleWriteIt(t *testing.T) {
	spec, _, report := read(t, `
image: debian:12
idle_ttl: 1h30m
revival: revive
pull_policy: PULL_POLICY_NEVER
envs: [A=1, "B=x=y"]
labels: {n: 7}
command: sleep infinity
memory_limit: 1.5g
cpu_limit: 2
ports: [80, "8080:81", "127.0.0.1:5353:53/udp", {container_port: 9, host_ip: "::"}, "1000-1001:2000-2001"]
mounts: ["./src:/src:rw", {source: ~/x, target: /x}]
tmpfs: [/tmp:64m]
volumes: ["data:/data:ro"]
ulimits: [nofile=10:unlimited]
services:
  - name: db
    image: postgres
    required: false
    healthcheck: {test: pg_isready, interval: 500ms}
    depends_on: [{name: c, condition: healthy}, d]
  - {name: c, image: x}
`)
	if len(report.Problems) > 0 {
		t.Fatalf("problems: %v", report.Problems)
	}
	got, err := WriteYAML(spec.ProtoReflect())
	if err != nil {
		t.Fatal(err)
	}
	want := `image: debian:12
mounts:
  - source: ./src
    target: /src
    writable: true
  - source: ~/x
    target: /x
services:
  - name: db
    image: postgres
    healthcheck:
      test:
        - CMD-SHELL
        - pg_isready
      interval: 500ms
    required: false
    depends_on:
      - name: c
        condition: healthy
      - name: d
  - name: c
    image: x
labels:
  "n": "7"
envs:
  A: "1"
  B: x=y
idle_ttl: 1h30m
ports:
  - container_port: 80
  - container_port: 81
    host_port: 8080
  - container_port: 53
    host_port: 5353
    protocol: udp
    host_ip: 127.0.0.1
  - container_port: 9
    host_ip: '::'
  - container_port: 2000
    host_port: 1000
  - container_port: 2001
    host_port: 1001
command:
  - sleep
  - infinity
cpu_limit: "2"
memory_limit: 1.5g
revival: revive
tmpfs:
  - target: /tmp
    size: 64m
volumes:
  - name: data
    target: /data
    read_only: true
pull_policy: never
ulimits:
  - name: nofile
    soft: 10
    hard: -1
`
	if strings.ReplaceAll(string(got), "'", `"`) != strings.ReplaceAll(want, "'", `"`) {
		t.Errorf("got:\n%s", got)
	}
	again, _, report := read(t, string(got))
	if len(report.Problems) > 0 || !proto.Equal(spec, again) {
		t.Errorf("what was written reads to %v, %v", again, report.Problems)
	}
}

// steering has every kind of character that controls a terminal or turns text around.
const steering = "a\x1b[2J\x7f\u0080\u0085\u009b31m\u009f\u061c\u200e\u200f\u202a\u202e\u2066\u2069z ü\u200d"

func TestWhatIsWrittenReadsToTheSameAndDoesNotSteerATerminal(t *testing.T) {
	for _, hard := range []string{"", "yes", "null", "~", "12:30", "0x1", "1e3", "a: b", "- x", "#x", "a #b", " lead", "trail ", "two\nlines\n", "\ttab", "'", `"`, "\\", "&a", "*a", "!t", "|", ">", "%", "@", "`", "{}", "[]", ",", "\x01", "é\u2028", "<<", "2001-01-01", ".inf", "true", "---", "...", "? a", steering, "two\nlines " + steering + "\n", "\u202e", "\u0085", "a\u202e\\", strings.Repeat("\u2066 long ", 50)} {
		spec := &agboxv1.CreateSpec{Image: hard, Envs: map[string]string{"A" + hard: hard}, Command: []string{hard, "x"}}
		text, err := WriteYAML(spec.ProtoReflect())
		if err != nil {
			t.Fatal(err)
		}
		again, _, report := read(t, string(text))
		if len(report.Problems) > 0 || !proto.Equal(spec, again) {
			t.Errorf("%q is written as\n%s and reads to %v, %v", hard, text, again, report.Problems)
		}
		placed := Placed(YAML("f", text, report))
		if again, _, report := read(t, string(placed)); len(report.Problems) > 0 || !proto.Equal(spec, again) {
			t.Errorf("%q is placed as\n%s and reads to %v, %v", hard, placed, again, report.Problems)
		}
		for _, r := range string(text) + string(placed) {
			if r != '\n' && unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) {
				t.Errorf("%q is written as %q, which has %U", hard, text, r)
			}
		}
	}
}

func TestAliasesAndMergedMapsAreReplaced(t *testing.T) {
	spec, o, report := read(t, `
envs: &common {A: "1", B: "2"}
labels: *common
services:
  - &a {name: a, image: x, envs: {<<: *common, B: "3"}}
  - {<<: *a, name: b}
`)
	if len(report.Problems) > 0 {
		t.Fatal(report.Problems)
	}
	if spec.GetLabels()["B"] != "2" || spec.GetServices()[0].GetEnvs()["B"] != "3" || spec.GetServices()[0].GetEnvs()["A"] != "1" {
		t.Errorf("read as %v", spec)
	}
	if b := spec.GetServices()[1]; b.GetName() != "b" || b.GetImage() != "x" {
		t.Errorf("the merged service is %v", b)
	}
	if at := o.Fields["services"].Items[1]; at.Line != 6 {
		t.Errorf("the second service is in line %d", at.Line)
	}
}

func TestBombsAreRefusedQuickly(t *testing.T) {
	laughs := "a0: &a0 [x,x,x,x,x,x,x,x,x]\n"
	for i := 1; i < 12; i++ {
		laughs += fmt.Sprintf("a%d: &a%d [%s]\n", i, i, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d,", i-1), 9), ","))
	}
	for name, text := range map[string]string{
		"laughs":      laughs,
		"itself":      "image: &a [*a]\n",
		"itself, map": "image: &a {x: *a}\n",
		"deep":        "image: " + strings.Repeat("[", 5000) + strings.Repeat("]", 5000),
		"deeper":      strings.Repeat("[", 200000),
		"braces":      strings.Repeat("{", 200000),
		"dashes":      strings.Repeat("- ", 200000),
		"wide":        "command: [" + strings.Repeat("a,", 100000) + "a]",
		"large":       strings.Repeat("#", MaxBytes+1),
		"tag":         "image: !!binary aGk=\n",
		"own tag":     "image: !x y\n",
		"merge":       "<<: 7\n",
		"key":         "[a]: b\n",
	} {
		report := new(Report)
		if node := YAML("f", []byte(text), report); node != nil || len(report.Problems) != 1 {
			t.Errorf("%s: %v", name, report.Problems)
		}
	}
	for name, text := range map[string]string{
		"deep": strings.Repeat("[", 5000), "objects": strings.Repeat(`{"a":`, 5000), "wide": "[" + strings.Repeat("1,", 100000) + "]",
	} {
		report := new(Report)
		if node := JSONC("f", []byte(text), report); node != nil || len(report.Problems) != 1 {
			t.Errorf("JSON, %s: %v", name, report.Problems)
		}
	}
}

func TestMistakesInTheTextAreFoundInTheirLine(t *testing.T) {
	for text, line := range map[string]uint32{
		"image: x\nlabels: {a: b\nenvs: {}\n":   2,
		"image: x\n\tname: y\n":                 2,
		"image: x\nname: a: b\nuser: c\n":       2,
		"services:\n  - name: a\n   image: b\n": 3,
		"image: x\nname: \"y\nuser: z\n":        2,
		"image: *nobody\n":                      1,
		"a\n":                                   1,
		"image: x\nuser: \x01\n":                2,
		"image: x\n---\nimage: y\n":             3,
		"image: x\nimage: y\n":                  2,
	} {
		_, _, report := read(t, text)
		if len(report.Problems) != 1 || report.Problems[0].GetLine() != line {
			t.Errorf("%q: %v, want line %d", text, report.Problems, line)
		}
	}
	for text, line := range map[string]uint32{
		"{\n\"a\": 1,\n\"b\": \"x\n}": 3, "{\n\"a\": 1\n\"b\": 2}": 3, "{\n\n\"a\" 1}": 3, "\n[1,\n2": 2, "{\"a\":\nnul}": 2,
		"{} x": 1, "/* x": 1, "{\n\"a\": \"\\q\"}": 2, "{\n\"a\": 1,\n\"a\": 2}": 3, "{a: 1}": 1,
	} {
		report := new(Report)
		JSONC("f", []byte(text), report)
		if len(report.Problems) != 1 || report.Problems[0].GetLine() != line {
			t.Errorf("JSON %q: %v, want line %d", text, report.Problems, line)
		}
	}
}

func TestJSONMayHaveCommentsAndTrailingCommas(t *testing.T) {
	report := new(Report)
	n := JSONC("f", []byte("\ufeff// a\n{ /* b */ \"a\": [1, 2.5, true, null, \"x\\u0041//\",], // c\n \"b\": {},\n}\n// end"), report)
	if n == nil || len(report.Problems) > 0 {
		t.Fatal(report.Problems)
	}
	var kinds []string
	for _, item := range n.Get("a").Items {
		kinds = append(kinds, fmt.Sprintf("%d %s", item.Kind, item.Text))
	}
	if got := strings.Join(kinds, ","); got != "2 1,3 2.5,1 true,0 ,4 xA//" || n.Get("b").Line != 3 || n.Get("b").Column != 7 {
		t.Errorf("read as %s, %+v", got, n.Get("b"))
	}
}

func TestAFieldThatIsNotThereIsGuessed(t *testing.T) {
	for key, want := range map[string]string{
		"imagee": "image", "imgae": "image", "Image": "image", "idleTtl": "idle_ttl", "idle-ttl": "idle_ttl", "environment": "envs",
		"memory": "memory_limit", "privileged": "security", "mount": "mounts", "zzzzzz": "the fields are image, mounts",
	} {
		_, _, report := read(t, key+": {}\n")
		if len(report.Problems) != 1 || !strings.Contains(report.Problems[0].GetMessage(), want) {
			t.Errorf("%s: %v, want %s", key, report.Problems, want)
		}
	}
}

func FuzzYAML(f *testing.F) {
	for _, seed := range []string{
		"image: base\nenvs: {A: b}\ncommand: [a]\nidle_ttl: 60s\n", "a: &a [*a]\n", "image: a\n---\nimage: b\n", "<<: {image: x}\n", "? [a]\n: b\n",
		"{{{{{{{{", "- - - - -", "? ? ?", "!!binary x", "image: !!str\n", "%YAML 9.9\n---\n", "\xef\xbb\xbfimage: x", "a: 'b\n\n", "ports: [80, \"1-2:3-4\"]\n",
		"services: [{name: a, image: b, healthcheck: {test: x}}]\n", "services:\n- &a {name: x}\n- {<<: *a, <<: *a}\n",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		report := new(Report)
		node := YAML("f", text, report)
		if node == nil && len(report.Problems) == 0 {
			t.Error("nothing was read and nothing is said")
		}
		if node == nil {
			return
		}
		spec := new(agboxv1.CreateSpec)
		r := Reader{File: "f", Report: report}
		r.Message(node, spec.ProtoReflect(), "")
		for _, p := range report.Problems {
			if !strings.HasSuffix(p.GetMessage(), ".") || p.GetLine() == 0 {
				t.Errorf("no sentence, or no place: %v", p)
			}
		}
		if len(report.Problems) > 0 {
			return
		}
		again, err := WriteYAML(spec.ProtoReflect())
		if err != nil {
			t.Fatal(err)
		}
		back := new(agboxv1.CreateSpec)
		if node := YAML("f", again, report); node != nil {
			r.Message(node, back.ProtoReflect(), "")
		}
		if len(report.Problems) > 0 || !proto.Equal(spec, back) {
			t.Errorf("written as\n%s\nit reads to %v, not %v: %v", again, back, spec, report.Problems)
		}
	})
}

func FuzzJSONC(f *testing.F) {
	for _, seed := range []string{"{}", "{\"a\": [1,], /* x */ }", "{\"a\": \"\\u00\"}", "// x", "[", "\"", "{\"a\":tru}", "/*"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		report := new(Report)
		if node := JSONC("f", text, report); node == nil && len(report.Problems) == 0 {
			t.Error("nothing was read and nothing is said")
		}
	})
}

// TestPlacedReadsBackAtTheSamePlaces: as the same node, and each scalar on its line.
func TestPlacedReadsBackAtTheSamePlaces(t *testing.T) {
	for _, text := range []string{
		"a: 1\n", "\n\n# c\nimage: x\nprepare:\n  - echo ok\n\n  - ''\n", "{a: {b: [1, 'x y', \"q\\\"\\n\"], c: }, d: [], e: {}}\n",
		"envs:\n    A: |\n        two\n        lines\n    B: \"\\u202e\\e\"\n    C: yes\n    D: 'no'\nlist: [a,\n  b,\n  {c: d}]\n",
		"x: &a {k: v}\ny: *a\nz: 1\n",
	} {
		report := new(Report)
		node := YAML("f", []byte(text), report)
		placed := Placed(node)
		again := YAML("f", placed, report)
		if len(report.Problems) > 0 {
			t.Fatalf("%q is placed as %q: %v", text, placed, report.Problems)
		}
		if want, got := scalars(node, true), scalars(again, true); !slices.Equal(got, want) && !strings.Contains(text, "&") {
			t.Errorf("%q is placed as %q: %q", text, placed, got)
		}
		if want, got := scalars(node, false), scalars(again, false); !slices.Equal(got, want) {
			t.Errorf("%q is placed as %q: %q", text, placed, got)
		}
	}
}

// scalars are the parts of a node in order, each with its line.
func scalars(n *Node, lines bool) (all []string) {
	line := 0
	if lines {
		line = n.Line
	}
	switch n.Kind {
	case Map:
		for _, e := range n.Entries {
			all = append(append(all, scalars(e.Key, lines)...), scalars(e.Value, lines)...)
		}
		return append(all, "map")
	case List:
		for _, item := range n.Items {
			all = append(all, scalars(item, lines)...)
		}
		return append(all, "list")
	case Null:
		return []string{"null"}
	}
	return []string{fmt.Sprintf("%d %v %s", line, n.Kind, n.Text)}
}
