package reconcile

import (
	"context"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/daemon/build"
)

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
