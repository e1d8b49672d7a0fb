package policy

import (
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// Forbidden returns the fields of a primary or a service that ask for what the policy
// allows nobody, each as the names of its path, outermost first.
func (p *Policy) Forbidden(s *agboxv1.SecuritySpec, gpus string) (fields [][]string) {
	look := func(asked, allowed bool, field ...string) {
		if asked && !allowed {
			fields = append(fields, field)
		}
	}
	look(s.GetAllowDangerousMounts(), p.Dangerous, "security", "allow_dangerous_mounts")
	look(s.GetWritableConfig(), p.WritableConfig, "security", "writable_config")
	look(s.GetAllowHost(), p.HostAccess, "security", "allow_host")
	look(s.GetPrivileged(), p.Privileged, "security", "privileged")
	look(s.GetSeccompUnconfined(), p.Privileged, "security", "seccomp_unconfined")
	look(len(s.GetCapAdd()) > 0, p.Privileged, "security", "cap_add")
	look(len(s.GetDevices()) > 0, p.Devices, "security", "devices")
	look(gpus != "", p.Devices, "gpus")
	return fields
}
