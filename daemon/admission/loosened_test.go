package admission

import (
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/daemon/hostfiles"
)

func TestEverythingThatIsLoosenedIsNamed(t *testing.T) {
	harmless := t.TempDir()
	spec := &agboxv1.CreateSpec{
		Security: &agboxv1.SecuritySpec{
			CapAdd: []string{"SYS_PTRACE"}, CapDrop: []string{"KILL"}, AllowNewPrivileges: proto.Bool(true), SeccompUnconfined: proto.Bool(true),
			Devices: []string{"/dev/fuse"}, AllowDangerousMounts: proto.Bool(true), ReadOnlyRoot: proto.Bool(true),
		},
		PidsLimit: 5000, MemoryLimit: "unlimited",
		Mounts: []*agboxv1.MountSpec{
			{Source: "/proc", Target: "/host"}, {Source: harmless, Target: "/data"}, {Source: "/", Target: "/all", Writable: true},
		},
		Services: []*agboxv1.ServiceSpec{{Name: "db", PidsLimit: 4096, Security: &agboxv1.SecuritySpec{Privileged: proto.Bool(true)}}},
	}
	want := []string{
		"primary: capability SYS_PTRACE is added",
		"primary: programs may gain new privileges",
		"primary: system calls are not filtered",
		"primary: devices of the host: /dev/fuse",
		"primary: it may use all memory of the host",
		"primary: up to 5000 processes and threads, instead of 4096",
		"primary: dangerous mount of /proc, read-only: that is the kernel's view of all processes of the host",
		"primary: dangerous mount of /, writable: it is the whole host",
		"service db: privileged: it has all capabilities and devices, and no filter of system calls",
	}
	if got := loosened(spec, hostfiles.Checker{}); !slices.Equal(got, want) {
		t.Errorf("it says\n%q\nwant\n%q", got, want)
	}
	forced := &agboxv1.CreateSpec{
		Security: &agboxv1.SecuritySpec{AllowDangerousMounts: proto.Bool(true)},
		Mounts:   []*agboxv1.MountSpec{{Source: harmless + "/gone", Target: "/data"}},
	}
	if got := loosened(forced, hostfiles.Checker{}); !slices.Equal(got, []string{"primary: dangerous mounts are allowed"}) {
		t.Errorf("of force alone it says %q", got)
	}
	if got := loosened(&agboxv1.CreateSpec{Security: new(agboxv1.SecuritySpec)}, hostfiles.Checker{}); len(got) != 0 {
		t.Errorf("of nothing it says %q", got)
	}
}
