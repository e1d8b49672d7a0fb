package docker

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/mount"
	"github.com/docker/docker/api/types/network"
	"github.com/docker/docker/api/types/versions"
	"github.com/docker/go-connections/nat"

	"github.com/agbox/agbox/runtime"
)

// publishedOn is the default address of published ports. It keeps them off the
// host's network.
var publishedOn = netip.MustParseAddr("127.0.0.1")

// containerConfig returns the configuration for an engine of the given API version.
func containerConfig(spec runtime.ContainerSpec, api string) *container.Config {
	stop := seconds(spec.StopTimeout)
	config := &container.Config{
		Hostname:     spec.Hostname,
		User:         spec.User,
		Env:          spec.Env,
		Cmd:          spec.Cmd,
		Entrypoint:   spec.Entrypoint,
		Image:        spec.ImageID,
		WorkingDir:   spec.WorkingDir,
		Labels:       containerLabels(spec),
		StopTimeout:  &stop,
		ExposedPorts: make(nat.PortSet, len(spec.Ports)),
	}
	for _, p := range spec.Ports {
		config.ExposedPorts[portKey(p)] = struct{}{}
	}
	if h := spec.Healthcheck; h != nil {
		config.Healthcheck = &container.HealthConfig{
			Test: h.Test, Interval: h.Interval, Timeout: h.Timeout,
			StartPeriod: h.StartPeriod, StartInterval: h.StartInterval, Retries: h.Retries,
		}
		if versions.LessThan(api, startIntervalSince) {
			// The client library would refuse it. Callers can detect this with Abilities.
			config.Healthcheck.StartInterval = 0
		}
	}
	if spec.Role == runtime.RolePrimary {
		// The supervisor reports the health of a primary.
		config.Healthcheck = &container.HealthConfig{Test: []string{"NONE"}}
		// The supervisor stops on SIGTERM, whatever STOPSIGNAL the image sets.
		config.StopSignal = "SIGTERM"
	}
	return config
}

// hostConfig leaves all other settings at the engine's defaults, which share no
// namespace with the host and mask the dangerous parts of /proc and /sys.
func hostConfig(spec runtime.ContainerSpec) *container.HostConfig {
	host := &container.HostConfig{
		LogConfig:     logConfig(spec.Role),
		NetworkMode:   container.NetworkMode(spec.NetworkID),
		PortBindings:  make(nat.PortMap, len(spec.Ports)),
		RestartPolicy: container.RestartPolicy{Name: container.RestartPolicyDisabled},
		CgroupnsMode:  container.CgroupnsModePrivate,
		IpcMode:       container.IPCModePrivate,
		Init:          new(bool),
		ShmSize:       spec.Limits.Shm,
		Resources:     resources(spec.Limits),
	}
	applySecurity(host, spec.Security)
	if spec.Limits.Disk > 0 {
		host.StorageOpt = map[string]string{"size": strconv.FormatInt(spec.Limits.Disk, 10)}
	}
	for _, m := range spec.Mounts {
		// Binds, the older form, would create a missing source as a directory of root.
		// Mounts refuse it.
		host.Mounts = append(host.Mounts, mount.Mount{
			Type: mount.TypeBind, Source: m.Source, Target: m.Target, ReadOnly: m.ReadOnly,
			BindOptions: &mount.BindOptions{Propagation: mount.PropagationRPrivate},
		})
	}
	if spec.NoNames {
		// Engines before 25.0.5 ask their host's name server for an internal network too. The
		// one that is named here is asked from inside, where nobody listens.
		host.DNS = []string{"127.0.0.1"}
	}
	if spec.HostAlias {
		host.ExtraHosts = []string{"host.docker.internal:host-gateway"}
	}
	for _, v := range spec.Volumes {
		host.Mounts = append(host.Mounts, mount.Mount{Type: mount.TypeVolume, Source: v.Volume, Target: v.Target, ReadOnly: v.ReadOnly})
	}
	if len(spec.Tmpfs) > 0 {
		host.Tmpfs = make(map[string]string, len(spec.Tmpfs))
	}
	for _, t := range spec.Tmpfs {
		host.Tmpfs[t.Target] = tmpfsOptions(t)
	}
	for _, p := range spec.Ports {
		binding := nat.PortBinding{HostIP: cmp.Or(p.HostIP, publishedOn.String())}
		if p.Host != 0 {
			binding.HostPort = strconv.Itoa(int(p.Host))
		}
		host.PortBindings[portKey(p)] = append(host.PortBindings[portKey(p)], binding)
	}
	return host
}

// tmpfsOptions sets exec, unlike the engine's defaults, because builds execute
// programs that they create in temporary directories.
func tmpfsOptions(t runtime.Tmpfs) string {
	options := fmt.Sprintf("rw,exec,nosuid,nodev,mode=%o", cmp.Or(t.Mode, 0o1777))
	if t.Size > 0 {
		options += ",size=" + strconv.FormatInt(t.Size, 10)
	}
	return options
}

// resources returns the limits that the kernel enforces.
func resources(l runtime.Limits) container.Resources {
	pids := cmp.Or(l.PIDs, runtime.DefaultPIDs)
	r := container.Resources{
		NanoCPUs: l.NanoCPUs, PidsLimit: &pids,
		// MemorySwap includes Memory, so equal values mean no swap.
		Memory: l.Memory, MemorySwap: l.Memory,
		DeviceRequests: gpuRequests(l.GPUs),
	}
	for _, u := range l.Ulimits {
		r.Ulimits = append(r.Ulimits, &container.Ulimit{Name: u.Name, Soft: u.Soft, Hard: u.Hard})
	}
	return r
}

func gpuRequests(gpus string) []container.DeviceRequest {
	request := container.DeviceRequest{Capabilities: [][]string{{"gpu"}}}
	if gpus == "" {
		return nil
	}
	if count, err := strconv.Atoi(gpus); err == nil {
		request.Count = count
	} else if gpus == "all" {
		request.Count = -1
	} else {
		request.DeviceIDs = strings.Split(gpus, ",")
	}
	return []container.DeviceRequest{request}
}

// logConfig keeps no log of a primary: its supervisor writes its own logs and must
// never block on the engine. It keeps a bounded tail of the output of a service.
func logConfig(role runtime.Role) container.LogConfig {
	if role == runtime.RolePrimary {
		return container.LogConfig{Type: "none"}
	}
	return container.LogConfig{Type: "local", Config: map[string]string{
		"max-size": "5m", "max-file": "2", "mode": "non-blocking",
	}}
}

// networkConfig attaches the container to its network. A service can be resolved
// there by its name, another container by its alias.
func networkConfig(spec runtime.ContainerSpec) *network.NetworkingConfig {
	if spec.NetworkID == "" || spec.NetworkID == runtime.NoNetwork {
		return nil
	}
	endpoint := &network.EndpointSettings{NetworkID: spec.NetworkID}
	if name := cmp.Or(spec.Service, spec.Alias); name != "" {
		endpoint.Aliases = []string{name}
	}
	return &network.NetworkingConfig{EndpointsConfig: map[string]*network.EndpointSettings{spec.NetworkID: endpoint}}
}

func portKey(p runtime.Port) nat.Port {
	return nat.Port(strconv.Itoa(int(p.Container)) + "/" + cmp.Or(p.Protocol, "tcp"))
}

// seconds rounds up to the engine's unit, so that a short grace period does not
// become 0. Negative values become 0, because the engine would wait forever.
func seconds(d time.Duration) int {
	return int((max(d, 0) + time.Second - 1) / time.Second)
}

// publishedPorts returns the ports of a container, sorted. bound has the bindings
// that the engine made. A port without one, as before the start, gets the requested
// bindings in wanted.
func publishedPorts(bound, wanted nat.PortMap) []runtime.PublishedPort {
	var ports []runtime.PublishedPort
	for key, asked := range wanted {
		bindings := bound[key]
		if len(bindings) == 0 {
			bindings = asked
		}
		for _, b := range bindings {
			host, _ := strconv.ParseUint(b.HostPort, 10, 16)
			ports = append(ports, runtime.PublishedPort{
				Container: uint16(key.Int()), Protocol: key.Proto(), HostIP: b.HostIP, Host: uint16(host),
			})
		}
	}
	return sortPorts(ports)
}

func listedPorts(list []container.Port) []runtime.PublishedPort {
	var ports []runtime.PublishedPort
	for _, p := range list {
		if p.PublicPort != 0 {
			ports = append(ports, runtime.PublishedPort{Container: p.PrivatePort, Protocol: p.Type, HostIP: p.IP, Host: p.PublicPort})
		}
	}
	return sortPorts(ports)
}

func sortPorts(ports []runtime.PublishedPort) []runtime.PublishedPort {
	slices.SortFunc(ports, func(a, b runtime.PublishedPort) int {
		return cmp.Or(cmp.Compare(a.Container, b.Container), cmp.Compare(a.Protocol, b.Protocol),
			cmp.Compare(a.HostIP, b.HostIP), cmp.Compare(a.Host, b.Host))
	})
	return ports
}
