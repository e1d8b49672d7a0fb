package feature

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/agbox/agbox/spec/document"
)

func json(t *testing.T, text string) *document.Node {
	t.Helper()
	report := new(document.Report)
	n := document.JSONC("x", []byte(text), report)
	if n == nil {
		t.Fatal(report.Problems)
	}
	return n
}

func TestReferencesToThisMachineAreNear(t *testing.T) {
	for reference, want := range map[string]bool{
		"localhost/x": true, "localhost:5000/x:1": true, "127.0.0.1:80/a/b": true, "10.0.0.1/x": true, "[::1]:80/x": true, "nas:5000/x": true,
		"ghcr.io/a/b:1": false, "registry.example:5000/x": false, "debian:12": false, "a/b": false, "localhost": false,
	} {
		if Near(reference) != want {
			t.Errorf("%s is near: %v", reference, !want)
		}
	}
}

func TestReferencesSayWhereAFeatureIs(t *testing.T) {
	for reference, want := range map[string]Kind{
		"./feature": Local, "../feature": Local,
		"registry.example/features/go:1": Registry, "localhost:5000/go": Registry, "127.0.0.1:80/a/b:1.2.3": Registry,
		"registry.example/go@sha256:" + strings.Repeat("a", 64): Registry,
		"go": Unusable, "owner/repository/go@v1": Unusable, "https://registry.example/go.tgz": Unusable, "/feature": Unusable, "registry.example/../x": Unusable,
	} {
		if got := KindOf(reference); got != want {
			t.Errorf("%s is %v, want %v", reference, got, want)
		}
	}
}

func TestOptionsBecomeVariables(t *testing.T) {
	description := json(t, `{"options": {"version": {"type": "string", "default": "latest"}, "install-tools": {"type": "boolean", "default": true}, "1st": {"enum": ["a", "b"], "default": "a"}}}`)
	for given, want := range map[string]map[string]string{
		`{}`:                       {"VERSION": "latest", "INSTALL_TOOLS": "true", "_ST": "a"},
		`"1.2"`:                    {"VERSION": "1.2", "INSTALL_TOOLS": "true", "_ST": "a"},
		`{"install-tools": false}`: {"VERSION": "latest", "INSTALL_TOOLS": "false", "_ST": "a"},
		`{"other": "x"}`:           {"VERSION": "latest", "INSTALL_TOOLS": "true", "_ST": "a", "OTHER": "x"},
	} {
		if got, err := Environment(description, json(t, given)); err != nil || !maps.Equal(got, want) {
			t.Errorf("%s gives %v (%v), want %v", given, got, err, want)
		}
	}
	for _, wrong := range []string{`{"1st": "c"}`, `{"version": ["x"]}`, `[1]`} {
		if got, err := Environment(description, json(t, wrong)); err == nil {
			t.Errorf("%s gives %v", wrong, got)
		}
	}
}

func TestFeaturesAreOrderedByWhatTheyName(t *testing.T) {
	nodes := []Node{
		{"./app", json(t, `{"id": "app", "dependsOn": {"registry.example/f/tool:2": {}}}`)},
		{"registry.example/f/tool:1", json(t, `{"id": "tool", "installsAfter": ["registry.example/f/common", "registry.example/f/missing"]}`)},
		{"./last", json(t, `{"id": "last"}`)},
		{"registry.example/f/common:9", json(t, `{"id": "common"}`)},
	}
	for _, c := range []struct {
		override []string
		want     []int
	}{{nil, []int{2, 3, 1, 0}}, {[]string{"./app", "registry.example/f/common"}, []int{3, 1, 0, 2}}} {
		if got, err := Order(nodes, c.override); err != nil || !slices.Equal(got, c.want) {
			t.Errorf("with %v: %v (%v), want %v", c.override, got, err, c.want)
		}
	}
	nodes[3].Description = json(t, `{"dependsOn": {"./app": {}}}`)
	if got, err := Order(nodes, nil); err == nil || !strings.Contains(err.Error(), "./app, registry.example/f/tool:1, registry.example/f/common:9 wait for each other") {
		t.Errorf("a circle: %v, %v", got, err)
	}
}

// TestOrderOfRandomFeaturesKeepsEveryDependency draws features that depend only on earlier
// ones, shuffles them, and checks the order.
func TestOrderOfRandomFeaturesKeepsEveryDependency(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		n := 1 + random.IntN(8)
		nodes, before := make([]Node, n), make([][]int, n)
		place := random.Perm(n)
		for i := range n {
			var depends []string
			for j := range i {
				if random.IntN(3) == 0 {
					depends = append(depends, fmt.Sprintf(`"./f%d": {}`, j))
					before[place[i]] = append(before[place[i]], place[j])
				}
			}
			nodes[place[i]] = Node{fmt.Sprintf("./f%d", i), json(t, `{"dependsOn": {`+strings.Join(depends, ",")+`}}`)}
		}
		order, err := Order(nodes, nil)
		if err != nil || len(order) != n {
			t.Fatalf("%v: %v", order, err)
		}
		for i, earlier := range before {
			for _, j := range earlier {
				if slices.Index(order, j) > slices.Index(order, i) {
					t.Fatalf("%v is installed before %v in %v", nodes[i].Reference, nodes[j].Reference, order)
				}
			}
		}
	}
}
