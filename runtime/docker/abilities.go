package docker

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/system"
	"github.com/docker/docker/api/types/versions"
	"github.com/docker/docker/client"
	"github.com/moby/profiles/seccomp"

	"github.com/agbox/agbox/internal/fault"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/runtime"
)

// Abilities asks the engine what it can do; it takes a few milliseconds.
func (e *Engine) Abilities(ctx context.Context) (runtime.Abilities, error) {
	var a runtime.Abilities
	err := e.call(ctx, "say what it can do", func(cli *client.Client) error {
		info, err := cli.Info(ctx)
		if err != nil {
			return err
		}
		a = runtime.Abilities{
			Local: e.local(), Platform: info.OSType + "/" + goArch(info.Architecture), CPUs: info.NCPU, Memory: info.MemTotal,
			StartInterval: !versions.LessThan(cli.ClientVersion(), startIntervalSince),
		}
		a.NoDiskLimit, a.NoGPUs = noDiskLimit(info, a.Local), noGPUs(info, a.Local)
		return nil
	})
	return a, err
}

func (e *Engine) local() bool { return strings.HasPrefix(e.host, "unix://") }

// goArch converts the machine name of uname to the architecture name in image platforms.
func goArch(machine string) string {
	switch machine {
	case "x86_64":
		return "amd64"
	case "aarch64":
		return "arm64"
	case "armv7l", "armv6l":
		return "arm"
	case "i686", "i386":
		return "386"
	}
	return machine
}

// noDiskLimit says why the storage driver cannot limit a container's writable
// layer; it is empty if it can.
func noDiskLimit(info system.Info, local bool) string {
	status := func(key string) string {
		for _, pair := range info.DriverStatus {
			if pair[0] == key {
				return pair[1]
			}
		}
		return ""
	}
	switch info.Driver {
	case "btrfs", "zfs", "devicemapper", "windowsfilter":
		return ""
	case "overlay2":
		backing := status("Backing Filesystem")
		if backing != "xfs" {
			return "its storage driver overlay2 can limit sizes only on xfs, and its data directory is on " + backing
		}
		if local && !projectQuota(info.DockerRootDir) {
			return "its storage driver overlay2 can limit sizes only if xfs is mounted with the option pquota"
		}
		return ""
	}
	return "its storage driver " + info.Driver + " cannot limit sizes"
}

// projectQuota reports whether the file system of a directory is mounted with
// project quotas. If that is unknown it returns true, and the engine decides.
func projectQuota(dir string) bool {
	table, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return true
	}
	best, options := "", ""
	for line := range strings.Lines(string(table)) {
		fields := strings.Fields(line)
		if len(fields) < 4 {
			continue
		}
		point := strings.TrimSuffix(fields[1], "/")
		if (dir == point || strings.HasPrefix(dir, point+"/")) && len(point) >= len(best) {
			best, options = point, fields[3]
		}
	}
	list := strings.Split(options, ",")
	return options == "" || slices.Contains(list, "prjquota") || slices.Contains(list, "pquota")
}

// noGPUs says why a container cannot get a GPU; it is empty if it may. The engine
// does not report the NVIDIA hook that it looks up in its PATH. On the same host
// we can look it up too.
func noGPUs(info system.Info, local bool) string {
	if _, ok := info.Runtimes["nvidia"]; ok {
		return ""
	}
	for _, d := range info.DiscoveredDevices {
		if strings.Contains(d.ID, "gpu") {
			return ""
		}
	}
	if !local {
		return "" // only an attempt can show it
	}
	if _, err := exec.LookPath("nvidia-container-runtime-hook"); err == nil {
		return ""
	}
	return "it has no runtime for GPUs (the NVIDIA Container Toolkit is not installed)"
}

// unsupportedFeature returns a fault with a plain sentence if err says that the engine
// does not support a feature of the spec, and nil for any other error. Abilities
// detects most of these cases earlier.
func unsupportedFeature(err error) error {
	if err == nil {
		return nil
	}
	unsupported := func(sentence string) error {
		return fault.New(errdefs.ErrInvalidArgument, agboxv1.ErrorReason_UNSUPPORTED_SPEC, "%s", sentence).Because(err)
	}
	text := err.Error()
	switch {
	case strings.Contains(text, "storage-opt"), strings.Contains(text, "--storage-opt"), strings.Contains(text, "Storage Option"):
		return unsupported("The engine cannot limit the size of a container here (" + engineText(err) + "): remove disk_limit from the spec.")
	case strings.Contains(text, "could not select device driver"):
		return unsupported("The engine has no runtime for GPUs: install the NVIDIA Container Toolkit, or remove gpus from the spec.")
	case strings.Contains(text, "unable to apply caps"):
		return unsupported("The engine's host does not have all capabilities that the spec requests: remove privileged, and remove the missing capabilities from cap_add.")
	case strings.Contains(text, "gathering device information"):
		return unsupported("A device of security.devices does not exist (" + engineText(err) + "): remove it from the spec, or load its driver.")
	}
	return nil
}

// isPortError reports whether a container could not start because a port of the host
// is in use or its address does not exist.
func isPortError(err error) bool {
	if err == nil {
		return false
	}
	text := err.Error()
	return strings.Contains(text, "port is already allocated") || strings.Contains(text, "address already in use") ||
		strings.Contains(text, "cannot assign requested address")
}

// boundAddress finds the address in the messages of engines: "Bind for 127.0.0.1:80
// failed: ...", "listen tcp4 127.0.0.1:80: bind: ...", "bind host port for
// 127.0.0.1:80/tcp: ...", "exposing port TCP 127.0.0.1:80 -> ...".
var boundAddress = regexp.MustCompile(`(?:Bind for |bind host port for |listen \w+ |exposing port \w+ )(\[?[0-9a-fA-F.:]*\]?:\d+)`)

func portFault(err error) error {
	address := "a port"
	if m := boundAddress.FindStringSubmatch(err.Error()); m != nil {
		address = m[1]
	}
	if strings.Contains(err.Error(), "cannot assign requested address") {
		return fault.New(errdefs.ErrFailedPrecondition, agboxv1.ErrorReason_PORT_TAKEN,
			"The port %s cannot be published, because the host does not have this address: correct host_ip.", address).Because(err)
	}
	return fault.New(errdefs.ErrAlreadyExists, agboxv1.ErrorReason_PORT_TAKEN,
		"The port %s of the host was taken by something else in the meantime: choose another host_port, or 0 for a free one.", address).Because(errors.New(engineText(err)))
}

// deniedMount finds the source of a mount that the runtime may not make.
var deniedMount = regexp.MustCompile(`error mounting \\*"([^"\\]+)\\*" to rootfs at .*: permission denied`)

// mountFault says what to do about such a mount. The runtime makes mounts with the rights
// of root in the container, who is an ordinary user of the host with user namespaces.
func mountFault(err error) error {
	return fault.New(errdefs.ErrFailedPrecondition, agboxv1.ErrorReason_HOST_PATH_UNUSABLE,
		"Docker may not mount %s in the container, because it gives containers user namespaces, and root in them enters only folders that are open to all users: open the folders above it (chmod o+x), or copy them instead of mounting them.",
		deniedMount.FindStringSubmatch(err.Error())[1]).Because(errors.New(engineText(err)))
}

// refusedCalls are left out of the default profile of current engines, from which ours
// is made. That profile refuses io_uring and sockets of AF_VSOCK and AF_ALG, which the
// defaults of engines before 24 and 25 let through. But 32-bit programs reach such
// sockets through socketcall, whose arguments a filter cannot see. C libraries of the
// last ten years do not use it.
var refusedCalls = []string{"socketcall"}

// profile is our seccomp profile in the engine's notation.
var profile = sync.OnceValues(func() (string, error) {
	p := seccomp.DefaultProfile()
	for _, rule := range p.Syscalls {
		rule.Names = slices.DeleteFunc(slices.Clone(rule.Names), func(name string) bool { return slices.Contains(refusedCalls, name) })
	}
	raw, err := json.Marshal(p)
	return string(raw), err
})

// seccompOptions are the security options that set our profile, if it is to be set.
func (e *Engine) seccompOptions(ctx context.Context, cli *client.Client, s runtime.Security) ([]string, error) {
	if s.Privileged || s.SeccompUnconfined {
		return nil, nil
	}
	known := e.filtering.Load()
	if known == nil || known.cli != cli {
		info, err := cli.Info(ctx)
		if err != nil {
			return nil, err
		}
		known = &filtering{cli: cli, builtin: slices.ContainsFunc(info.SecurityOptions, builtinSeccomp)}
		e.filtering.Store(known)
	}
	if !known.builtin {
		return nil, nil
	}
	text, err := profile()
	return []string{"seccomp=" + text}, err
}

// builtinSeccomp reports whether a security option of the engine says that it filters
// with its own profile. Engines before 23 call that profile "default".
func builtinSeccomp(option string) bool {
	fields := strings.Split(option, ",")
	return slices.Contains(fields, "name=seccomp") &&
		(slices.Contains(fields, "profile=builtin") || slices.Contains(fields, "profile=default"))
}

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

// startIntervalSince is the first API version that supports a start interval.
const startIntervalSince = "1.44"
