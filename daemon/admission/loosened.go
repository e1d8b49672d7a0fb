package admission

import (
	"fmt"
	"strings"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/daemon/hostfiles"
	"github.com/agbox/agbox/runtime"
)

// Loosened lists the safe defaults that do not apply to a sandbox, by container.
func (c *Controller) Loosened(spec *agboxv1.CreateSpec) []string { return loosened(spec, c.o.Host) }

// loosened is Loosened. check says what is dangerous about a mount.
func loosened(spec *agboxv1.CreateSpec, check hostfiles.Checker) []string {
	lines := loosenedOf("primary", spec)
	if spec.GetSecurity().GetAllowDangerousMounts() {
		lines = append(lines, dangerousMounts(spec, check)...)
	}
	for _, service := range spec.GetServices() {
		lines = append(lines, loosenedOf("service "+service.GetName(), service)...)
	}
	return lines
}

// dangerousMounts names the mounts and copies that are allowed by force alone. If none is
// dangerous now, one may have been when the sandbox was made, so the force is said.
func dangerousMounts(spec *agboxv1.CreateSpec, check hostfiles.Checker) []string {
	var lines []string
	for _, f := range hostfiles.Sources(spec) {
		if f.OfBuild {
			continue
		}
		if why := check.Danger(*f.Source, f.Use); why != "" {
			lines = append(lines, fmt.Sprintf("primary: dangerous %s: %s", f.Use.Of(*f.Source), why))
		}
	}
	if len(lines) == 0 {
		return []string{"primary: dangerous mounts are allowed"}
	}
	return lines
}

func loosenedOf(who string, container interface {
	GetSecurity() *agboxv1.SecuritySpec
	GetPidsLimit() uint32
	GetMemoryLimit() string
}) []string {
	var lines []string
	s := container.GetSecurity()
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
	if s.GetWritableConfig() {
		say("what this machine executes in writable mounts is not protected")
	}
	if s.GetAllowHost() {
		say("it may reach the addresses of the host, and metadata addresses")
	}
	if devices := s.GetDevices(); len(devices) > 0 {
		say("devices of the host: %s", strings.Join(devices, ", "))
	}
	if container.GetMemoryLimit() == "unlimited" {
		say("it may use all memory of the host")
	}
	if limit := int64(container.GetPidsLimit()); limit > runtime.DefaultPIDs {
		say("up to %d processes and threads, instead of %d", limit, runtime.DefaultPIDs)
	}
	return lines
}
