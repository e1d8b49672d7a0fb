package document

import (
	"cmp"
	"path"
	"path/filepath"
	"strings"

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

// formats are the words for the formats of base files.
var formats = map[string]agboxv1.ConfigFormat{
	"agbox":        agboxv1.ConfigFormat_CONFIG_FORMAT_AGBOX,
	"devcontainer": agboxv1.ConfigFormat_CONFIG_FORMAT_DEVCONTAINER,
	"compose":      agboxv1.ConfigFormat_CONFIG_FORMAT_COMPOSE,
}

// FormatOf returns the format that the name of a file implies, or UNSPECIFIED.
func FormatOf(name string) agboxv1.ConfigFormat {
	switch base, ext := strings.ToLower(path.Base(filepath.ToSlash(name))), path.Ext(name); {
	case strings.HasSuffix(base, "devcontainer.json") || ext == ".jsonc" || path.Base(path.Dir(name)) == ".devcontainer" && ext == ".json":
		return agboxv1.ConfigFormat_CONFIG_FORMAT_DEVCONTAINER
	case ext != ".yaml" && ext != ".yml":
		return agboxv1.ConfigFormat_CONFIG_FORMAT_UNSPECIFIED
	case strings.Contains(base, "compose"):
		return agboxv1.ConfigFormat_CONFIG_FORMAT_COMPOSE
	}
	return agboxv1.ConfigFormat_CONFIG_FORMAT_AGBOX
}

// BaseFile is a file that a sandbox file names as its base.
type BaseFile struct {
	// File is the path as written: relative to the folder of the file that names it.
	File string
	// Format is UNSPECIFIED if the name determines it.
	Format agboxv1.ConfigFormat
	// Primary is the service of a compose file that becomes the primary.
	Primary string
	// At is where it is named.
	At *Origin
}

// TakeBases removes the key "base" from a sandbox file and returns its entries.
func TakeBases(name string, config *Node, report *Report) []BaseFile {
	entry := config.Take("base")
	if entry.Value == nil || entry.Value.Kind == Null {
		return nil
	}
	items := []*Node{entry.Value}
	if entry.Value.Kind == List {
		items = entry.Value.Items
	}
	var all []BaseFile
	for i, n := range items {
		b := BaseFile{At: &Origin{File: name, Line: n.Line, Column: n.Column, Path: Item("base", i)}}
		switch n.Kind {
		case String:
			b.File = n.Text
		case Map:
			for _, e := range n.Entries {
				b.set(e, report)
			}
		}
		if b.File == "" {
			report.Problem(b.At, "Here should be the name of a file, for example compose.yaml, or a map of file, format and primary")
			continue
		}
		all = append(all, b)
	}
	return all
}

func (b *BaseFile) set(e Entry, report *Report) {
	at := &Origin{File: b.At.File, Line: e.Key.Line, Column: e.Key.Column, Path: Child(b.At.Path, e.Key.Text)}
	format, known := formats[e.Value.Text]
	switch {
	case e.Key.Text == "file" && e.Value.Kind == String:
		b.File = e.Value.Text
	case e.Key.Text == "primary" && e.Value.Kind == String:
		b.Primary = e.Value.Text
	case e.Key.Text == "format" && known:
		b.Format = format
	case e.Key.Text == "format":
		report.Problem(at, "The format of a base is agbox, compose or devcontainer")
	default:
		report.Problem(at, "A base has the fields file, format and primary, which are words: write for example {file: compose.yaml, primary: web}")
	}
}

// Bases returns the base files that a sandbox file names, for the code that reads them.
// Package spec reports the problems of the file.
func Bases(config []byte) []BaseFile {
	report := new(Report)
	node := YAML("", config, report)
	if node == nil || node.Kind != Map {
		return nil
	}
	return TakeBases("", node, report)
}

// ProjectOf returns the project folder of a devcontainer.json: the folder that has the
// file, or that has the folder .devcontainer in which the file is.
func ProjectOf(file string) string {
	dir := filepath.Dir(file)
	if i := strings.LastIndex(dir+"/", "/.devcontainer/"); i > 0 {
		return dir[:i]
	}
	return dir
}

// DockerfilesIn returns the Dockerfiles that a file builds with, relative to its folder.
func DockerfilesIn(format agboxv1.ConfigFormat, content []byte) []string {
	var all []string
	add := func(build *Node) {
		if build == nil || build.Get("dockerfile_inline") != nil {
			return
		}
		context := build.Text // the short form
		if build.Kind == Map {
			context = build.Get("context").Word()
		}
		all = append(all, filepath.Join(cmp.Or(context, "."), cmp.Or(build.Get("dockerfile").Word(), "Dockerfile")))
	}
	switch format {
	case agboxv1.ConfigFormat_CONFIG_FORMAT_DEVCONTAINER: // relative to the file, not to the context
		node := JSONC("", content, new(Report))
		if name := cmp.Or(node.Get("build").Get("dockerfile").Word(), node.Get("dockerFile").Word()); name != "" {
			all = append(all, name)
		}
	case agboxv1.ConfigFormat_CONFIG_FORMAT_COMPOSE:
		for _, service := range YAML("", content, new(Report)).Get("services").entries() {
			add(service.Value.Get("build"))
		}
	case agboxv1.ConfigFormat_CONFIG_FORMAT_AGBOX:
		node := YAML("", content, new(Report))
		add(node.Get("build"))
		if services := node.Get("services"); services != nil {
			for _, service := range services.Items {
				add(service.Get("build"))
			}
		}
	}
	return all
}
