package spec

import (
	"path"
	"path/filepath"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/spec/document"
)

// DefaultDockerfile is the path of the Dockerfile within the build context if the spec
// does not set one.
const DefaultDockerfile = "Dockerfile"

// imageOrBuild lets a layer that builds the image replace the image of the layers below,
// and the other way round.
func (r *resolver) imageOrBuild(layer *agboxv1.CreateSpec, at *document.Origin) {
	forget := func(name string) { delete(r.origin.Fields, name) }
	switch {
	case layer.GetImage() != "" && len(r.spec.GetBuild().GetFeatures()) > 0 && layer.GetBuild() == nil:
		r.otherBase(layer, at)
	case layer.GetBuild() != nil:
		r.spec.Image = ""
		forget("image")
	case layer.GetImage() != "":
		r.spec.Build = nil
		forget("build")
	}
}

// otherBase replaces the image that features are installed in.
func (r *resolver) otherBase(layer *agboxv1.CreateSpec, at *document.Origin) {
	r.spec.Build = &agboxv1.BuildSpec{Image: layer.GetImage(), Features: r.spec.GetBuild().GetFeatures()}
	layer.Image = ""
	from := r.origin.Fields["build"]
	for _, name := range []string{"context", "dockerfile", "dockerfile_inline", "args", "target"} {
		delete(from.Fields, name)
	}
	from.Fields["image"] = at.Fields["image"]
	if from.Fields["image"] == nil {
		from.Fields["image"] = at
	}
	delete(at.Fields, "image")
}

// built has what the primary and a service say about their image.
type built interface {
	proto.Message
	GetImage() string
	GetBuild() *agboxv1.BuildSpec
}

// build checks how the image of a container is built.
func (r *resolver) build(c built, at []any) {
	b := c.GetBuild()
	if b == nil {
		return
	}
	at = append(slices.Clip(at), "build")
	if c.GetImage() != "" {
		r.problem(at, "The image is either named or built: remove image or build")
	}
	switch file := filepath.ToSlash(b.GetDockerfile()); {
	case b.GetImage() != "" && b.GetContext()+b.GetDockerfile()+b.GetDockerfileInline()+b.GetTarget() != "":
		r.problem(append(at, "image"), "Features are installed either in a named image or in a built one: remove image, or context and Dockerfile")
	case b.GetImage() != "" && len(b.GetFeatures()) == 0:
		r.problem(append(at, "image"), "A build from an image alone changes nothing: write 'image: %.200s' outside of build, or add features", b.GetImage())
	case b.GetImage() != "":
	case b.GetContext() == "" && b.GetDockerfileInline() == "":
		r.problem(at, "A build needs a folder: write for example 'build: .', or give dockerfile_inline")
	case b.GetDockerfile() != "" && b.GetDockerfileInline() != "":
		r.problem(append(at, "dockerfile_inline"), "The Dockerfile is either a file or inline: remove dockerfile or dockerfile_inline")
	case file != "" && !filepath.IsLocal(file):
		r.problem(append(at, "dockerfile"), "The Dockerfile %.200s is outside the build context %.200s, and only files in that are read: make the context larger, or move the file", file, b.GetContext())
	}
	for i, f := range b.GetFeatures() {
		if source := f.GetSource(); source != "" && !strings.Contains(source, "\x00") && !r.endless(source, append(at, "features", i, "source")...) {
			r.source("Copying", source, false, append(at, "features", i, "source")...)
		}
	}
	if strings.Contains(b.GetContext(), "\x00") || b.GetContext() == "" || r.endless(b.GetContext(), append(at, "context")...) {
		return
	}
	r.source("Copying", b.GetContext(), false, append(at, "context")...)
}

// builds checks all builds of the spec.
func (r *resolver) builds() {
	r.build(r.spec, nil)
	for i, s := range r.spec.GetServices() {
		r.build(s, []any{"services", i})
	}
}

// ImageName names the image of a sandbox for people, for example "build of web".
func ImageName(s *agboxv1.CreateSpec) string {
	switch {
	case s.GetDerived().GetParent() != "" && s.GetImage() == "":
		return "image of agent " + s.GetDerived().GetParent()
	case s.GetBuild() == nil:
		return s.GetImage()
	case s.GetBuild().GetImage() != "":
		return s.GetBuild().GetImage() + " with features"
	case s.GetBuild().GetContext() == "":
		return "build of a Dockerfile"
	}
	return "build of " + path.Base(s.GetBuild().GetContext())
}

// remote reports whether a build context is not a folder but an address.
func remote(text string) bool {
	return strings.Contains(text, "://") || strings.HasPrefix(text, "git@") || strings.HasPrefix(text, "github.com/")
}

// dockerfileIn returns the path of a Dockerfile within its context. Both are paths as a
// file names them, relative to the folders that the format says.
func dockerfileIn(context, file string) string {
	if filepath.IsAbs(file) || filepath.IsAbs(context) {
		if rel, err := filepath.Rel(context, file); err == nil && filepath.IsAbs(file) {
			return filepath.ToSlash(rel)
		}
		return file
	}
	return path.Clean(filepath.ToSlash(file))
}
