package admission

import (
	"slices"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/spec"
)

// forbidden adds to a resolved spec what the operator's policy lets nobody ask for.
func (c *Controller) forbidden(result *spec.Result, resolved *agboxv1.CreateSpec) {
	bound := c.host.Bound()
	look := func(s *agboxv1.SecuritySpec, gpus string, path ...any) {
		refuse := func(asked, allowed bool, steps ...any) {
			if asked && !allowed {
				result.Problem(slices.Concat(path, steps), "The operator's policy %s forbids this: leave it out, or ask the operator of this machine", bound.File)
			}
		}
		refuse(s.GetAllowDangerousMounts(), bound.Dangerous, "security", "allow_dangerous_mounts")
		refuse(s.GetWritableConfig(), bound.WritableConfig, "security", "writable_config")
		refuse(s.GetPrivileged(), bound.Privileged, "security", "privileged")
		refuse(s.GetSeccompUnconfined(), bound.Privileged, "security", "seccomp_unconfined")
		refuse(len(s.GetCapAdd()) > 0, bound.Privileged, "security", "cap_add")
		refuse(len(s.GetDevices()) > 0, bound.Devices, "security", "devices")
		refuse(gpus != "", bound.Devices, "gpus")
	}
	look(resolved.GetSecurity(), resolved.GetGpus())
	for i, s := range resolved.GetServices() {
		look(s.GetSecurity(), s.GetGpus(), "services", i)
	}
}
