package spec

import (
	"path/filepath"
	"slices"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/spec/document"
	"github.com/agbox/agbox/spec/feature"
)

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
