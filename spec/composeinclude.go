package spec

import (
	"path/filepath"

	"github.com/agbox/agbox/spec/document"
)

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
