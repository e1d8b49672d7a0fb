package runtimetest

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/runtime"
)

// limitCases test abilities, limits, ports and usage.
var limitCases = map[string]func(*testing.T, *subject){
	"AbilitiesNameTheMachine": func(t *testing.T, s *subject) {
		a, err := s.Engine.Abilities(t.Context())
		must(t, err)
		if !strings.HasPrefix(a.Platform, "linux/") || a.CPUs < 1 || a.Memory < 1 {
			t.Errorf("the engine can do %+v", a)
		}
	},
	"EveryFieldOfASpecIsAccepted": func(t *testing.T, s *subject) {
		volume := s.volumeSpec()
		must(t, s.Engine.EnsureVolume(t.Context(), volume))
		spec := s.service(t, "db")
		spec.User, spec.WorkingDir, spec.Env = "1:1", "/", []string{"A=b"}
		spec.Mounts = []runtime.Mount{{Source: t.TempDir(), Target: "/mnt/host", ReadOnly: true}}
		spec.Volumes = []runtime.VolumeMount{{Volume: volume.Name, Target: "/data", ReadOnly: true}}
		spec.Tmpfs = []runtime.Tmpfs{{Target: "/fast", Size: 1 << 20, Mode: 0o700}, {Target: "/other"}}
		spec.Ports = []runtime.Port{{Container: 80}, {Container: 53, Protocol: "udp", HostIP: "0.0.0.0"}}
		spec.Healthcheck = &runtime.Healthcheck{
			Test: []string{"CMD-SHELL", "true"}, Interval: time.Hour, Timeout: time.Minute,
			StartPeriod: time.Hour, StartInterval: time.Minute, Retries: 2,
		}
		spec.Limits = runtime.Limits{
			NanoCPUs: 5e8, Memory: 64 << 20, MemoryByDefault: true, PIDs: 50, Shm: 1 << 20,
			Ulimits: []runtime.Ulimit{{Name: "nofile", Soft: 100, Hard: 200}},
		}
		spec.Security = runtime.Security{
			CapAdd: []string{"NET_RAW"}, CapDrop: []string{"KILL"}, NewPrivileges: true, SeccompUnconfined: true,
			Devices: []string{"/dev/null"}, ReadOnlyRoot: true,
		}
		id := s.ensure(t, spec)
		if again := s.ensure(t, spec); again != id {
			t.Errorf("the second container is %s, the first %s", again, id)
		}
		must(t, s.Engine.StartContainer(t.Context(), id))
		made := runtime.MadeLimits{Memory: 64 << 20, MemoryByDefault: true, PIDs: 50}
		if listed, seen := s.inventory(t).Containers[0].Limits, s.inspect(t, id).Limits; listed != made || seen != made {
			t.Errorf("the list has the limits %+v and the inspection %+v, want %+v", listed, seen, made)
		}
		if state := s.inspect(t, id).State; state != runtime.StateRunning {
			t.Errorf("the container is %q", state)
		}
		must(t, s.Engine.RemoveContainer(t.Context(), id))
		must(t, s.Engine.RemoveVolume(t.Context(), volume.Name))
	},
	"PublishedPortsAreShownWhileTheContainerRuns": func(t *testing.T, s *subject) {
		spec := s.service(t, "web")
		spec.Ports = []runtime.Port{{Container: 80}, {Container: 81}}
		id := s.ensure(t, spec)
		must(t, s.Engine.StartContainer(t.Context(), id))
		ports := s.inspect(t, id).Ports
		if len(ports) != 2 || ports[0].Host == 0 || ports[0].Host == ports[1].Host {
			t.Fatalf("the ports are %+v, want two with free ports of the host", ports)
		}
		if want := (runtime.PublishedPort{Container: 80, Protocol: "tcp", HostIP: "127.0.0.1", Host: ports[0].Host}); ports[0] != want {
			t.Errorf("the port is %+v, want %+v", ports[0], want)
		}
		if listed := s.inventory(t).Containers[0].Ports; !slices.Equal(listed, ports) {
			t.Errorf("the list has the ports %+v, the inspection %+v", listed, ports)
		}
		must(t, s.Engine.StopContainer(t.Context(), id, 0))
		if listed := s.inventory(t).Containers[0].Ports; len(listed) != 0 {
			t.Errorf("a stopped container publishes %+v", listed)
		}
	},
	"ATakenPortFailsTheStart": func(t *testing.T, s *subject) {
		first := s.service(t, "first")
		first.Ports = []runtime.Port{{Container: 80}}
		id := s.ensure(t, first)
		must(t, s.Engine.StartContainer(t.Context(), id))
		second := s.service(t, "second")
		second.Ports = []runtime.Port{{Container: 80, Host: s.inspect(t, id).Ports[0].Host}}
		err := s.Engine.StartContainer(t.Context(), s.ensure(t, second))
		wantReason(t, err, agboxv1.ErrorReason_PORT_TAKEN)
		if errdefs.IsUnavailable(err) {
			t.Errorf("%v looks retryable", err)
		}
	},
	"UsageIsReportedForRunningContainers": func(t *testing.T, s *subject) {
		id := s.started(t)
		used, err := s.Engine.ContainerUsage(t.Context(), id)
		must(t, err)
		if used.PIDs < 1 || used.Memory == 0 || used.MemoryLimit < used.Memory || used.At.IsZero() || used.PIDsLimit != 4096 {
			t.Errorf("a running container uses %+v", used)
		}
		must(t, s.Engine.StopContainer(t.Context(), id, 0))
		used, err = s.Engine.ContainerUsage(t.Context(), id)
		must(t, err)
		if used != (runtime.Usage{}) {
			t.Errorf("a stopped container uses %+v", used)
		}
		_, err = s.Engine.ContainerUsage(t.Context(), strings.Repeat("4", 64))
		wantClass(t, err, errdefs.ErrNotFound)
	},
}

// service returns the spec of a sleeper in the role of a service.
func (s *subject) service(t *testing.T, name string) runtime.ContainerSpec {
	t.Helper()
	spec := s.sleeper(s.image(t).ID, s.network(t).ID)
	spec.Role, spec.Service, spec.Name = runtime.RoleService, name, runtime.ServiceName(s.sandboxID, name)
	return spec
}
