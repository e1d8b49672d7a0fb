package server

import (
	"fmt"
	"strings"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// loosened names what of the safe defaults a sandbox gives up, container by container.
func loosened(spec *agboxv1.CreateSpec) []string {
	lines := loosenedOf("primary", spec.GetSecurity())
	for _, service := range spec.GetServices() {
		lines = append(lines, loosenedOf("service "+service.GetName(), service.GetSecurity())...)
	}
	return lines
}

func loosenedOf(who string, s *agboxv1.SecuritySpec) []string {
	var lines []string
	say := func(format string, args ...any) { lines = append(lines, who+": "+fmt.Sprintf(format, args...)) }
	if s.GetPrivileged() {
		say("privileged: it has all capabilities and devices, and no filter of system calls")
	}
	for _, name := range s.GetCapAdd() {
		say("capability %s is added", name)
	}
	if s.GetAllowNewPrivileges() {
		say("programs may gain new privileges")
	}
	if s.GetSeccompUnconfined() {
		say("system calls are not filtered")
	}
	if devices := s.GetDevices(); len(devices) > 0 {
		say("devices of the host: %s", strings.Join(devices, ", "))
	}
	if s.GetAllowDangerousMounts() {
		say("dangerous mounts are allowed")
	}
	return lines
}
