package spec

import (
	"path/filepath"
	"slices"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/spec/document"
)

// bases reads the key "base" of the sandbox file. It finds the files that the key names
// among those of the request, and returns the entries of the key.
func (r *resolver) bases(name string, config *document.Node) []document.BaseFile {
	given := make([]document.BaseFile, len(r.Request.GetBaseFiles()))
	if config == nil || config.Kind != document.Map {
		return given
	}
	named := document.TakeBases(name, config, r.report)
	for _, b := range named {
		file := b.File
		if !filepath.IsAbs(file) {
			file = filepath.Join(r.Request.GetConfigDir(), file)
		}
		i := slices.IndexFunc(r.Request.GetBaseFiles(), func(f *agboxv1.ConfigFile) bool { return filepath.Clean(f.GetPath()) == filepath.Clean(file) })
		if i < 0 {
			r.unreadable = true
			r.report.Problem(b.At, "The base file %s did not come with the request: send its content in base_files, or leave it out", file)
			continue
		}
		given[i] = b
	}
	return given
}

// base reads one base file and merges it. The settings of its entry take precedence.
func (r *resolver) base(file *agboxv1.ConfigFile, said document.BaseFile) {
	r.order = append(r.order, file.GetPath())
	format := said.Format
	if format == 0 {
		format = file.GetFormat()
	}
	if format == 0 {
		format = document.FormatOf(file.GetPath())
	}
	primary := said.Primary
	if primary == "" {
		primary = file.GetPrimary()
	}
	whole := &document.Origin{File: file.GetPath(), Line: 1}
	if primary != "" && format != agboxv1.ConfigFormat_CONFIG_FORMAT_COMPOSE {
		r.report.Problem(whole, "%q was named as its primary service, and the file is not a compose file: leave primary out", primary)
	}
	switch format {
	case agboxv1.ConfigFormat_CONFIG_FORMAT_AGBOX:
		r.agboxBase(file)
	case agboxv1.ConfigFormat_CONFIG_FORMAT_DEVCONTAINER:
		r.devcontainer(file)
	case agboxv1.ConfigFormat_CONFIG_FORMAT_COMPOSE:
		r.compose(file, primary, nil)
	default:
		r.unreadable = true
		r.report.Problem(whole, "The name of the file does not tell what it is: call it devcontainer.json or compose.yaml, or write its format")
	}
}

func (r *resolver) agboxBase(file *agboxv1.ConfigFile) {
	node := r.yaml(file.GetPath(), file.GetContent())
	if node == nil {
		return
	}
	if e := node.Take("base"); e.Key != nil {
		reader := document.Reader{File: file.GetPath()}
		r.report.Problem(reader.At(e.Key, "base"), "A base cannot have a base of its own: name all of them in the sandbox file")
	}
	layer, at := r.agboxFile(file.GetPath(), node)
	r.add(layer, at, dirOf(file))
}
