package spec

import (
	"path"
	"path/filepath"
	"slices"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/spec/document"
)

// composed reads the compose files that a devcontainer.json names. The devcontainer.json
// overrides them.
func (d *devcontainer) composed() {
	n := d.node.Get("dockerComposeFile")
	if n == nil {
		return
	}
	service := nodeText(d.node.Get("service"))
	if service == "" {
		d.resolver.imageTold = true
		d.Report.Problem(d.At(n, "service"), "Which service is the container? Write its name under service")
		return
	}
	there, noPrimary := false, d.resolver.noPrimary
	for i, item := range items(n) {
		at := d.At(item, document.Item("dockerComposeFile", i))
		file := d.named(filepath.Join(dirOf(d.file), item.Text))
		if file == nil {
			d.resolver.unreadable = true
			d.Report.Problem(at, "The compose file %.200s did not come with the request: send it in files, or name one that exists", item.Text)
			continue
		}
		d.resolver.order = append(d.resolver.order, file.GetPath())
		part := &agboxv1.ConfigFile{Path: file.GetPath(), Content: file.GetContent(), Variables: file.GetVariables(), Files: d.file.GetFiles()}
		primary := ""
		if node := document.YAML("", file.GetContent(), new(document.Report)); node.Get("services").Get(service) != nil {
			primary, there = service, true
		}
		d.resolver.compose(part, primary, d.runServices())
	}
	d.resolver.noPrimary = noPrimary
	d.projectOnly()
	if !there && !d.resolver.unreadable {
		d.resolver.imageTold = true
		d.Report.Problem(d.At(d.node.Get("service"), "service"), "No compose file has the service %.80q: write the name of one that is there", service)
	}
}

// projectOnly mounts the project where a compose file mounts a folder that has it: a file
// must not mount what is outside of its project.
func (d *devcontainer) projectOnly() {
	for i, m := range d.resolver.spec.GetMounts() {
		rel, err := filepath.Rel(m.GetSource(), d.folder)
		if err != nil || rel == "." || !filepath.IsLocal(rel) {
			continue
		}
		d.Report.Notice(locate(d.resolver.origin, "mounts", i), "Only the project is mounted, at %s, and not all of %s", path.Join(m.GetTarget(), rel), m.GetSource())
		m.Source, m.Target = d.folder, path.Join(m.GetTarget(), rel)
	}
}

// runServices are the services that run beside the container; nil means all.
func (d *devcontainer) runServices() []string {
	n := d.node.Get("runServices")
	if n == nil {
		return nil
	}
	run := []string{nodeText(d.node.Get("service"))}
	for _, item := range items(n) {
		run = append(run, item.Text)
	}
	return run
}

// named returns the file with a path that came with the devcontainer.json, or nil.
func (d *devcontainer) named(path string) *agboxv1.NamedFile { return namedFile(d.file, path) }

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
