package docker

import (
	"errors"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/network"
	"github.com/docker/docker/api/types/volume"

	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/internal/ids"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/runtime"
)

// sandbox creates a sandbox's network and returns the spec of a primary that sleeps.
func sandbox(t *testing.T) (*Engine, runtime.ContainerSpec) {
	t.Helper()
	e, install := testEngine(t)
	identity := runtime.Identity{InstallID: install, SandboxID: ids.New(), Nonce: ids.New(), Role: runtime.RoleNetwork}
	net, err := e.EnsureNetwork(t.Context(), runtime.NetworkSpec{Identity: identity, Name: runtime.NetworkName(identity.SandboxID)})
	must(t, err)
	image, err := e.EnsureImage(t.Context(), runtime.ImageRequest{Ref: testImage}, nil)
	must(t, err)
	identity.Role = runtime.RolePrimary
	return e, runtime.ContainerSpec{
		Identity:   identity,
		Name:       runtime.PrimaryName(identity.SandboxID),
		ImageID:    image.ID,
		Entrypoint: []string{"sleep"},
		Cmd:        []string{"1000000"},
		NetworkID:  net.ID,
	}
}

func run(t *testing.T, e *Engine, spec runtime.ContainerSpec) string {
	t.Helper()
	id, err := e.EnsureContainer(t.Context(), spec)
	must(t, err)
	must(t, e.StartContainer(t.Context(), id))
	return id
}

func TestPrimaryHasTheSafeDefaults(t *testing.T) {
	e, spec := sandbox(t)
	id := run(t, e, spec)
	seen, err := rawClient(t).ContainerInspect(t.Context(), id)
	must(t, err)
	host := seen.HostConfig
	if host.Privileged || host.AutoRemove || host.PublishAllPorts || host.Init == nil || *host.Init {
		t.Errorf("the host settings are %+v", host)
	}
	if !slices.Equal(host.CapDrop, []string{"ALL"}) || len(host.CapAdd) != len(capabilities) || slices.Contains(host.CapAdd, "CAP_SYS_ADMIN") {
		t.Errorf("capabilities: drop %v, add %v", host.CapDrop, host.CapAdd)
	}
	filter, err := profile()
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(host.SecurityOpt, []string{"no-new-privileges", "seccomp=" + filter}) {
		t.Errorf("the security options are %.200v", host.SecurityOpt)
	}
	if host.PidsLimit == nil || *host.PidsLimit != runtime.DefaultPIDs {
		t.Errorf("the limit of processes is %v", host.PidsLimit)
	}
	if !host.RestartPolicy.IsNone() || host.LogConfig.Type != "none" || !host.IpcMode.IsPrivate() || host.PidMode != "" || host.NetworkMode.IsHost() {
		t.Errorf("the host settings are %+v", host)
	}
	if check := seen.Config.Healthcheck; check == nil || !slices.Equal(check.Test, []string{"NONE"}) {
		t.Errorf("the healthcheck is %+v, want none", check)
	}
	status := output(t, id, "cat", "/proc/1/status")
	for _, line := range []string{"CapEff:\t00000000800004fb", "NoNewPrivs:\t1", "Seccomp:\t2"} {
		if !strings.Contains(status, line) {
			t.Errorf("the kernel does not say %q of the process, but:\n%s", line, status)
		}
	}
}

func TestServiceAnswersToItsNameAndKeepsLogs(t *testing.T) {
	e, primary := sandbox(t)
	service := primary
	service.Role, service.Service = runtime.RoleService, "db"
	service.Name = runtime.ServiceName(service.SandboxID, "db")
	serviceID := run(t, e, service)
	primaryID := run(t, e, primary)
	want := output(t, serviceID, "hostname", "-i")
	if got := output(t, primaryID, "nslookup", "db"); !strings.Contains(got, strings.TrimSpace(want)) {
		t.Errorf("the primary finds the service by name: %q, want its address %q", got, want)
	}
	seen, err := rawClient(t).ContainerInspect(t.Context(), serviceID)
	must(t, err)
	if log := seen.HostConfig.LogConfig; log.Type != "local" || log.Config["max-size"] == "" {
		t.Errorf("the service logs with %+v, want a bounded local log", log)
	}
}

func TestPublishedPortListensOnTheLoopbackOnly(t *testing.T) {
	e, spec := sandbox(t)
	spec.Ports = []runtime.Port{{Container: 8080, Protocol: "tcp"}}
	id := run(t, e, spec)
	seen, err := rawClient(t).ContainerInspect(t.Context(), id)
	must(t, err)
	bindings := seen.NetworkSettings.Ports["8080/tcp"]
	if len(bindings) != 1 || bindings[0].HostIP != "127.0.0.1" || bindings[0].HostPort == "0" || bindings[0].HostPort == "" {
		t.Fatalf("the port is bound to %+v, want one on 127.0.0.1", bindings)
	}
}

func TestTakenHostPortIsExplained(t *testing.T) {
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	must(t, err)
	defer func() { _ = listener.Close() }()
	_, port, err := net.SplitHostPort(listener.Addr().String())
	must(t, err)
	number, err := strconv.ParseUint(port, 10, 16)
	must(t, err)
	e, spec := sandbox(t)
	spec.Ports = []runtime.Port{{Container: 80, Host: uint16(number)}}
	id, err := e.EnsureContainer(t.Context(), spec)
	must(t, err)
	wantFault(t, e.StartContainer(t.Context(), id), errdefs.ErrAlreadyExists, agboxv1.ErrorReason_PORT_TAKEN, "127.0.0.1:"+port)
}

func TestMissingMountSourceIsRefusedAndNotMade(t *testing.T) {
	e, spec := sandbox(t)
	missing := filepath.Join(t.TempDir(), "missing")
	spec.Mounts = []runtime.Mount{{Source: missing, Target: "/mnt"}}
	_, err := e.EnsureContainer(t.Context(), spec)
	wantFault(t, err, errdefs.ErrInvalidArgument, agboxv1.ErrorReason_INVALID_REQUEST, missing)
	if matches, _ := filepath.Glob(missing); len(matches) != 0 {
		t.Error("the engine made the missing directory")
	}
}

func TestMountsKeepTheirMode(t *testing.T) {
	e, spec := sandbox(t)
	spec.Mounts = []runtime.Mount{
		{Source: t.TempDir(), Target: "/mnt/ro", ReadOnly: true},
		{Source: t.TempDir(), Target: "/mnt/rw"},
	}
	id := run(t, e, spec)
	if got := output(t, id, "sh", "-c", "touch /mnt/rw/x && echo written; touch /mnt/ro/x"); !strings.Contains(got, "written") || !strings.Contains(got, "Read-only") {
		t.Errorf("writing to both mounts says %q", got)
	}
}

func TestACommandThatCannotRunFailsTheStart(t *testing.T) {
	e, spec := sandbox(t)
	spec.Entrypoint = []string{"/no/such/file"}
	id, err := e.EnsureContainer(t.Context(), spec)
	must(t, err)
	wantFault(t, e.StartContainer(t.Context(), id), errdefs.ErrInternal, agboxv1.ErrorReason_ENGINE_FAILED, "/no/such/file")
	seen, err := e.InspectContainer(t.Context(), id)
	must(t, err)
	if seen.Error == "" {
		t.Errorf("the inspection does not tell of the failed start: %+v", seen)
	}
}

func TestRemovingAContainerRemovesItsAnonymousVolumes(t *testing.T) {
	e, spec := sandbox(t)
	cli := rawClient(t)
	made, err := cli.ContainerCreate(t.Context(), &container.Config{Image: testImage}, nil, nil, nil, "")
	must(t, err)
	committed, err := cli.ContainerCommit(t.Context(), made.ID, container.CommitOptions{
		Config: &container.Config{Volumes: map[string]struct{}{"/data": {}}},
	})
	must(t, err)
	must(t, cli.ContainerRemove(t.Context(), made.ID, container.RemoveOptions{}))
	t.Cleanup(func() { removeImage(t, committed.ID) })
	spec.ImageID = committed.ID
	id := run(t, e, spec)
	seen, err := cli.ContainerInspect(t.Context(), id)
	must(t, err)
	if len(seen.Mounts) != 1 {
		t.Fatalf("the mounts are %+v, want one anonymous volume", seen.Mounts)
	}
	must(t, e.RemoveContainer(t.Context(), id))
	left, err := cli.VolumeList(t.Context(), volume.ListOptions{Filters: filters.NewArgs(filters.Arg("name", seen.Mounts[0].Name))})
	must(t, err)
	if len(left.Volumes) != 0 {
		t.Errorf("the volume %s was left behind", seen.Mounts[0].Name)
	}
}

func TestStopWaitsForTheProcessWithinTheGracePeriod(t *testing.T) {
	e, spec := sandbox(t)
	spec.Entrypoint, spec.Cmd = []string{"sh"}, []string{"-c", "trap 'exit 7' TERM; : > /set; while :; do sleep 0.05; done"}
	id := run(t, e, spec)
	output(t, id, "sh", "-c", "until [ -e /set ]; do sleep 0.01; done") // before that, the signal has no effect
	must(t, e.StopContainer(t.Context(), id, 9*time.Second+time.Millisecond))
	seen, err := e.InspectContainer(t.Context(), id)
	must(t, err)
	if seen.State != runtime.StateExited || seen.ExitCode != 7 {
		t.Errorf("the container is %+v, want exited with the code of its own handler, 7", seen)
	}
}

func TestRemoveNetworkDisconnectsForeignContainers(t *testing.T) {
	e, spec := sandbox(t)
	cli := rawClient(t)
	foreign := foreignContainer(t, "agbox-foreign-"+spec.SandboxID, runtime.Identity{})
	must(t, cli.NetworkConnect(t.Context(), spec.NetworkID, foreign, &network.EndpointSettings{}))
	must(t, cli.ContainerStart(t.Context(), foreign, container.StartOptions{}))
	must(t, e.RemoveNetwork(t.Context(), spec.NetworkID))
	seen, err := cli.ContainerInspect(t.Context(), foreign)
	must(t, err)
	if !seen.State.Running || len(seen.NetworkSettings.Networks) != 1 {
		t.Errorf("the foreign container is %+v with networks %v, want it running with its own network", seen.State, seen.NetworkSettings.Networks)
	}
}

func TestTimesOfEventsThatHaveNotHappenedAreZero(t *testing.T) {
	if !engineTime("0001-01-01T00:00:00Z").IsZero() || !engineTime("").IsZero() {
		t.Error("a time that has not come is not zero")
	}
	if got := engineTime("2026-01-02T03:04:05.000000006Z"); got.Nanosecond() != 6 || got.Year() != 2026 {
		t.Errorf("the time is %v", got)
	}
}

func TestGraceIsRoundedUpToSeconds(t *testing.T) {
	for grace, want := range map[time.Duration]int{-time.Second: 0, 0: 0, 1: 1, time.Second: 1, time.Second + 1: 2} {
		if got := seconds(grace); got != want {
			t.Errorf("seconds(%v) = %d, want %d", grace, got, want)
		}
	}
}

func wantFault(t *testing.T, err, class error, reason agboxv1.ErrorReason, mentions string) {
	t.Helper()
	f := fault.Of(err)
	if f == nil || !errors.Is(f.Class, class) || f.Reason != reason || !strings.Contains(f.Message, mentions) {
		t.Errorf("the error is %#v, want a fault %v of class %v that mentions %q", err, reason, class, mentions)
	}
}
