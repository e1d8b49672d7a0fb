package spec

import (
	"path/filepath"
	"slices"
	"strings"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/spec/document"
)

// composeFile is a compose file being read.
type composeFile struct {
	document.Reader
	resolver *resolver
	file     *agboxv1.ConfigFile
	// primary is the name of the service that becomes the primary. May be empty.
	primary string
	// only are the services to read; nil means all.
	only []string
	// node is the whole file.
	node *document.Node
	into *layer
	// oneShot are the services for whose successful end others wait.
	oneShot map[string]bool
	// reported has the unset variables that already have a warning, and "ports".
	reported map[string]bool
}

// expand replaces variables in all values.
func (c *composeFile) expand(n *document.Node, path string) {
	for _, e := range n.Entries {
		c.expand(e.Value, document.Child(path, e.Key.Text))
	}
	for i, item := range n.Items {
		c.expand(item, document.Item(path, i))
	}
	if n.Kind != document.String || !strings.Contains(n.Text, "$") {
		return
	}
	text, unset, err := document.Interpolate(n.Text, func(name string) (string, bool) {
		value, ok := c.file.GetVariables()[name]
		return value, ok
	})
	if err != nil {
		c.Report.Problem(c.At(n, path), "%s", document.Sentence(err))
		return
	}
	for _, name := range unset {
		if !c.reported[name] {
			c.reported[name] = true
			c.Report.Notice(c.At(n, path), "The variable %s is not set in your environment and stands for nothing: set it, or write ${%[1]s:-default}", name)
		}
	}
	n.Text = text
}

// quiet are keys that need no notice when they are ignored.
var quiet = []string{"image", "expose", "profiles", "attach", "x-agbox", "networks", "extends"}

// items returns the items of a list, or a single value as a list.
func items(n *document.Node) []*document.Node {
	if n.Kind == document.List {
		return n.Items
	}
	if n.Kind == document.Null {
		return nil
	}
	return []*document.Node{n}
}

func isQuiet(key string) bool { return strings.HasPrefix(key, "x-") || slices.Contains(quiet, key) }

// included are the keys of an included file that are taken over.
var included = []string{"services", "volumes", "networks", "secrets", "configs"}

// include adds what the files have that a file includes. Two files must not describe the
// same service. seen are the paths of files that were added before.
func (c *composeFile) include(into, file *document.Node, seen map[string]bool) {
	n := file.Get("include")
	if n == nil {
		return
	}
	for i, item := range items(n) {
		at := c.At(item, document.Item("include", i))
		if item.Kind != document.Map {
			c.includeFile(into, item, at, seen)
			continue
		}
		for _, e := range item.Entries {
			switch e.Key.Text {
			case "path":
				for _, name := range items(e.Value) {
					c.includeFile(into, name, at, seen)
				}
			default:
				c.Report.Problem(c.At(e.Key, document.Child(at.Path, e.Key.Text)), "%.80s of an included file is not supported: variables and paths are those of its own folder", e.Key.Text)
			}
		}
	}
}

func (c *composeFile) includeFile(into, name *document.Node, at *document.Origin, seen map[string]bool) {
	path := filepath.Join(filepath.Dir(at.File), filepath.FromSlash(name.Text))
	if name.Text == "" || filepath.IsAbs(name.Text) || !c.sameFolder(path) {
		c.Report.Problem(at, "%.200q is in another folder, and only files beside this one are included: move it, or name it as a base file of its own", name.Text)
		return
	}
	if seen[path] {
		return
	}
	seen[path] = true
	other := c.readOther(path, at)
	if other == nil {
		return
	}
	for _, key := range included {
		c.join(into, other.Get(key), key, at)
	}
	c.include(into, other, seen)
}

// join adds the entries of a map in an included file to that of the file.
func (c *composeFile) join(into, more *document.Node, key string, at *document.Origin) {
	if more == nil || more.Kind != document.Map {
		return
	}
	there := into.Get(key)
	if there == nil {
		label := *more
		label.Kind, label.Text, label.Entries = document.String, key, nil
		into.Entries = append(into.Entries, document.Entry{Key: &label, Value: more})
		return
	}
	for _, e := range more.Entries {
		if there.Get(e.Key.Text) != nil {
			if key == "services" {
				c.Report.Problem(at, "Service %.80s is in this file and in an included one: rename one of the two, or use extends", e.Key.Text)
			}
			continue
		}
		there.Entries = append(there.Entries, e)
	}
}

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
		name, other = n.Get("service").Word(), n.Get("file").Word()
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

func orNull(n *document.Node) *document.Node {
	if n == nil {
		return new(document.Node)
	}
	return n
}

func namedFile(file *agboxv1.ConfigFile, path string) *agboxv1.NamedFile {
	i := slices.IndexFunc(file.GetFiles(), func(f *agboxv1.NamedFile) bool { return filepath.Clean(f.GetPath()) == filepath.Clean(path) })
	if i < 0 {
		return nil
	}
	return file.GetFiles()[i]
}

// needed are services and what they depend on, directly or not.
func needed(services *document.Node, names []string) []string {
	all := slices.Clone(names)
	for i := 0; i < len(all); i++ {
		depends := services.Get(all[i]).Get("depends_on")
		if depends == nil {
			continue
		}
		for _, e := range depends.Entries {
			if !slices.Contains(all, e.Key.Text) {
				all = append(all, e.Key.Text)
			}
		}
		for _, item := range depends.Items {
			if !slices.Contains(all, item.Text) {
				all = append(all, item.Text)
			}
		}
	}
	return all
}
