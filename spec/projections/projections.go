// Package projections defines what the built-in tools of a sandbox bring in from the
// host. projections.yaml has everything about each tool.
//
// A file that the program writes to is copied, never mounted writable: the host would
// execute settings that a sandbox has changed. The items are resolved once, with the
// environment of the caller, and stored in the spec.
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

// The kinds. projections.yaml explains them.
const (
	Mount Kind = "mount"
	Copy  Kind = "copy"
	Cache Kind = "cache"
	File  Kind = "file"
)

// Item is one thing that a tool brings in.
type Item struct {
	Kind Kind
	// What is its name for people.
	What string
	// From are the possible paths on the host, in order of preference.
	From []string
	// To is the path in the sandbox.
	To string
	// Content is the content of a File.
	Content string
	// Envs are variables that are set if the item is brought in.
	Envs map[string]string
	// Required is true if the tool does not work without the item. One of the variables
	// in UnlessEnv, set in the sandbox, replaces the item.
	Required  bool
	UnlessEnv []string `yaml:"unless_env"`
	// PublishedOptional is true if clients of the published contract get the tool also
	// without an item that is Required.
	PublishedOptional bool `yaml:"published_optional"`
	// Credential is true if the item is a credential. Only the caller can bring it in, for
	// example with a flag, never a sandbox file in a directory from elsewhere.
	Credential bool
	// Hint says what to do if the item is missing.
	Hint string
}

// Tool is one built-in tool.
type Tool struct {
	Name, Description string
	Items             []Item
}

// All returns all tools, in the order of the file.
var All = sync.OnceValue(func() []Tool {
	var file struct{ Tools []Tool }
	in := yaml.NewDecoder(bytes.NewReader(data))
	in.KnownFields(true)
	if err := in.Decode(&file); err != nil {
		panic("projections.yaml: " + err.Error()) // the file is embedded, and a test parses it
	}
	return file.Tools
})

// Find returns the tool with a name; nil if there is none.
func Find(name string) *Tool {
	all := All()
	if i := slices.IndexFunc(all, func(t Tool) bool { return t.Name == name }); i >= 0 {
		return &all[i]
	}
	return nil
}

// Credential reports whether the item that a tool brings in at a target is a credential.
func Credential(tool, target string) bool {
	t := Find(tool)
	return t != nil && slices.ContainsFunc(t.Items, func(i Item) bool { return i.Credential && i.To == target })
}

// Names returns the names of all tools.
func Names() []string {
	var names []string
	for _, t := range All() {
		names = append(names, t.Name)
	}
	return names
}

// Variables returns the names of the caller's variables that Item.From uses.
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

// Host describes the host and the caller whose files are brought in.
type Host struct {
	// Home is the caller's home directory; empty if unknown.
	Home string
	// Env has the values of the caller's Variables.
	Env map[string]string
	// Caches is the directory of all caches.
	Caches string
}

// Found is the result of the search for an item on the host.
type Found struct {
	Item
	Tool string
	// Source is the path on the host; empty for a File and for a missing item.
	Source string
	// Missing is a sentence that says why the item is missing and what to do; empty if it
	// was found.
	Missing string
}

// Find searches the host for every item of a tool.
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

// look returns the first path in item.From that exists.
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
	missing = fmt.Sprintf("The %s cannot be brought in, because none of these exist: %s.", item.What, strings.Join(tried, ", "))
	if item.Hint != "" {
		missing += " " + item.Hint + "."
	}
	return "", missing
}

// expand replaces a variable or "~" at the beginning of a path. It returns false if the
// value is not an absolute path, for example because it is not set.
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

// variable splits a path that begins with a variable.
func variable(from string) (name, rest string, ok bool) {
	if !strings.HasPrefix(from, "$") {
		return "", "", false
	}
	name, rest, _ = strings.Cut(from[1:], "/")
	return name, rest, true
}

// Dispensable reports whether a sandbox with this environment works without the item.
func (i Item) Dispensable(env map[string]string) bool {
	return !i.Required || slices.ContainsFunc(i.UnlessEnv, func(name string) bool { return env[name] != "" })
}
