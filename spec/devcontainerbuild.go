package spec

import (
	"path/filepath"

	"github.com/agbox/agbox/spec/document"
)

// build reads the key build. Its paths are relative to the folder of the file.
func (d *devcontainer) build(n *document.Node, at *document.Origin) {
	if n.Kind != document.Map {
		d.Report.Problem(at, "Here should be an object with the key dockerfile")
		return
	}
	b := d.below("build", at)
	context, file := ".", DefaultDockerfile
	for _, e := range n.Entries {
		below := d.At(e.Key, document.Child(at.Path, e.Key.Text))
		switch key := e.Key.Text; key {
		case "context":
			context = d.expand(e, below.Path, context)
		case "dockerfile":
			file = d.expand(e, below.Path, file)
		case "target":
			b.set("target", d.expand(e, below.Path, ""), below)
		case "args":
			for _, arg := range e.Value.Entries {
				b.entry("args", arg.Key.Text, d.expand(arg, below.Path, ""), d.At(arg.Key, document.Child(below.Path, arg.Key.Text)))
			}
		case "options":
			if len(items(e.Value)) > 0 {
				d.Report.Problem(below, "Options of the build are not supported: write args and target, or build the image with `agbox image build`, and name it")
			}
		default:
			d.Report.Notice(below, "%s of the build is not supported and was left out", key)
		}
	}
	d.context(b, context, file, at)
}

// oldBuild reads the keys dockerFile and context, an older form of build.
func (d *devcontainer) oldBuild(n *document.Node, at *document.Origin) {
	if d.node.Get("build") != nil {
		d.Report.Problem(at, "build says which Dockerfile it is: remove dockerFile")
		return
	}
	context := d.expand(document.Entry{Value: orNull(d.node.Get("context"))}, "context", ".")
	d.context(d.below("build", at), context, d.expand(document.Entry{Value: n}, at.Path, DefaultDockerfile), at)
}

// context sets folder and Dockerfile of a build. file is relative to the folder of
// devcontainer.json, and becomes relative to the context.
func (d *devcontainer) context(b *layer, context, file string, at *document.Origin) {
	if remote(context) {
		d.Report.Problem(at, "The build context is an address, and only folders of this machine are read: clone it, and name the folder")
		return
	}
	dir := dirOf(d.file)
	absolute := func(path string) string {
		if filepath.IsAbs(path) {
			return filepath.Clean(path)
		}
		return filepath.Join(dir, path)
	}
	rel, err := filepath.Rel(absolute(context), absolute(file))
	if err != nil {
		rel = file // refused as outside the context
	}
	b.set("context", context, at)
	b.set("dockerfile", filepath.ToSlash(rel), at)
}
