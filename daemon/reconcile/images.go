package reconcile

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/containerd/errdefs"

	"github.com/agbox/agbox/daemon/build"
	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/internal/fault"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
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

// BuildImages makes the images that a spec builds, that of the primary first. It passes on
// lines of output, then the id of each image; an empty service means the primary. An error
// of tell ends it. Faults are those of build.Builder.Ensure.
func (l *Loop) BuildImages(ctx context.Context, spec *agboxv1.CreateSpec, tell func(service, line, id string) error) error {
	one := func(of imaged, service string) error {
		if of.GetBuild() == nil {
			return nil
		}
		var told error
		host, want := l.host, imageRequest(of)
		host.Resolved = spec.GetSourcesResolved()
		made, err := l.builds.Ensure(ctx, build.Request{
			Build: of.GetBuild(), Platform: want.Platform, Policy: want.Policy, Host: host, Force: spec.GetSecurity().GetAllowDangerousMounts(),
		}, func(line string) {
			if told == nil {
				told = tell(service, line, "")
			}
		})
		if err == nil {
			err = told
		}
		if err == nil {
			err = tell(service, "", made.ID)
		}
		return err
	}
	if err := one(spec, ""); err != nil {
		return err
	}
	for _, s := range spec.GetServices() {
		if err := one(s, s.GetName()); err != nil {
			return err
		}
	}
	return nil
}

// RemoveImage removes a name of an image, and the image with its last name; with onlyUnused, only
// one that agbox has built and that nothing uses. Between the look for an image and the making
// of its container no image is removed. Faults: IMAGE_IN_USE, IMAGE_NOT_FOUND.
func (l *Loop) RemoveImage(ctx context.Context, ref string, onlyUnused bool) error {
	if err := l.sameEngine(ctx); err != nil {
		return err
	}
	if !l.imagesInUse.TryLock() {
		return fault.New(errdefs.ErrFailedPrecondition, agboxv1.ErrorReason_IMAGE_IN_USE,
			"The image %s stays, because a sandbox is being made, which may use it: try again when it is ready.", ref).With("image", ref)
	}
	defer l.imagesInUse.Unlock()
	all, err := l.engine.ListImages(ctx)
	if err != nil {
		return err
	}
	list := build.List(all)
	i := slices.IndexFunc(list, func(i build.Listed) bool {
		return i.ID == ref || slices.Contains(i.Names, ref) || slices.Contains(i.Names, ref+":latest")
	})
	switch {
	case i < 0:
		return fault.New(errdefs.ErrNotFound, agboxv1.ErrorReason_IMAGE_NOT_FOUND, "There is no image %s on this machine: \"agbox image ls\" shows all.", ref).With("image", ref)
	case list[i].Used, onlyUnused && (list[i].Needed || !list[i].Built):
		return fault.New(errdefs.ErrFailedPrecondition, agboxv1.ErrorReason_IMAGE_IN_USE,
			"The image %s is in use: remove the sandboxes, pools and containers that were made from it, or from an image that is based on it.", ref).With("image", ref)
	}
	return l.engine.RemoveImage(ctx, ref)
}

// pullProgress reports the progress of a pull for a service. An empty name means the
// primary.
func (l *Loop) pullProgress(ctx context.Context, sb ledger.Sandbox, service string) func(runtime.PullProgress) {
	var first, last time.Time
	if service != "" {
		service = "service " + service + ": "
	}
	return func(p runtime.PullProgress) {
		now := l.now()
		if first.IsZero() {
			first = now
		}
		if now.Sub(last) >= max(progressEvery, now.Sub(first)/10) {
			last = now
			l.emitPhase(ctx, sb, &agboxv1.SandboxPhaseDetails{
				Phase: "image", Reason: service + pullSentence(p), BytesDone: uint64(p.BytesDone), BytesTotal: uint64(p.BytesTotal),
			})
		}
	}
}

func pullSentence(p runtime.PullProgress) string {
	const mib = 1 << 20
	return fmt.Sprintf("%d of %d layers, %d of %d MiB", p.LayersDone, p.LayersTotal, p.BytesDone/mib, p.BytesTotal/mib)
}

// imageRequest returns the image that a container needs.
func imageRequest(spec imaged) runtime.ImageRequest {
	want := runtime.ImageRequest{Ref: spec.GetImage(), Platform: spec.GetPlatform()}
	switch spec.GetPullPolicy() {
	case agboxv1.PullPolicy_PULL_POLICY_ALWAYS:
		want.Policy = runtime.PullAlways
	case agboxv1.PullPolicy_PULL_POLICY_NEVER:
		want.Policy = runtime.PullNever
	}
	return want
}
