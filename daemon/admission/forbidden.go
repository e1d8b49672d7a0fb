package admission

import (
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/spec"
)

// forbidden adds to a resolved spec what the operator's policy lets nobody ask for.
func (c *Controller) forbidden(result *spec.Result, resolved *agboxv1.CreateSpec) {
	bound := c.host.Bound()
	look := func(s *agboxv1.SecuritySpec, gpus string, path ...any) {
		for _, field := range bound.Forbidden(s, gpus) {
			whole := append([]any(nil), path...)
			for _, name := range field {
				whole = append(whole, name)
			}
			result.Problem(whole, "The operator's policy %s forbids this: leave it out, or ask the operator of this machine", bound.File)
		}
	}
	look(resolved.GetSecurity(), resolved.GetGpus())
	for i, s := range resolved.GetServices() {
		look(s.GetSecurity(), s.GetGpus(), "services", i)
	}
}
