package docker

import (
	"net/netip"
	"strconv"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/mount"
	"github.com/docker/docker/api/types/network"
	"github.com/docker/go-connections/nat"

	"github.com/agbox/agbox/runtime"
)

// pidsLimit bounds the processes and threads of a container: enough for a build
// on many cores, too few for a fork bomb to hurt the host.
const pidsLimit = 4096

// capabilities are what package managers and ordinary servers need. All others
// are dropped.
var capabilities = []string{
	"CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "SETFCAP", "NET_BIND_SERVICE",
}

// publishedOn keeps published ports away from the machine's network.
var publishedOn = netip.MustParseAddr("127.0.0.1")

func containerConfig(spec runtime.ContainerSpec) *container.Config {
	stop := seconds(spec.StopTimeout)
	config := &container.Config{
		Hostname:     spec.Hostname,
		User:         spec.User,
		Env:          spec.Env,
		Cmd:          spec.Cmd,
		Entrypoint:   spec.Entrypoint,
		Image:        spec.ImageID,
		WorkingDir:   spec.WorkingDir,
		Labels:       encodeLabels(spec.Identity),
		StopTimeout:  &stop,
		ExposedPorts: make(nat.PortSet, len(spec.Ports)),
	}
	for _, p := range spec.Ports {
		config.ExposedPorts[portKey(p)] = struct{}{}
	}
	if spec.Role == runtime.RolePrimary {
		// What is healthy in a primary is the supervisor's to say.
		config.Healthcheck = &container.HealthConfig{Test: []string{"NONE"}}
		// The supervisor ends on SIGTERM, whatever the image's own command wants.
		config.StopSignal = "SIGTERM"
	}
	return config
}

func hostConfig(spec runtime.ContainerSpec) *container.HostConfig {
	host := &container.HostConfig{
		LogConfig:     logConfig(spec.Role),
		NetworkMode:   container.NetworkMode(spec.NetworkID),
		PortBindings:  make(nat.PortMap, len(spec.Ports)),
		RestartPolicy: container.RestartPolicy{Name: container.RestartPolicyDisabled},
		CapAdd:        capabilities,
		CapDrop:       []string{"ALL"},
		CgroupnsMode:  container.CgroupnsModePrivate,
		IpcMode:       container.IPCModePrivate,
		SecurityOpt:   []string{"no-new-privileges"},
		Init:          new(bool),
		Resources:     container.Resources{PidsLimit: new(int64)},
	}
	*host.PidsLimit = pidsLimit
	for _, m := range spec.Mounts {
		// Unlike a bind in the old form, a mount does not make a missing source as a
		// directory of root.
		host.Mounts = append(host.Mounts, mount.Mount{Type: mount.TypeBind, Source: m.Source, Target: m.Target, ReadOnly: m.ReadOnly})
	}
	for _, p := range spec.Ports {
		binding := nat.PortBinding{HostIP: publishedOn.String()}
		if p.Host != 0 {
			binding.HostPort = strconv.Itoa(int(p.Host))
		}
		host.PortBindings[portKey(p)] = append(host.PortBindings[portKey(p)], binding)
	}
	return host
}

// logConfig keeps nothing of a primary, whose supervisor writes logs of its own and
// must never block on the engine, and a bounded tail of a service.
func logConfig(role runtime.Role) container.LogConfig {
	if role == runtime.RolePrimary {
		return container.LogConfig{Type: "none"}
	}
	return container.LogConfig{Type: "local", Config: map[string]string{
		"max-size": "5m", "max-file": "2", "mode": "non-blocking",
	}}
}

// networkConfig attaches the container to its network; a service answers there to
// its own name.
func networkConfig(spec runtime.ContainerSpec) *network.NetworkingConfig {
	if spec.NetworkID == "" {
		return nil
	}
	endpoint := &network.EndpointSettings{NetworkID: spec.NetworkID}
	if spec.Service != "" {
		endpoint.Aliases = []string{spec.Service}
	}
	return &network.NetworkingConfig{EndpointsConfig: map[string]*network.EndpointSettings{spec.NetworkID: endpoint}}
}

func portKey(p runtime.Port) nat.Port {
	protocol := p.Protocol
	if protocol == "" {
		protocol = "tcp"
	}
	return nat.Port(strconv.Itoa(int(p.Container)) + "/" + protocol)
}

// seconds rounds up: the engine counts in whole ones, and a short grace must not
// become none. Negative ones would mean forever there.
func seconds(d time.Duration) int {
	return int((max(d, 0) + time.Second - 1) / time.Second)
}
