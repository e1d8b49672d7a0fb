package reconcile

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/containerd/errdefs"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/runtime"
	"github.com/agbox/agbox/spec/notation"
)

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

// imageRequest returns the image that a container needs.
func imageRequest(spec imaged) runtime.ImageRequest {
	want := runtime.ImageRequest{Ref: spec.GetImage(), Platform: spec.GetPlatform()}
	switch spec.GetPullPolicy() {
	case agboxv1.PullPolicy_PULL_POLICY_ALWAYS:
		want.Policy = runtime.PullAlways
	case agboxv1.PullPolicy_PULL_POLICY_NEVER:
		want.Policy = runtime.PullNever
	}
	return want
}

// describe sets the fields that the primary and a service have in common. A spec is
// checked before it is accepted, so an invalid value was stored by another version.
func describe(c *runtime.ContainerSpec, sb ledger.Sandbox, spec contained) error {
	var failed error
	size := func(text string) int64 { return read(&failed, text, notation.Bytes) }
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
		NanoCPUs: read(&failed, spec.GetCpuLimit(), notation.CPUs), Memory: read(&failed, spec.GetMemoryLimit(), notation.Memory),
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
