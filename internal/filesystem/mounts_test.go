package filesystem

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func idOf(t *testing.T, path string) FileID {
	t.Helper()
	id, err := IDOfPath(path)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func TestEveryProblemHasAnExitCode(t *testing.T) {
	t.Parallel()
	for index := range Span {
		for _, unseen := range []bool{false, true} {
			want := MountProblem{Index: index, Unseen: unseen}
			if got, ok := MountProblemOf(want.ExitCode()); !ok || got != want {
				t.Errorf("%+v comes back as %+v, %v", want, got, ok)
			}
		}
	}
	if got, _ := MountProblemOf(MountProblem{Index: 1000}.ExitCode()); got.Index != Span-1 {
		t.Errorf("a mount far down the list comes back as %d", got.Index)
	}
	for _, code := range []int{0, 1, 2, 126, 127, 137} {
		if _, ok := MountProblemOf(code); ok {
			t.Errorf("exit code %d is taken for a mount that differs", code)
		}
	}
}

func TestCompareFindsWhatIsNotMountedAsWritten(t *testing.T) {
	t.Parallel()
	link, plain := t.TempDir(), filepath.Join(t.TempDir(), "to-proc")
	if err := os.Symlink("/proc", plain); err != nil {
		t.Fatal(err)
	}
	// /proc is mounted on every machine on which this test runs.
	proc, other := idOf(t, "/proc"), idOf(t, link)
	otherType := idOf(t, "/proc")
	otherType.Type = unix.S_IFREG
	mount := func(target string, file FileID) Mount { return Mount{target, file} }
	for name, c := range map[string]struct {
		mounts []Mount
		link   FileID
		want   *MountProblem
	}{
		"nothing is mounted":          {nil, other, nil},
		"the same":                    {[]Mount{mount("/proc", proc)}, other, nil},
		"through a link of the image": {[]Mount{mount(plain, proc)}, other, nil},
		"another file":                {[]Mount{mount("/proc", proc), mount("/proc", other)}, other, &MountProblem{Index: 1}},
		"another type":                {[]Mount{mount("/proc", otherType)}, other, &MountProblem{}},
		"no identity":                 {[]Mount{mount("/proc", FileID{})}, other, &MountProblem{}},
		"the same file, which is not mounted there": {[]Mount{mount(link, other)}, other, &MountProblem{}},
		"a link in another mount":                   {[]Mount{mount(plain, proc), mount(filepath.Dir(plain), proc)}, other, &MountProblem{}},
		"nothing there":                             {[]Mount{mount("/proc/nothing", proc)}, other, &MountProblem{}},
		"a runtime with numbers of its own":         {[]Mount{mount("/proc", other)}, proc, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := CompareMounts(c.mounts, link, c.link)
			if got == nil && c.want == nil {
				return
			}
			if got == nil || c.want == nil || *got != *c.want {
				t.Errorf("found %+v, want %+v", got, c.want)
			}
		})
	}
}
