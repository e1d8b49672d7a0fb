package reconcile

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/internal/paths"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/runtime"
	"github.com/agbox/agbox/spec/document"
)

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
			{Source: l.opts.Supervisor, Target: paths.InContainerInit, ReadOnly: true},
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

// contained has the fields that the primary and a service have in common.
type contained interface {
	GetVolumes() []*agboxv1.VolumeSpec
	GetTmpfs() []*agboxv1.TmpfsSpec
	GetPorts() []*agboxv1.PortMapping
	GetCpuLimit() string
	GetMemoryLimit() string
	GetDiskLimit() string
	GetShmSize() string
	GetPidsLimit() uint32
	GetUlimits() []*agboxv1.UlimitSpec
	GetGpus() string
	GetSecurity() *agboxv1.SecuritySpec
}

// describe sets the fields that the primary and a service have in common. A spec is
// checked before it is accepted, so an invalid value was stored by another version.
func describe(c *runtime.ContainerSpec, sb ledger.Sandbox, spec contained) error {
	var failed error
	size := func(text string) int64 { return read(&failed, text, document.ParseBytes) }
	for _, v := range spec.GetVolumes() {
		c.Volumes = append(c.Volumes, runtime.VolumeMount{
			Volume: runtime.VolumeName(sb.ID, v.GetName()), Target: v.GetTarget(), ReadOnly: v.GetReadOnly(),
		})
	}
	for _, t := range spec.GetTmpfs() {
		mode := read(&failed, t.GetMode(), func(text string) (uint64, error) { return strconv.ParseUint(text, 8, 16) })
		c.Tmpfs = append(c.Tmpfs, runtime.Tmpfs{Target: t.GetTarget(), Size: size(t.GetSize()), Mode: uint32(mode)})
	}
	for _, p := range spec.GetPorts() {
		c.Ports = append(c.Ports, runtime.Port{
			Container: uint16(p.GetContainerPort()), Host: uint16(p.GetHostPort()), HostIP: p.GetHostIp(), Protocol: protocol(p.GetProtocol()),
		})
	}
	c.Limits = runtime.Limits{
		NanoCPUs: read(&failed, spec.GetCpuLimit(), document.ParseCPUs), Memory: read(&failed, spec.GetMemoryLimit(), document.ParseMemory),
		Disk: size(spec.GetDiskLimit()), Shm: size(spec.GetShmSize()),
		PIDs: int64(spec.GetPidsLimit()), GPUs: spec.GetGpus(),
	}
	for _, u := range spec.GetUlimits() {
		limit := runtime.Ulimit{Name: u.GetName(), Soft: u.GetSoft(), Hard: u.GetSoft()}
		if u.Hard != nil {
			limit.Hard = u.GetHard()
		}
		c.Limits.Ulimits = append(c.Limits.Ulimits, limit)
	}
	c.Security = security(spec.GetSecurity())
	if failed != nil {
		return fault.New(errdefs.ErrInvalidArgument, agboxv1.ErrorReason_INVALID_REQUEST,
			"What the sandbox was described by cannot be read: %v. Create it again.", failed).Because(failed)
	}
	return nil
}

// read parses a number. An empty text means 0.
func read[T int64 | uint64](failed *error, text string, parse func(string) (T, error)) T {
	if text == "" {
		return 0
	}
	value, err := parse(text)
	if err != nil {
		*failed = errors.Join(*failed, fmt.Errorf("%q: %w", text, err))
	}
	return value
}

func protocol(p agboxv1.PortProtocol) string {
	switch p {
	case agboxv1.PortProtocol_PORT_PROTOCOL_UDP:
		return "udp"
	case agboxv1.PortProtocol_PORT_PROTOCOL_SCTP:
		return "sctp"
	}
	return "tcp"
}

func security(s *agboxv1.SecuritySpec) runtime.Security {
	return runtime.Security{
		CapAdd: s.GetCapAdd(), CapDrop: s.GetCapDrop(), Devices: s.GetDevices(),
		NewPrivileges: s.GetAllowNewPrivileges(), SeccompUnconfined: s.GetSeccompUnconfined(),
		Privileged: s.GetPrivileged(), ReadOnlyRoot: s.GetReadOnlyRoot(),
	}
}

// allowed returns why the operator's policy forbids to start a primary or a service that
// was made before; nil if it does not. The policy may be newer than the container.
func (l *Loop) allowed(of contained) error {
	bound := l.host.Bound()
	var names []string
	for _, field := range bound.Forbidden(of.GetSecurity(), of.GetGpus()) {
		names = append(names, strings.Join(field, "."))
	}
	if len(names) == 0 {
		return nil
	}
	return fault.New(errdefs.ErrFailedPrecondition, agboxv1.ErrorReason_INVALID_REQUEST,
		"The operator's policy %s forbids %s by now: remove the sandbox and create it again without, or ask the operator of this machine.",
		bound.File, strings.Join(names, ", "))
}

// limitMemory sets the limit of a container whose spec says nothing about memory. It bounds that
// of a derived one, too: the sandbox of the parent may have had no other bound.
func (l *Loop) limitMemory(ctx context.Context, c *runtime.ContainerSpec, asked string, derived bool) error {
	if asked != "" && (!derived || c.Limits.Memory == 0) {
		return nil
	}
	host, err := l.hostMemory(ctx)
	if err != nil {
		return err
	}
	if most := l.opts.MemoryDefault.Of(host); asked != "" {
		if most > 0 {
			c.Limits.Memory = min(c.Limits.Memory, most)
		}
		return nil
	}
	c.Limits.Memory = l.opts.MemoryDefault.Of(host)
	c.Limits.MemoryByDefault = c.Limits.Memory > 0
	return nil
}

// serviceSpec returns a service of the spec by its name, or nil.
func serviceSpec(sb ledger.Sandbox, name string) *agboxv1.ServiceSpec {
	for _, s := range sb.Spec.GetServices() {
		if s.GetName() == name {
			return s
		}
	}
	return nil
}
