package docker

import (
	"slices"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/mount"

	"github.com/agbox/agbox/runtime"
)

func TestPrivilegedDropsAllDefaultsExceptTheProcessLimit(t *testing.T) {
	host := hostConfig(runtime.ContainerSpec{Security: runtime.Security{Privileged: true}})
	if !host.Privileged || len(host.CapDrop)+len(host.CapAdd)+len(host.SecurityOpt) != 0 || *host.PidsLimit != runtime.DefaultPIDs {
		t.Errorf("a privileged container is %+v", host)
	}
}

func TestDroppedCapabilitiesAreNotAddedAgain(t *testing.T) {
	host := hostConfig(runtime.ContainerSpec{Security: runtime.Security{CapDrop: []string{"ALL"}, CapAdd: []string{"NET_RAW"}}})
	if !slices.Equal(host.CapDrop, []string{"ALL"}) || !slices.Equal(host.CapAdd, []string{"NET_RAW"}) {
		t.Errorf("it drops %v and adds %v", host.CapDrop, host.CapAdd)
	}
}

func TestGPUsBecomeDeviceRequests(t *testing.T) {
	for gpus, want := range map[string]container.DeviceRequest{
		"all": {Count: -1}, "2": {Count: 2}, "GPU-1,GPU-2": {DeviceIDs: []string{"GPU-1", "GPU-2"}},
	} {
		got := hostConfig(runtime.ContainerSpec{Limits: runtime.Limits{GPUs: gpus}}).DeviceRequests
		if len(got) != 1 || got[0].Count != want.Count || !slices.Equal(got[0].DeviceIDs, want.DeviceIDs) || got[0].Capabilities[0][0] != "gpu" {
			t.Errorf("%q asks for %+v", gpus, got)
		}
	}
	if got := hostConfig(runtime.ContainerSpec{}).DeviceRequests; got != nil {
		t.Errorf("nothing asks for %+v", got)
	}
}

func TestStartIntervalIsSentOnlyToEnginesThatSupportIt(t *testing.T) {
	spec := runtime.ContainerSpec{Healthcheck: &runtime.Healthcheck{Test: []string{"CMD", "true"}, StartInterval: time.Second}}
	for api, want := range map[string]time.Duration{"1.41": 0, "1.43": 0, "1.44": time.Second, "1.52": time.Second} {
		if got := containerConfig(spec, api).Healthcheck.StartInterval; got != want {
			t.Errorf("for API %s it is %v", api, got)
		}
	}
}

func TestMountsArePrivateAndDiskIsAnOptionOfTheDriver(t *testing.T) {
	host := hostConfig(runtime.ContainerSpec{
		Mounts: []runtime.Mount{{Source: "/a", Target: "/b", ReadOnly: true}}, Limits: runtime.Limits{Disk: 1 << 30, Memory: 1 << 20},
	})
	m := host.Mounts[0]
	if m.Type != mount.TypeBind || !m.ReadOnly || m.BindOptions.Propagation != mount.PropagationRPrivate || m.BindOptions.CreateMountpoint {
		t.Errorf("the mount is %+v", m)
	}
	if host.StorageOpt["size"] != "1073741824" || host.MemorySwap != host.Memory {
		t.Errorf("the host settings are %+v", host)
	}
}

func TestPortErrorsOfEnginesAreParsed(t *testing.T) {
	for text, address := range map[string]string{
		"driver failed programming external connectivity on endpoint x: Bind for 127.0.0.1:80 failed: port is already allocated":                                                      "127.0.0.1:80",
		"driver failed programming external connectivity on endpoint x: Error starting userland proxy: listen tcp4 0.0.0.0:8080: bind: address already in use":                        "0.0.0.0:8080",
		"failed to set up container networking: driver failed programming external connectivity on endpoint x: failed to bind host port for 127.0.0.1:80/tcp: address already in use": "127.0.0.1:80",
	} {
		err := errorText(text)
		if !isPortError(err) {
			t.Errorf("%q is not recognized as a port error", text)
		}
		if got := boundAddress.FindStringSubmatch(text); got == nil || got[1] != address {
			t.Errorf("in %q the address is %v", text, got)
		}
	}
}

type errorText string

func (e errorText) Error() string { return string(e) }
