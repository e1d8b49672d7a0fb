package reconcile

import (
	"context"
	"time"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/daemon/build"
	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/runtime"
)

// imaged has what the primary and a service say about their image.
type imaged interface {
	GetImage() string
	GetBuild() *agboxv1.BuildSpec
	GetPlatform() string
	GetPullPolicy() agboxv1.PullPolicy
}

// image returns the image of the primary or of a service, after it was pulled or built. An
// empty name means the primary.
func (l *Loop) image(ctx, pull context.Context, sb ledger.Sandbox, spec imaged, service string) (runtime.Image, error) {
	want := imageRequest(spec)
	if from := sb.Spec.GetDerived(); from.GetParent() != "" {
		return l.imageOfParent(ctx, from, want)
	}
	if spec.GetBuild() == nil {
		return l.engine.EnsureImage(pull, want, l.pullProgress(ctx, sb, service))
	}
	return l.builds.Ensure(pull, build.Request{
		Build: spec.GetBuild(), Platform: want.Platform, Policy: want.Policy,
		Host: l.hostOf(sb), Force: sb.Spec.GetSecurity().GetAllowDangerousMounts(),
	}, l.buildProgress(ctx, sb, service))
}

// buildProgress reports lines of a build. They get rarer like reports of a pull.
func (l *Loop) buildProgress(ctx context.Context, sb ledger.Sandbox, service string) func(line string) {
	var first, last time.Time
	if service != "" {
		service = "service " + service + ": "
	}
	return func(line string) {
		now := l.now()
		if first.IsZero() {
			first = now
		}
		if now.Sub(last) >= max(progressEvery, now.Sub(first)/10) {
			last = now
			l.announce(ctx, sb, "build", service+line)
		}
	}
}
