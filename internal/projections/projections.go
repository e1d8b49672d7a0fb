// Package projections says what the built-in tools of a sandbox bring in from the
// host. All that is known of a tool stands in projections.yaml.
package projections

import (
	"bytes"
	_ "embed" // for projections.yaml
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"go.yaml.in/yaml/v3"
)

//go:embed projections.yaml
var data []byte

// Kind says how an item is brought in.
type Kind string

// The kinds; projections.yaml says what they mean.
const (
	Mount Kind = "mount"
	Copy  Kind = "copy"
	Cache Kind = "cache"
	File  Kind = "file"
)

// Item is one thing that a tool brings in.
type Item struct {
	Kind Kind
	// What names it for people.
	What string
	// From are the places on the host, To is that inside.
	From []string
	To   string
	// Content is that of a File.
	Content string
	// Envs goes with it.
	Envs map[string]string
	// Required: without it the tool is of no use, unless the sandbox has one of the
	// variables UnlessEnv.
	Required  bool
	UnlessEnv []string `yaml:"unless_env"`
	// Hint says what to do when it is missing.
	Hint string
}

// Preset is a command that runs the tool in a sandbox of its own.
type Preset struct {
	Command []string
	// Tools are brought in; Also those of which all that is required is here.
	Tools, Also []string
	// ImageEnv names the variable with the image, Install a command that brings the
	// tool into one.
	ImageEnv string `yaml:"image_env"`
	Install  string
}

// Tool is one built-in tool.
type Tool struct {
	Name, Description string
	Items             []Item
	// Preset is nil for what is no program to run.
	Preset *Preset
}

// All returns all tools, in the order of the file.
var All = sync.OnceValue(func() []Tool {
	var file struct{ Tools []Tool }
	in := yaml.NewDecoder(bytes.NewReader(data))
	in.KnownFields(true)
	if err := in.Decode(&file); err != nil {
		panic("projections.yaml: " + err.Error()) // part of the binary; a test reads it
	}
	return file.Tools
})

// Find returns the tool of a name; nil if there is none.
func Find(name string) *Tool {
	all := All()
	if i := slices.IndexFunc(all, func(t Tool) bool { return t.Name == name }); i >= 0 {
		return &all[i]
	}
	return nil
}

// Names are the names of all tools.
func Names() []string {
	var names []string
	for _, t := range All() {
		names = append(names, t.Name)
	}
	return names
}

// Variables are those of the caller by which tools find their files.
func Variables() []string {
	var names []string
	for _, t := range All() {
		for _, item := range t.Items {
			for _, from := range item.From {
				if name, _, ok := variable(from); ok {
					names = append(names, name)
				}
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Host is whose files are brought in.
type Host struct {
	// Home is the caller's home; empty if it is not known.
	Home string
	// Env are the caller's Variables.
	Env map[string]string
	// Caches is the folder of all caches.
	Caches string
}

// Found is an item as it is on the host.
type Found struct {
	Item
	Tool string
	// Source is its path; empty for a File, and for what is missing.
	Source string
	// Missing says why there is none, and what to do, in a sentence; empty if there is.
	Missing string
}

// Find looks for everything that a tool brings in.
func (h Host) Find(t *Tool) []Found {
	var all []Found
	for i, item := range t.Items {
		f := Found{Item: item, Tool: t.Name}
		switch item.Kind {
		case Cache:
			f.Source = filepath.Join(h.Caches, t.Name)
			if i > 0 && slices.ContainsFunc(t.Items[:i], func(other Item) bool { return other.Kind == Cache }) {
				f.Source = filepath.Join(h.Caches, fmt.Sprintf("%s-%d", t.Name, i+1))
			}
		case File:
		default:
			f.Source, f.Missing = h.look(item)
		}
		all = append(all, f)
	}
	return all
}

// look takes the first place at which there is something.
func (h Host) look(item Item) (source, missing string) {
	var tried []string
	for _, from := range item.From {
		path, ok := h.expand(from)
		if !ok {
			tried = append(tried, from)
			continue
		}
		if _, err := os.Stat(path); err == nil {
			return path, ""
		}
		tried = append(tried, path)
	}
	missing = fmt.Sprintf("The %s cannot be brought in, because there is nothing at %s.", item.What, strings.Join(tried, ", "))
	if item.Hint != "" {
		missing += " " + item.Hint + "."
	}
	return "", missing
}

// expand replaces a variable or "~" at the beginning of a place; false if it stands
// for nothing.
func (h Host) expand(from string) (string, bool) {
	base, rest := h.Home, strings.TrimPrefix(from, "~")
	if name, after, ok := variable(from); ok {
		base, rest = h.Env[name], after
	} else if rest == from {
		return from, true
	}
	if !filepath.IsAbs(base) {
		return "", false
	}
	return filepath.Join(base, rest), true
}

// variable splits a place that begins with one.
func variable(from string) (name, rest string, ok bool) {
	if !strings.HasPrefix(from, "$") {
		return "", "", false
	}
	name, rest, _ = strings.Cut(from[1:], "/")
	return name, rest, true
}

// Dispensable tells whether a sandbox with this environment can do without the item.
func (i Item) Dispensable(env map[string]string) bool {
	return !i.Required || slices.ContainsFunc(i.UnlessEnv, func(name string) bool { return env[name] != "" })
}
