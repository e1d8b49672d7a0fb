package admission

import (
	"cmp"
	"context"
	"slices"
	"strings"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/runtime"
	"github.com/agbox/agbox/spec"
	"github.com/agbox/agbox/spec/feature"
)

// pulled returns a function that reports whether the engine would ask a registry for the
// image of a container. Its error means that the engine does not answer.
func (c *Controller) pulled(ctx context.Context) func(pullable) (bool, error) {
	if c.o.Local == nil {
		return nil
	}
	return func(of pullable) (bool, error) {
		switch of.GetPullPolicy() {
		case agboxv1.PullPolicy_PULL_POLICY_ALWAYS:
			return true, nil
		case agboxv1.PullPolicy_PULL_POLICY_NEVER:
			return false, nil
		}
		ctx, cancel := context.WithTimeout(ctx, abilitiesWithin)
		defer cancel()
		here, err := c.o.Local(ctx, runtime.ImageRequest{Ref: of.GetImage(), Platform: of.GetPlatform(), Policy: runtime.PullNever})
		return !here, err
	}
}

// image adds the image of a container if the engine asks this machine or an address for it,
// and otherwise if it pulls the image from a registry. It may have to pull one of which it
// does not say whether it has it.
func (l *requestList) image(of pullable, who string, path []any) {
	name, at := of.GetImage(), slices.Concat(path, []any{"image"})
	switch {
	case name == "" || l.origin(at) == nil:
	case feature.Near(name):
		l.add(at, "image", true, "%s%s: the engine asks this machine or an address near it", who, name)
	case l.pulled != nil:
		pulled, err := l.pulled(of)
		if err != nil {
			l.unanswered = err
		} else if !pulled {
			return
		}
		l.add(at, pullKind, false, "%s%s, which the engine fetches from %s", who, name, registryOf(name))
	}
}

// registryOf returns the host that has an image.
func registryOf(name string) string {
	host, _, below := strings.Cut(name, "/")
	if below && strings.ContainsAny(host, ".:") {
		return host
	}
	return "docker.io"
}

// buildOf is a build of a spec, and its path in the spec.
type buildOf struct {
	build *agboxv1.BuildSpec
	path  []any
	// who begins a sentence about the build of a service.
	who string
}

// builds returns all builds of a spec.
func builds(s *agboxv1.CreateSpec) []buildOf {
	var all []buildOf
	if b := s.GetBuild(); b != nil {
		all = append(all, buildOf{b, []any{"build"}, ""})
	}
	for i, service := range s.GetServices() {
		if b := service.GetBuild(); b != nil {
			all = append(all, buildOf{b, []any{"services", i, "build"}, "service " + service.GetName() + ": "})
		}
	}
	return all
}

// contexts returns the builds that read a folder.
func contexts(s *agboxv1.CreateSpec) []buildOf {
	var all []buildOf
	for _, b := range builds(s) {
		if b.build.GetContext() != "" {
			all = append(all, b)
		}
	}
	return all
}

// features returns all features of a build, with their paths.
func (b buildOf) features() map[*agboxv1.FeatureSpec][]any {
	all := make(map[*agboxv1.FeatureSpec][]any)
	for i, f := range b.build.GetFeatures() {
		all[f] = slices.Concat(b.path, []any{"features", i})
	}
	return all
}

// contextsInside refuses build contexts that untrusted files name outside of their own
// folder: the image would have what is in them, and a build can send it anywhere.
func (l *requestList) contextsInside(s *agboxv1.CreateSpec) {
	for _, c := range contexts(s) {
		path := slices.Concat(c.path, []any{"context"})
		if l.origin(path) == nil {
			continue
		}
		if shown, inside := l.source(c.build.GetContext(), path...); !inside {
			l.result.Problem(path, "A file may build only from its own folder, because anybody may have written it: %.200s is outside. Give the flag --build if you want it for the sandbox itself, or move the file", shown)
		}
	}
	for _, b := range builds(s) {
		for f, path := range b.features() {
			// The client has put what it fetched from a registry into its own cache.
			if path = append(path, "source"); f.GetReference() != "" || l.origin(path) == nil {
				continue
			}
			if shown, inside := l.source(f.GetSource(), path...); !inside {
				l.result.Problem(path, "A file may use only features in its own folder or of a registry, because anybody may have written it: %.200s is outside. Copy it into the folder", shown)
			}
		}
	}
}

// builds adds the builds that files ask for. Their commands run in containers of the
// engine, which may reach the network and the addresses of this machine.
func (l *requestList) builds(s *agboxv1.CreateSpec) {
	for _, b := range builds(s) {
		for i, f := range b.build.GetFeatures() {
			l.add(slices.Concat(b.path, []any{"features", i}), "feature", true, "%s%s: its install.sh changes the image, runs in the engine's own network, and may reach this machine",
				b.who, cmp.Or(f.GetReference(), f.GetSource()))
		}
		if b.build.GetImage() != "" {
			l.image(&agboxv1.CreateSpec{Image: b.build.GetImage()}, b.who, b.path)
			continue
		}
		l.add(b.path, "build", true, "%s%s from %s: its commands run in the engine's own network, and may reach this machine",
			b.who, cmp.Or(b.build.GetDockerfile(), spec.DefaultDockerfile), cmp.Or(b.build.GetContext(), "the file itself"))
	}
}
