package reconcile

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/internal/ids"
	"github.com/agbox/agbox/internal/paths"
	"github.com/agbox/agbox/runtime"
)

func (l *Loop) identity(sb ledger.Sandbox, role runtime.Role) runtime.Identity {
	return runtime.Identity{InstallID: l.installID, SandboxID: sb.ID, Nonce: sb.Nonce, Role: role}
}

func (l *Loop) networkSpec(sb ledger.Sandbox) runtime.NetworkSpec {
	return runtime.NetworkSpec{
		Identity:   l.identity(sb, runtime.RoleNetwork),
		Name:       runtime.NetworkName(sb.ID),
		Internal:   internal(sb),
		Containers: 1 + len(sb.Spec.GetServices()),
	}
}

// internal reports whether the containers of a sandbox reach only each other.
func internal(sb ledger.Sandbox) bool {
	return sb.Spec.GetNetwork() == agboxv1.NetworkMode_NETWORK_MODE_INTERNAL
}

func (l *Loop) volumeSpec(sb ledger.Sandbox, name string) runtime.VolumeSpec {
	id := l.identity(sb, runtime.RoleVolume)
	id.Service = name
	return runtime.VolumeSpec{Identity: id, Name: runtime.VolumeName(sb.ID, name)}
}

// runSize is the size of the directory in memory that the supervisor uses, in bytes.
const runSize = 64 << 20

// primarySpec describes the primary. Its PID 1 is the supervisor, which runs as root and
// starts every exec as the requested user. home is what "~" stands for in targets.
func (l *Loop) primarySpec(sb ledger.Sandbox, image runtime.Image, network runtime.Network, home string) (runtime.ContainerSpec, error) {
	c := runtime.ContainerSpec{
		Identity:    l.identity(sb, runtime.RolePrimary),
		Name:        runtime.PrimaryName(sb.ID),
		Hostname:    cmp.Or(sb.Spec.GetHostname(), hostname(sb)),
		ImageID:     image.ID,
		Entrypoint:  []string{paths.InContainerInit},
		Env:         supervisorEnv(sb.Spec),
		User:        "0:0",
		WorkingDir:  "/",
		NetworkID:   network.ID,
		Alias:       strings.ToLower(sb.Spec.GetHostname()),
		NoNames:     internal(sb),
		HostAlias:   sb.Spec.GetSecurity().GetAllowHost(),
		StopTimeout: stopGrace,
		Mounts: []runtime.Mount{
			{Source: l.supervisor, Target: paths.InContainerInit, ReadOnly: true},
			{Source: l.paths.GuestBoot(sb.ID), Target: paths.InContainerBoot, ReadOnly: true},
			{Source: l.paths.GuestLink(sb.ID), Target: paths.InContainerLink},
			{Source: l.paths.SandboxLogs(sb.ID), Target: paths.InContainerLogs},
		},
		Tmpfs: []runtime.Tmpfs{{Target: paths.InContainerRun, Size: runSize, Mode: 0o755}},
	}
	mounts, err := l.hostMounts(sb)
	if err != nil {
		return c, l.untold(sb, err)
	}
	if mounts, err = expanded(mounts, home); err != nil {
		return c, err
	}
	c.Mounts = append(c.Mounts, mounts...)
	return c, describe(&c, sb, sb.Spec)
}

// serviceContainer describes a service. Its name resolves on the sandbox's network.
func (l *Loop) serviceContainer(sb ledger.Sandbox, spec *agboxv1.ServiceSpec, image runtime.Image, network runtime.Network) (runtime.ContainerSpec, error) {
	id := l.identity(sb, runtime.RoleService)
	id.Service = spec.GetName()
	c := runtime.ContainerSpec{
		Identity:    id,
		Name:        runtime.ServiceName(sb.ID, spec.GetName()),
		Hostname:    spec.GetName(),
		ImageID:     image.ID,
		Entrypoint:  spec.GetEntrypoint(),
		Cmd:         spec.GetCommand(),
		Env:         envList(spec.GetEnvs()),
		User:        spec.GetUser(),
		WorkingDir:  spec.GetWorkingDir(),
		NetworkID:   network.ID,
		NoNames:     internal(sb),
		HostAlias:   sb.Spec.GetSecurity().GetAllowHost(),
		StopTimeout: stopGrace,
	}
	if h := spec.GetHealthcheck(); h != nil {
		c.Healthcheck = &runtime.Healthcheck{
			Test: h.GetTest(), Interval: h.GetInterval().AsDuration(), Timeout: h.GetTimeout().AsDuration(),
			StartPeriod: h.GetStartPeriod().AsDuration(), StartInterval: h.GetStartInterval().AsDuration(),
			Retries: int(h.GetRetries()),
		}
	}
	return c, describe(&c, sb, spec)
}

// hostname returns the name with which the sandbox was created if it has one, because shell
// prompts show it. A host name has at most 63 characters (RFC 1123) and no '_' or '.'.
func hostname(sb ledger.Sandbox) string {
	name := sb.Spec.GetName()
	if name == "" {
		name = sb.ID
	}
	name = ids.Sanitize(name)
	return strings.Trim(name[:min(len(name), 63)], "-")
}

func envList(envs map[string]string) []string {
	list := make([]string, 0, len(envs))
	for _, key := range slices.Sorted(maps.Keys(envs)) {
		list = append(list, key+"="+envs[key])
	}
	return list
}

// defaultUser is the user of execs that name none; empty means root.
func defaultUser(spec *agboxv1.CreateSpec, image runtime.Image) string {
	return cmp.Or(spec.GetUser(), image.User)
}

// shells are commands that do nothing without a terminal.
var shells = []string{"sh", "ash", "bash", "dash", "zsh", "fish"}

// mainCommand returns the command that the supervisor runs besides the execs. As with
// Docker, the spec's command replaces that of the image and its entrypoint stays, and an
// entrypoint of the spec replaces both. A bare shell as the image's own command is not
// run: without input it would exit at once.
func mainCommand(spec *agboxv1.CreateSpec, image runtime.Image) []string {
	entrypoint, command := image.Entrypoint, image.Cmd
	if len(spec.GetEntrypoint()) > 0 {
		entrypoint, command = spec.GetEntrypoint(), nil
	}
	if len(spec.GetCommand()) > 0 {
		command = spec.GetCommand()
	}
	if len(entrypoint) == 1 && entrypoint[0] == "" {
		entrypoint = nil
	}
	whole := slices.Concat(entrypoint, command)
	ofImage := len(spec.GetEntrypoint()) == 0 && len(spec.GetCommand()) == 0
	if ofImage && len(whole) > 0 && slices.Contains(shells, path.Base(whole[0])) && onlyFlags(whole[1:]) {
		return nil
	}
	return whole
}

// onlyFlags reports whether a shell has neither a script nor a command.
func onlyFlags(args []string) bool {
	for _, arg := range args {
		if !strings.HasPrefix(arg, "-") || !strings.HasPrefix(arg, "--") && strings.Contains(arg, "c") {
			return false
		}
	}
	return true
}

func pullSentence(p runtime.PullProgress) string {
	const mib = 1 << 20
	return fmt.Sprintf("%d of %d layers, %d of %d MiB", p.LayersDone, p.LayersTotal, p.BytesDone/mib, p.BytesTotal/mib)
}
