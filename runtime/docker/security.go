package docker

import (
	"slices"

	"github.com/docker/docker/api/types/container"

	"github.com/agbox/agbox/runtime"
)

// capabilities are those that root keeps in a container. All others are dropped,
// including NET_RAW (forged packets), MKNOD (devices), SYS_CHROOT and AUDIT_WRITE,
// which are among the engine's own defaults.
var capabilities = []string{
	"CHOWN",            // package managers change the owners of files
	"DAC_OVERRIDE",     // they write into directories of other users
	"FOWNER",           // they set modes and times of files of other users
	"FSETID",           // they keep set-id bits when they write such files
	"KILL",             // the supervisor kills commands of any user
	"SETGID", "SETUID", // commands, and the downloaders of package managers, run as other users
	"SETFCAP",          // packages contain programs with file capabilities
	"NET_BIND_SERVICE", // servers listen on ports below 1024
}

// applySecurity applies the safe defaults, except those that the spec disables.
func applySecurity(host *container.HostConfig, s runtime.Security) {
	host.ReadonlyRootfs = s.ReadOnlyRoot
	for _, device := range s.Devices {
		host.Devices = append(host.Devices, container.DeviceMapping{PathOnHost: device, PathInContainer: device, CgroupPermissions: "rwm"})
	}
	if s.Privileged {
		host.Privileged = true
		return
	}
	host.CapDrop = []string{"ALL"}
	host.CapAdd = slices.Concat(keptCapabilities(s.CapDrop), s.CapAdd)
	if !s.NewPrivileges {
		host.SecurityOpt = append(host.SecurityOpt, "no-new-privileges")
	}
	if s.SeccompUnconfined {
		host.SecurityOpt = append(host.SecurityOpt, "seccomp=unconfined")
	}
}

// keptCapabilities returns the default capabilities without the dropped ones.
func keptCapabilities(dropped []string) []string {
	if slices.Contains(dropped, "ALL") {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(capabilities), func(c string) bool { return slices.Contains(dropped, c) })
}
