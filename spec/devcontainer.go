package spec

import (
	"path"
	"path/filepath"
	"slices"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/spec/document"
	"github.com/agbox/agbox/spec/feature"
)

// devcontainer reads the description of a development container.
func (r *resolver) devcontainer(file *agboxv1.ConfigFile) {
	node := document.JSONC(file.GetPath(), file.GetContent(), r.report)
	if node == nil {
		r.unreadable = true
		return
	}
	spec := new(agboxv1.CreateSpec)
	d := &devcontainer{
		Reader: document.Reader{File: file.GetPath(), Report: r.report},
		file:   file, node: node, folder: document.ProjectOf(file.GetPath()), reported: make(map[string]bool),
		resolver: r,
	}
	d.layer = newLayer(spec, d.At(node, ""))
	if node.Kind != document.Map {
		r.unreadable = true
		r.report.Problem(d.At(node, "image"), "This is not a devcontainer.json: it should be an object with the key image")
		return
	}
	// Other values use this variable, and so does the environment.
	d.inside = "/workspaces/" + path.Base(d.folder)
	if node.Get("dockerComposeFile") != nil {
		d.inside = "/"
	}
	d.inside = d.expand(document.Entry{Value: orNull(node.Get("workspaceFolder"))}, "workspaceFolder", d.inside)
	if env := node.Take("containerEnv"); env.Key != nil {
		d.environment(env.Value, d.At(env.Key, env.Key.Text))
	}
	d.composed()
	for _, e := range node.Entries {
		d.key(e, d.At(e.Key, e.Key.Text))
	}
	d.features()
	d.commands()
	d.workspace()
	d.matchUser()
	r.add(spec, d.at, dirOf(file))
}

// composed reads the compose files that a devcontainer.json names. The devcontainer.json
// overrides them.
func (d *devcontainer) composed() {
	n := d.node.Get("dockerComposeFile")
	if n == nil {
		return
	}
	service := d.node.Get("service").Word()
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
	run := []string{d.node.Get("service").Word()}
	for _, item := range items(n) {
		run = append(run, item.Text)
	}
	return run
}

// named returns the file with a path that came with the devcontainer.json, or nil.
func (d *devcontainer) named(path string) *agboxv1.NamedFile { return namedFile(d.file, path) }

// devFeature is a feature that a devcontainer.json, or one of its features, asks for.
type devFeature struct {
	feature.Node
	file    *agboxv1.NamedFile
	options *document.Node
	at      *document.Origin
}

// features adds the features to the image, in the order of their installation.
func (d *devcontainer) features() {
	n := d.node.Get("features")
	if n == nil || n.Kind == document.Null {
		return
	}
	if n.Kind != document.Map {
		d.Report.Problem(d.At(n, "features"), "Here should be an object from features to their options")
		return
	}
	var all []devFeature
	for _, w := range feature.In(n) {
		all = d.feature(all, w, d.At(w.Key, document.Child("features", w.Reference)))
	}
	nodes := make([]feature.Node, len(all))
	for i, f := range all {
		nodes[i] = f.Node
	}
	var override []string
	for _, item := range items(orNull(d.node.Get("overrideFeatureInstallOrder"))) {
		override = append(override, item.Text)
	}
	order, err := feature.Order(nodes, override)
	if err != nil {
		d.Report.Problem(d.At(n, "features"), "%s: remove one from the others' dependsOn or installsAfter", document.Sentence(err))
		return
	}
	if len(order) == 0 {
		return
	}
	at := d.At(n, "features")
	b := d.below("build", at)
	if image := d.spec().GetImage(); image != "" {
		b.set("image", image, d.layer.at.Fields["image"])
		d.m.Clear(d.field("image"))
		delete(d.layer.at.Fields, "image")
	} else if below := d.resolver.spec; d.node.Get("dockerComposeFile") != nil && below.GetImage() != "" {
		b.set("image", below.GetImage(), locate(d.resolver.origin, "image"))
	}
	for _, i := range order {
		d.install(b, all[i])
	}
}

// feature adds a feature and what it depends on, unless it is there. at is where the
// devcontainer.json asks for it.
func (d *devcontainer) feature(all []devFeature, w feature.Wanted, at *document.Origin) []devFeature {
	name := feature.Name(w.Reference)
	if slices.ContainsFunc(all, func(f devFeature) bool { return feature.Name(f.Reference) == name }) {
		return all
	}
	if feature.KindOf(w.Reference) == feature.Unusable {
		d.Report.Problem(at, "%.200q is no feature that is read here: write ./FOLDER, or REGISTRY/NAMESPACE/FEATURE:VERSION", w.Reference)
		return all
	}
	i := slices.IndexFunc(d.file.GetFiles(), func(f *agboxv1.NamedFile) bool { return f.GetName() == w.Reference })
	if i < 0 {
		d.resolver.unreadable = true
		d.Report.Problem(at, "The feature %.200s did not come with the request: send its %s in files, or leave it out", w.Reference, feature.FileName)
		return all
	}
	file := d.file.GetFiles()[i]
	description := document.JSONC(file.GetPath(), file.GetContent(), d.Report)
	if description == nil {
		d.resolver.unreadable = true
		return all
	}
	all = append(all, devFeature{feature.Node{Reference: w.Reference, Description: description}, file, w.Options, at})
	for _, needed := range feature.In(description.Get("dependsOn")) {
		all = d.feature(all, needed, at)
	}
	return all
}

// install adds one feature to the build, and its wishes to the sandbox.
func (d *devcontainer) install(b *layer, f devFeature) {
	env, err := feature.Environment(f.Description, f.options)
	if err != nil {
		d.Report.Problem(f.at, "%s", document.Sentence(err))
		env = make(map[string]string)
	}
	spec := &agboxv1.FeatureSpec{Source: filepath.Dir(f.file.GetPath()), Options: env}
	if user := d.spec().GetUser(); user != "" {
		env["_REMOTE_USER"] = user
	}
	if f.file.GetDigest() != "" {
		spec.Reference = feature.Name(f.Reference) + "@" + f.file.GetDigest()
	}
	own := *d // the wishes have the lines of the feature's own file
	own.Reader = document.Reader{File: f.file.GetPath(), Report: d.Report}
	own.node = f.Description
	for _, e := range f.Description.Entries {
		own.featureKey(spec, e, own.At(e.Key, e.Key.Text))
	}
	own.commands()
	b.add("features", spec, f.at)
}

// featureKey reads a key of the description of a feature.
func (d *devcontainer) featureKey(spec *agboxv1.FeatureSpec, e document.Entry, at *document.Origin) {
	switch key := e.Key.Text; key {
	case "containerEnv":
		spec.Envs = make(map[string]string)
		for _, v := range e.Value.Entries {
			spec.Envs[v.Key.Text] = v.Value.Text
		}
	case "entrypoint":
		spec.Entrypoint = d.expand(e, key, "")
	case "mounts", "capAdd", "privileged", "securityOpt":
		d.key(e, at)
	case "deprecated":
		if e.Value.Text == "true" {
			d.Report.Notice(at, "The feature is deprecated")
		}
	case "postAttachCommand":
		d.leftOut(key, at)
	default:
		// The others are for people and editors, or were read already: id, version, name,
		// description, options, installsAfter, dependsOn, init, legacyIds, customizations.
	}
}
