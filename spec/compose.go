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

// compose reads the services of a compose file: all, or only some and what they depend on.
func (r *resolver) compose(file *agboxv1.ConfigFile, primary string, only []string) {
	node := r.yaml(file.GetPath(), file.GetContent())
	if node == nil {
		return
	}
	c := &composeFile{
		resolver: r, file: file, primary: primary, only: only, node: node, reported: make(map[string]bool),
		Reader: document.Reader{File: file.GetPath(), Report: r.report},
	}
	spec := new(agboxv1.CreateSpec)
	c.into = newLayer(spec, c.At(node, ""))
	if node.Kind != document.Map {
		r.unreadable = true
		r.report.Problem(c.At(node, "services"), "This is not a compose file: it should be a map with the key services")
		return
	}
	c.expand(node, "")
	c.include(node, node, map[string]bool{file.GetPath(): true})
	for _, e := range node.Entries {
		c.top(e)
	}
	c.services(node.Get("services"))
	c.networks()
	requiredInFile(spec)
	r.add(spec, c.into.at, dirOf(file))
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

// top reads a top-level key.
func (c *composeFile) top(e document.Entry) {
	at := c.At(e.Key, e.Key.Text)
	switch key := e.Key.Text; {
	case key == "services", key == "version", key == "name", strings.HasPrefix(key, "x-"):
		// version and name have no meaning for a sandbox.
	case key == "secrets", key == "configs":
		// Read where a service uses them.
	case key == "volumes":
		c.topVolumes(e.Value, at)
	case key == "networks":
		// Read with the services, because it depends on them.
	case key == "include":
		// Read before.
	default:
		c.Report.Notice(at, "%s is not supported and was left out", e.Key.Text)
	}
}

func (c *composeFile) topVolumes(n *document.Node, at *document.Origin) {
	if len(n.Entries) > 0 {
		c.Report.Notice(at, "Volumes last as long as the sandbox here: what is in them goes with it")
	}
	for _, e := range n.Entries {
		below := c.At(e.Key, document.Child(at.Path, e.Key.Text))
		for _, option := range e.Value.Entries {
			switch key := option.Key.Text; {
			case key == "external" && option.Value.Text != "false":
				c.Report.Problem(below, "The volume %s is external, and a sandbox has volumes of its own only: mount a folder of the host instead, or remove external", e.Key.Text)
			case key != "external" && !strings.HasPrefix(key, "x-"):
				c.Report.Notice(below, "%s of the volume %s is not supported and was left out", key, e.Key.Text)
			}
		}
	}
}

// networks gives the sandbox an internal network if all services that are read have only such.
// All containers of a sandbox share one network, so there is nothing in between.
func (c *composeFile) networks() {
	services, all := c.node.Get("services"), c.node.Get("networks")
	if services == nil {
		return
	}
	var internal *document.Node
	var inner string
	open := false
	for _, e := range services.Entries {
		if yes, _ := c.wanted(e); !yes || e.Value.Get("network_mode") != nil {
			continue
		}
		for _, name := range networksOf(e.Value) {
			if n := all.Get(name); nodeText(n.Get("internal")) == "true" {
				internal, inner = n, name
			} else {
				open = true
			}
		}
	}
	switch {
	case all == nil:
	case internal == nil:
		c.Report.Notice(c.At(all, "networks"), "Networks are not supported and were left out: all containers of a sandbox share one network of their own")
	case open:
		c.Report.Problem(c.At(internal, document.Child("networks", inner)),
			"The network %s is internal and others of the services are not, and all containers of a sandbox share one network: write internal for all of them, or for none", inner)
	default:
		c.into.set("network", agboxv1.NetworkMode_NETWORK_MODE_INTERNAL.Number(), c.At(internal, document.Child("networks", inner)))
	}
}

// networksOf returns the names of the networks of a service.
func networksOf(service *document.Node) []string {
	n := service.Get("networks")
	if n == nil || len(n.Entries)+len(n.Items) == 0 {
		return []string{"default"}
	}
	var names []string
	for _, e := range n.Entries {
		names = append(names, e.Key.Text)
	}
	for _, item := range n.Items {
		names = append(names, item.Text)
	}
	return names
}

func (c *composeFile) services(n *document.Node) {
	if n == nil || n.Kind != document.Map {
		at := c.into.at.Under("services")
		if n != nil {
			at = c.At(n, "services")
		}
		c.Report.Problem(at, "Here should be services, a map from their names to what they are")
		return
	}
	c.extend(n)
	c.choosePrimary(n)
	if c.only != nil {
		c.only = needed(n, c.only)
	}
	c.findOneShot(n)
	for _, e := range n.Entries {
		at := c.At(e.Key, document.Child("services", e.Key.Text))
		if e.Value.Kind != document.Map {
			c.Report.Problem(at, "Service %.80s should be a map with the key image", e.Key.Text)
			continue
		}
		switch wanted, profile := c.wanted(e); {
		case wanted:
			c.service(e, at)
		case profile != "":
			c.Report.Notice(at, "Service %s was left out, because it belongs to a profile (%s): give --profile %[2]s or set COMPOSE_PROFILES if you want it", e.Key.Text, profile)
		}
	}
}

// wanted reports whether a service is read; if not, the profile for which it is left out.
func (c *composeFile) wanted(e document.Entry) (yes bool, profile string) {
	if e.Key.Text == c.primary {
		return true, ""
	}
	if c.only != nil && !slices.Contains(c.only, e.Key.Text) {
		return false, ""
	}
	if p := e.Value.Get("profiles"); p != nil && len(p.Items) > 0 && !c.profile(p.Items) {
		return false, p.Items[0].Text
	}
	return true, ""
}

// findOneShot finds the services for whose successful end others wait.
func (c *composeFile) findOneShot(services *document.Node) {
	c.oneShot = make(map[string]bool)
	for _, e := range services.Entries {
		if yes, _ := c.wanted(e); !yes || e.Value.Get("depends_on") == nil {
			continue
		}
		for _, d := range e.Value.Get("depends_on").Entries {
			if nodeText(d.Value.Get("condition")) == completed {
				c.oneShot[d.Key.Text] = true
			}
		}
	}
}

// profile reports whether the caller has asked for one of the profiles of a service.
func (c *composeFile) profile(of []*document.Node) bool {
	wanted := strings.Split(c.file.GetVariables()[document.ProfilesVariable], ",")
	return slices.Contains(wanted, "*") || slices.ContainsFunc(of, func(n *document.Node) bool { return slices.Contains(wanted, n.Text) })
}

// choosePrimary finds the service that the request names, or else the one that is marked
// as the primary.
func (c *composeFile) choosePrimary(services *document.Node) {
	if c.primary != "" && services.Get(c.primary) == nil {
		names := make([]string, 0, len(services.Entries))
		for _, e := range services.Entries {
			names = append(names, e.Key.Text)
		}
		c.Report.Problem(c.At(services, "services"), "There is no service %.80q to be the primary: there are %.200s", c.primary, strings.Join(names, ", "))
		c.resolver.unreadable = true
		return
	}
	for _, e := range services.Entries {
		x := e.Value.Get("x-agbox")
		if x == nil {
			continue
		}
		at := c.At(x, document.Child(document.Child("services", e.Key.Text), "x-agbox"))
		switch {
		case x.Text != "primary" && (x.Get("primary") == nil || x.Get("primary").Text != "true"):
			c.Report.Problem(at, "x-agbox says which service is the primary: write 'x-agbox: primary', or remove it")
		case c.primary == "":
			c.primary = e.Key.Text
		case c.primary != e.Key.Text && c.file.GetPrimary() == "":
			c.Report.Problem(at, "Service %s is the primary already: remove x-agbox from one of the two", c.primary)
		}
	}
	c.resolver.noPrimary = c.primary == ""
}

func (c *composeFile) service(e document.Entry, at *document.Origin) {
	s := &composeService{composeFile: c, name: e.Key.Text, node: e.Value, primary: e.Key.Text == c.primary}
	if s.primary {
		s.layer = c.into
	} else {
		service := new(agboxv1.ServiceSpec)
		s.layer = newLayer(service, at)
		s.set("name", e.Key.Text, at)
		defer func() {
			spec := c.into.spec()
			spec.Services = append(spec.Services, service)
			list := c.into.list("services", at)
			list.Items = append(list.Items, s.at)
		}()
	}
	for _, entry := range e.Value.Entries {
		s.key(entry, c.At(entry.Key, document.Child(at.Path, entry.Key.Text)))
	}
	s.finish(at)
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
