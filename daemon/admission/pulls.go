package admission

import (
	"context"
	"slices"
	"strings"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/runtime"
	"github.com/agbox/agbox/spec/feature"
)

// pullKind is the kind of a request for an image of a registry.
const pullKind = "pull"

// pullable is a container whose image a registry may have.
type pullable interface {
	GetImage() string
	GetPlatform() string
	GetPullPolicy() agboxv1.PullPolicy
}

// pulled returns a function that reports whether the engine would ask a registry for the
// image of a container. Its error means that the engine does not answer.
func (c *Controller) pulled(ctx context.Context) func(pullable) (bool, error) {
	if c.local == nil {
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
		here, err := c.local(ctx, runtime.ImageRequest{Ref: of.GetImage(), Platform: of.GetPlatform(), Policy: runtime.PullNever})
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
