package docker

import (
	"slices"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/agbox/agbox/internal/ids"
	"github.com/agbox/agbox/runtime"
)

func TestDescribeContainerReturnsWhatItWasCreatedFrom(t *testing.T) {
	e, spec := sandbox(t)
	spec.Hostname, spec.User, spec.WorkingDir = "demo", "0:0", "/tmp"
	spec.Env = []string{"A=b"}
	dir := t.TempDir()
	spec.Mounts = []runtime.Mount{{Source: dir, Target: "/data", ReadOnly: true}}
	spec.Ports = []runtime.Port{{Container: 80, Protocol: "tcp", HostIP: "127.0.0.1"}}
	volume := runtime.VolumeSpec{Identity: spec.Identity, Name: runtime.VolumeName(spec.SandboxID, "data")}
	volume.Role = runtime.RoleVolume
	must(t, e.EnsureVolume(t.Context(), volume))
	spec.Volumes = []runtime.VolumeMount{{Volume: volume.Name, Target: "/volume", ReadOnly: true}}
	id := run(t, e, spec)
	d, err := e.DescribeContainer(t.Context(), id)
	must(t, err)
	if !slices.Equal(d.Ports, spec.Ports) || !slices.Equal(d.Volumes, spec.Volumes) {
		t.Errorf("the ports are %+v, the volumes %+v", d.Ports, d.Volumes)
	}
	if d.Identity != spec.Identity || d.Name != spec.Name || d.Hostname != "demo" || d.User != "0:0" || d.WorkingDir != "/tmp" {
		t.Errorf("the container says %+v", d.ContainerSpec)
	}
	if d.ImageID != spec.ImageID || d.Image.ID != spec.ImageID || d.ImageName != testImage {
		t.Errorf("its image is %s, %q, want %s, %q", d.ImageID, d.ImageName, spec.ImageID, testImage)
	}
	if !slices.Equal(d.Env, spec.Env) {
		t.Errorf("its own environment is %v, want %v without that of the image", d.Env, spec.Env)
	}
	if !slices.Equal(d.Mounts, spec.Mounts) || !slices.Equal(d.Entrypoint, spec.Entrypoint) || !slices.Equal(d.Cmd, spec.Cmd) {
		t.Errorf("the container says %+v", d.ContainerSpec)
	}
	if _, err := e.DescribeContainer(t.Context(), ids.New()); !errdefs.IsNotFound(err) {
		t.Errorf("of a container that is not there it says %v", err)
	}
}

func TestOtherInstallsCountsOnlyForeignContainers(t *testing.T) {
	e, spec := sandbox(t)
	run(t, e, spec)
	own, err := e.OtherInstalls(t.Context(), spec.InstallID)
	must(t, err)
	foreign, err := e.OtherInstalls(t.Context(), ids.New())
	must(t, err)
	// Tests of other packages may create and remove containers at the same time.
	if foreign < 1 || own < 0 {
		t.Errorf("there are %d containers of others beside our own, and %d for a stranger", own, foreign)
	}
	listed, err := e.Inventory(t.Context(), spec.InstallID)
	must(t, err)
	if len(listed.Containers) != 1 {
		t.Errorf("the install has %d containers, want 1", len(listed.Containers))
	}
}
