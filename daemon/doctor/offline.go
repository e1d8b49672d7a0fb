package doctor

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/daemon/reconcile"
	"github.com/agbox/agbox/internal/ids"
	"github.com/agbox/agbox/internal/paths"
	"github.com/agbox/agbox/internal/process"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"
	"github.com/agbox/agbox/runtime"
)

// Describer is the engine as an examination without a daemon needs it. It cannot change
// anything.
type Describer interface {
	Engine
	// DescribeContainer returns what a container was made from.
	DescribeContainer(ctx context.Context, id string) (runtime.Description, error)
}

// Offline examines an install whose daemon does not run. The caller must hold the lock of
// the install.
type Offline struct {
	Engine Describer
	Paths  paths.Install
	// CheckDatabase is as in store.Options.CheckCommand.
	CheckDatabase func(path string) *exec.Cmd
	// Execs reads the status files of a sandbox, as execs.AdoptAll does.
	Execs func(ctx context.Context, sandboxID string, running bool) (ledger.AdoptedExecs, error)
	// Agents reads the files of the agents, as agents.AdoptAll does.
	Agents func() []ledger.AdoptedAgent
	Now    func() time.Time
	Log    *slog.Logger
}

// foreign says why a container with our labels is not a sandbox of this install. It
// returns "" if it is.
func (o Offline) foreign(c runtime.Container, d runtime.Description, installID string) string {
	switch {
	case c.InstallID != installID, !ids.Valid(c.SandboxID), !ids.Valid(c.Nonce):
		return "Its labels are not whole."
	case !runtime.IsPrimaryName(d.Name, c.SandboxID):
		return fmt.Sprintf("Its labels speak of sandbox %s, whose container has another name.", c.SandboxID)
	case !mounts(d, o.Paths.GuestLink(c.SandboxID), paths.InContainerLink),
		!mounts(d, o.Paths.SandboxLogs(c.SandboxID), paths.InContainerLogs):
		return fmt.Sprintf("Its labels speak of sandbox %s, but it does not have that sandbox's folders under %s.", c.SandboxID, o.Paths.Data)
	}
	return ""
}

func mounts(d runtime.Description, source, target string) bool {
	return slices.ContainsFunc(d.Mounts, func(m runtime.Mount) bool { return m.Source == source && m.Target == target })
}

// rebuild makes a spec from the information that the engine and the supervisor's boot
// configuration still have. lost says what is missing.
func (o Offline) rebuild(d runtime.Description) (spec *agboxv1.CreateSpec, lost string) {
	spec = &agboxv1.CreateSpec{
		Image: d.ImageName,
		Name:  reconcile.NameOf(d.SandboxID, d.Hostname),
	}
	// In the container, what changes a Go program is for the supervisor.
	list, _ := process.SplitGoVariables(d.Env)
	known := "name, image and environment"
	raw, err := os.ReadFile(o.Paths.GuestBoot(d.SandboxID))
	boot := new(guestv1.BootConfig)
	if err == nil && boot.UnmarshalVT(raw) == nil {
		known = "name, image, environment and command"
		rebuildCommand(spec, boot.GetCommand(), d.Image)
		ofImage := func(entry string) bool { return slices.Contains(d.Image.Env, entry) }
		list = append(list, slices.DeleteFunc(boot.GetCommandEnv(), ofImage)...)
	}
	spec.Envs = envs(list)
	maps.DeleteFunc(spec.Envs, func(key, value string) bool {
		ofHost, ok := reconcile.HostEnv()[key]
		return ok && ofHost == value
	})
	return spec, fmt.Sprintf("Its %s are known; its labels, limits, time-outs, revival policy and marks of secret variables are lost.", known)
}

// rebuildCommand sets entrypoint and command so that the image runs the same main command
// again.
func rebuildCommand(spec *agboxv1.CreateSpec, command []string, image runtime.Image) {
	own := len(image.Entrypoint)
	switch {
	case len(command) == 0, slices.Equal(command, slices.Concat(image.Entrypoint, image.Cmd)):
	case len(command) > own && slices.Equal(command[:own], image.Entrypoint):
		spec.Command = command[own:]
	default:
		spec.Entrypoint = command
	}
}

// rebuildService makes the spec of a service from its container. Which services were
// required is no longer known, so none is.
func rebuildService(d runtime.Description) *agboxv1.ServiceSpec {
	s := &agboxv1.ServiceSpec{Name: d.Service, Image: d.ImageName, Envs: envs(d.Env), Required: proto.Bool(false)}
	if !slices.Equal(d.Cmd, d.Image.Cmd) {
		s.Command = d.Cmd
	}
	if d.User != d.Image.User {
		s.User = d.User
	}
	if d.WorkingDir != d.Image.WorkingDir {
		s.WorkingDir = d.WorkingDir
	}
	if h := d.Healthcheck; h != nil {
		s.Healthcheck = &agboxv1.HealthcheckConfig{
			Test: h.Test, Interval: length(h.Interval), Timeout: length(h.Timeout),
			StartPeriod: length(h.StartPeriod), StartInterval: length(h.StartInterval), Retries: uint32(h.Retries),
		}
	}
	for _, v := range d.Volumes {
		// Other volumes are the image's own. The engine makes them again.
		if name, ours := strings.CutPrefix(v.Volume, strings.TrimSuffix(runtime.VolumeName(d.SandboxID, "x"), "x")); ours && runtime.VolumeName(d.SandboxID, name) == v.Volume {
			s.Volumes = append(s.Volumes, &agboxv1.VolumeSpec{Name: name, Target: v.Target, ReadOnly: v.ReadOnly})
		}
	}
	for _, p := range d.Ports {
		s.Ports = append(s.Ports, &agboxv1.PortMapping{
			ContainerPort: uint32(p.Container), HostPort: uint32(p.Host), HostIp: p.HostIP, Protocol: protocols[p.Protocol],
		})
	}
	return s
}

var protocols = map[string]agboxv1.PortProtocol{
	"tcp": agboxv1.PortProtocol_PORT_PROTOCOL_TCP, "udp": agboxv1.PortProtocol_PORT_PROTOCOL_UDP, "sctp": agboxv1.PortProtocol_PORT_PROTOCOL_SCTP,
}

// length returns nil for 0, which means the engine's default.
func length(d time.Duration) *durationpb.Duration {
	if d == 0 {
		return nil
	}
	return durationpb.New(d)
}

// envs returns an environment ("NAME=value") as a map, nil if there is none.
func envs(list []string) map[string]string {
	var all map[string]string
	for _, entry := range list {
		if key, value, ok := strings.Cut(entry, "="); ok {
			if all == nil {
				all = make(map[string]string)
			}
			all[key] = value
		}
	}
	return all
}
