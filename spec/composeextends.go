package spec

import (
	"path/filepath"
	"slices"
	"strings"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/spec/document"
)

// maxExtends bounds how many services extend each other.
const maxExtends = 16

// extend replaces each service that extends another one by what both say together.
func (c *composeFile) extend(services *document.Node) {
	for i, e := range services.Entries {
		if e.Value.Kind == document.Map && e.Value.Get("extends") != nil {
			services.Entries[i].Value = c.extended(e.Value, services, c.file.GetPath(), document.Child("services", e.Key.Text), 0)
		}
	}
}

// extended returns a service of a file together with what it extends.
func (c *composeFile) extended(service, services *document.Node, file, path string, depth int) *document.Node {
	n := service.Get("extends")
	if n == nil {
		return service
	}
	at := c.At(n, document.Child(path, "extends"))
	name, other := n.Text, ""
	if n.Kind == document.Map {
		name, other = nodeText(n.Get("service")), nodeText(n.Get("file"))
	}
	if depth == maxExtends {
		c.Report.Problem(at, "More than %d services extend each other: write what they say into one", maxExtends)
		return service
	}
	if other != "" {
		if file = filepath.Join(filepath.Dir(file), other); !c.sameFolder(file) {
			c.Report.Problem(at, "%.200s is in another folder, and only files beside this one are extended: move it, or write its keys here", other)
			return service
		}
		if services = c.servicesOf(file, at); services == nil {
			return service
		}
	}
	below := services.Get(name)
	if below == nil || below.Kind != document.Map {
		c.Report.Problem(at, "There is no service %.80q to extend: name one that is there", name)
		return service
	}
	return merged(c.extended(below, services, file, document.Child("services", name), depth+1), service)
}

func (c *composeFile) sameFolder(file string) bool {
	return filepath.Dir(file) == filepath.Dir(c.file.GetPath())
}

// servicesOf reads the services of another file that came with the request.
func (c *composeFile) servicesOf(path string, at *document.Origin) *document.Node {
	node := c.readOther(path, at)
	if node == nil {
		return nil
	}
	if node.Get("services") == nil {
		c.Report.Problem(at, "The file %.200s has no services: name another one", path)
	}
	return node.Get("services")
}

// readOther reads another compose file that came with the request, and reports why it
// cannot.
func (c *composeFile) readOther(path string, at *document.Origin) *document.Node {
	file := namedFile(c.file, path)
	if file == nil {
		c.resolver.unreadable = true
		c.Report.Problem(at, "The file %.200s did not come with the request: send it in files, or name one that exists", path)
		return nil
	}
	node := document.YAML(path, file.GetContent(), c.Report)
	if node == nil || node.Kind != document.Map {
		c.Report.Problem(at, "The file %.200s is not a compose file: name another one", path)
		return nil
	}
	other := *c
	other.file = &agboxv1.ConfigFile{Path: path, Variables: file.GetVariables()}
	other.Reader = document.Reader{File: path, Report: c.Report}
	other.expand(node, "")
	from(node, path)
	return node
}

// from marks a tree as that of a file.
func from(n *document.Node, file string) {
	n.File = file
	for _, e := range n.Entries {
		e.Key.File = file
		from(e.Value, file)
	}
	for _, item := range n.Items {
		from(item, file)
	}
}

// replacedWhole are keys whose values are not merged.
var replacedWhole = []string{"command", "entrypoint", "test", "build", "image"}

// notInherited are keys that say something only about the service that has them.
var notInherited = []string{"extends", "x-agbox", "profiles"}

// merged returns a map over another one: maps are merged, lists are joined, and everything
// else is replaced.
func merged(below, above *document.Node) *document.Node {
	out := *above
	out.Entries = nil
	for _, e := range below.Entries {
		if over := above.Get(e.Key.Text); over != nil {
			e.Value = overridden(e.Key.Text, e.Value, over)
		}
		if !slices.Contains(notInherited, e.Key.Text) {
			out.Entries = append(out.Entries, e)
		}
	}
	for _, e := range above.Entries {
		if own := slices.Contains(notInherited, e.Key.Text); own && e.Key.Text != "extends" || !own && below.Get(e.Key.Text) == nil {
			out.Entries = append(out.Entries, e)
		}
	}
	return &out
}

func overridden(key string, below, above *document.Node) *document.Node {
	switch {
	case slices.Contains(replacedWhole, key) || above.Kind == document.Null:
		return above
	case below.Kind == document.Map && above.Kind == document.Map:
		return merged(below, above)
	case below.Kind == document.List && above.Kind == document.List, key == "env_file":
		out := *above
		out.Kind, out.Items = document.List, slices.Concat(items(below), items(above))
		return &out
	case key == "environment" || key == "labels" || key == "args":
		return merged(asMap(below), asMap(above))
	}
	return above
}

// asMap returns a list of KEY=VALUE as a map.
func asMap(n *document.Node) *document.Node {
	if n.Kind != document.List {
		return n
	}
	out := *n
	out.Kind, out.Items = document.Map, nil
	for _, item := range n.Items {
		name, value, set := strings.Cut(item.Text, "=")
		key, of := *item, *item
		key.Text, of.Text = name, value
		if !set {
			of.Kind = document.Null
		}
		out.Entries = append(out.Entries, document.Entry{Key: &key, Value: &of})
	}
	return &out
}
