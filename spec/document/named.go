package document

import (
	"path/filepath"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// Named is a file that a configuration file names.
type Named struct {
	// Name as written, relative to the folder of the file that names it.
	Name   string
	Format agboxv1.ConfigFormat
	// Secret means that the file has values of variables.
	Secret bool
}

// NamedIn returns the files that a compose file or a devcontainer.json names and that are
// part of the description. Features are not among them. values are the variables in names
// of a compose file; a name that cannot be read is left out, which the reader reports.
func NamedIn(format agboxv1.ConfigFormat, content []byte, values map[string]string) []Named {
	var all []Named
	add := func(name string, n Named) {
		text, _, err := Interpolate(name, func(name string) (string, bool) {
			value, set := values[name]
			return value, set
		})
		if err == nil && text != "" {
			n.Name = filepath.FromSlash(text)
			all = append(all, n)
		}
	}
	switch format {
	case agboxv1.ConfigFormat_CONFIG_FORMAT_DEVCONTAINER:
		for _, name := range texts(JSONC("", content, new(Report)).Get("dockerComposeFile")) {
			all = append(all, Named{Name: name, Format: agboxv1.ConfigFormat_CONFIG_FORMAT_COMPOSE})
		}
	case agboxv1.ConfigFormat_CONFIG_FORMAT_COMPOSE:
		node := YAML("", content, new(Report))
		for _, name := range texts(node.Get("include")) {
			add(name, Named{Format: agboxv1.ConfigFormat_CONFIG_FORMAT_COMPOSE})
		}
		for _, service := range node.Get("services").entries() {
			for _, name := range texts(service.Value.Get("env_file")) {
				add(name, Named{Secret: true})
			}
			if file := service.Value.Get("extends").Get("file"); file != nil {
				add(file.Text, Named{Format: agboxv1.ConfigFormat_CONFIG_FORMAT_COMPOSE})
			}
		}
	}
	return all
}

// texts returns a text, or the texts of a list. A map has its path.
func texts(n *Node) []string {
	var all []string
	switch {
	case n == nil:
	case n.Kind == List:
		for _, item := range n.Items {
			all = append(all, texts(item)...)
		}
	case n.Kind == Map:
		return texts(n.Get("path"))
	case n.Text != "":
		all = append(all, filepath.FromSlash(n.Text))
	}
	return all
}
