package docker

import (
	"slices"

	"github.com/docker/docker/api/types/container"

	"github.com/agbox/agbox/runtime"
)

// capabilities are what root keeps in a container. All others are dropped, among
// them NET_RAW (forged packets), MKNOD (devices), SYS_CHROOT and AUDIT_WRITE, which
// the engine itself would leave.
var capabilities = []string{
	"CHOWN",            // package managers give files to their owners
	"DAC_OVERRIDE",     // they write into folders of others
	"FOWNER",           // they set modes and times of files of others
	"FSETID",           // set-id bits stay when such a file is written
	"KILL",             // the supervisor ends commands of any user
	"SETGID", "SETUID", // commands run as other users; so does what package managers download with
	"SETFCAP",          // packages have programs with capabilities
	"NET_BIND_SERVICE", // servers listen on ports below 1024
}

// secure puts the safe defaults in place, and takes back what the spec names.
func secure(host *container.HostConfig, s runtime.Security) {
	host.ReadonlyRootfs = s.ReadOnlyRoot
	for _, device := range s.Devices {
		host.Devices = append(host.Devices, container.DeviceMapping{PathOnHost: device, PathInContainer: device, CgroupPermissions: "rwm"})
	}
	if s.Privileged {
		host.Privileged = true
		return
	}
	host.CapDrop = []string{"ALL"}
	host.CapAdd = slices.Concat(kept(s.CapDrop), s.CapAdd)
	if !s.NewPrivileges {
		host.SecurityOpt = append(host.SecurityOpt, "no-new-privileges")
	}
	if s.SeccompUnconfined {
		host.SecurityOpt = append(host.SecurityOpt, "seccomp=unconfined")
	}
}

// kept are the default capabilities without the dropped ones.
func kept(dropped []string) []string {
	if slices.Contains(dropped, "ALL") {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(capabilities), func(c string) bool { return slices.Contains(dropped, c) })
}
