// Package feature reads the descriptions of features of development containers
// (devcontainer-feature.json), and puts features in the order of their installation.
package feature

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/agbox/agbox/spec/document"
)

// FileName is the name of the description in the folder of a feature, and Script that of
// the program that installs it.
const (
	FileName = "devcontainer-feature.json"
	Script   = "install.sh"
)

// Kind says where a feature is.
type Kind int

// The kinds of references.
const (
	// Unusable is a reference that nothing here reads.
	Unusable Kind = iota
	// Local is a folder, relative to that of the devcontainer.json.
	Local
	// Registry is a registry of OCI artifacts, with its host.
	Registry
)

var registryReference = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^(localhost|[a-zA-Z0-9-]+(\.[a-zA-Z0-9-]+)*)(:[0-9]+)?(/[a-z0-9][a-z0-9._-]*)+(:[A-Za-z0-9_][A-Za-z0-9._-]*)?(@sha256:[0-9a-f]{64})?$`)
})

// KindOf returns where the feature with a reference is.
func KindOf(reference string) Kind {
	if strings.HasPrefix(reference, "./") || strings.HasPrefix(reference, "../") {
		return Local
	}
	host, _, _ := strings.Cut(reference, "/")
	if registryReference().MatchString(reference) && (strings.ContainsAny(host, ".:") || host == "localhost") {
		return Registry
	}
	return Unusable
}

// Near reports whether the reference of a feature or an image leads to this machine, or to
// an address by its number: what listens there need not be a registry.
func Near(reference string) bool {
	address, _, below := strings.Cut(reference, "/")
	host, _, port := strings.Cut(address, ":")
	if strings.HasPrefix(address, "[") {
		return below // IPv6
	}
	_, err := netip.ParseAddr(host)
	return below && (err == nil || host == "localhost" || port && !strings.Contains(host, "."))
}

// Name returns a reference without its version: features refer to each other by it.
func Name(reference string) string {
	reference, _, _ = strings.Cut(reference, "@")
	if i := strings.LastIndex(reference, ":"); i > strings.LastIndex(reference, "/") {
		reference = reference[:i]
	}
	return strings.TrimSuffix(reference, "/")
}

// Wanted is a feature that a file asks for.
type Wanted struct {
	Reference string
	// Options is a map, a word (the version) or a truth value, or null.
	Options *document.Node
	// Key is where the reference is written.
	Key *document.Node
}

// In returns the features that a map from references to options asks for.
func In(n *document.Node) []Wanted {
	if n == nil {
		return nil
	}
	var all []Wanted
	for _, e := range n.Entries {
		all = append(all, Wanted{Reference: e.Key.Text, Options: e.Value, Key: e.Key})
	}
	return all
}

// Named returns the references that a devcontainer.json, or the description of a feature,
// names.
func Named(content []byte) []string {
	node := document.JSONC("", content, new(document.Report))
	if node == nil {
		return nil
	}
	var all []string
	for _, key := range []string{"features", "dependsOn"} {
		for _, w := range In(node.Get(key)) {
			all = append(all, w.Reference)
		}
	}
	return all
}

var notInVariables = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`[^A-Za-z0-9_]`) })

// variable is the name under which install.sh gets an option.
func variable(option string) string {
	name := notInVariables().ReplaceAllString(option, "_")
	if rest := strings.TrimLeft(name, "0123456789_"); rest != name {
		name = "_" + rest
	}
	return strings.ToUpper(name)
}

// Environment returns the options of a feature as install.sh gets them: those that are
// given, and the defaults of its description.
func Environment(description, given *document.Node) (map[string]string, error) {
	env := make(map[string]string)
	var values map[string]string
	switch given.Kind {
	case document.Map:
		values = make(map[string]string)
		for _, e := range given.Entries {
			if e.Value.Kind == document.List || e.Value.Kind == document.Map {
				return nil, fmt.Errorf("the option %.80s should be text or a truth value", e.Key.Text)
			}
			values[e.Key.Text] = e.Value.Text
		}
	case document.String:
		values = map[string]string{"version": given.Text}
	case document.Null, document.Bool:
	default:
		return nil, errors.New("here should be an object of options, such as {\"version\": \"latest\"}")
	}
	if options := description.Get("options"); options != nil {
		for _, e := range options.Entries {
			if fallback := e.Value.Get("default"); fallback != nil {
				env[variable(e.Key.Text)] = fallback.Text
			}
			value, set := values[e.Key.Text]
			if allowed := words(e.Value.Get("enum")); set && len(allowed) > 0 && !slices.Contains(allowed, value) {
				return nil, fmt.Errorf("%.80q is no value of the option %.80s: write one of %.300s", value, e.Key.Text, strings.Join(allowed, ", "))
			}
		}
	}
	for name, value := range values {
		env[variable(name)] = value
	}
	return env, nil
}

func words(n *document.Node) []string {
	if n == nil {
		return nil
	}
	var all []string
	for _, item := range n.Items {
		all = append(all, item.Text)
	}
	return all
}

// Node is a feature to be put in order.
type Node struct {
	// Reference as the devcontainer.json or another feature writes it.
	Reference   string
	Description *document.Node
}

// is reports whether another feature means this one by a reference.
func (n Node) is(reference string) bool {
	name := Name(reference)
	if Name(n.Reference) == name {
		return true
	}
	id := n.Description.Get("id")
	return id != nil && id.Text == name || slices.Contains(words(n.Description.Get("legacyIds")), name)
}

// Order returns the indexes of features in the order of their installation: what a feature
// depends on (dependsOn) comes before it, and so does what it wants before it
// (installsAfter) if that is there. Otherwise first come those that override names, in its
// order, and then the order given counts. The error names features that wait for each
// other.
func Order(nodes []Node, override []string) ([]int, error) {
	rank := func(i int) int {
		if at := slices.IndexFunc(override, nodes[i].is); at >= 0 {
			return at
		}
		return len(override)
	}
	left := make([]int, len(nodes))
	for i := range left {
		left[i] = i
	}
	slices.SortStableFunc(left, func(a, b int) int { return cmp.Compare(rank(a), rank(b)) })
	var order []int
	for len(left) > 0 {
		at := slices.IndexFunc(left, func(i int) bool { return !waits(nodes, i, left) })
		if at < 0 {
			return nil, fmt.Errorf("the features %.300s wait for each other", strings.Join(references(nodes, left), ", "))
		}
		order = append(order, left[at])
		left = slices.Delete(left, at, at+1)
	}
	return order, nil
}

// waits reports whether a feature must be installed after another one that is left.
func waits(nodes []Node, i int, left []int) bool {
	before := words(nodes[i].Description.Get("installsAfter"))
	for _, w := range In(nodes[i].Description.Get("dependsOn")) {
		before = append(before, w.Reference)
	}
	return slices.ContainsFunc(left, func(other int) bool {
		return other != i && slices.ContainsFunc(before, nodes[other].is)
	})
}

func references(nodes []Node, indexes []int) []string {
	var all []string
	for _, i := range indexes {
		all = append(all, nodes[i].Reference)
	}
	return all
}
