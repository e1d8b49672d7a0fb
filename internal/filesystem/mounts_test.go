package filesystem

import (
	"errors"
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

// other is a user that has nothing to do with the tests.
const other = 54321

func mustAll(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// list returns an access control list as the kernel has it.
func list(t *testing.T, path string) string {
	t.Helper()
	raw := make([]byte, 256)
	n, err := unix.Lgetxattr(path, "system.posix_acl_access", raw)
	mustAll(t, err)
	return string(raw[:n])
}

// wantMode wants the rights of a file. The kernel shows in place of the group's the most
// that the list gives to any user but the owner.
func wantMode(t *testing.T, path string, want os.FileMode) {
	t.Helper()
	info, err := os.Lstat(path)
	mustAll(t, err)
	if got := info.Mode().Perm(); got != want {
		t.Errorf("%s has the mode %o, want %o", filepath.Base(path), got, want)
	}
}

func TestAGrantLeavesTheOwnerItsRightsAndTakesThemFromOthers(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	mustAll(t, os.WriteFile(path, nil, 0o644), Grant(path, other, MayRead), Grant(path, other, MayRead))
	wantMode(t, path, 0o640)
	if got, want := list(t, path), string(encode(MayRead|MayWrite, other, MayRead)); got != want {
		t.Errorf("the list is %x, want %x", got, want)
	}
	mustAll(t, os.Chmod(path, 0o666), Grant(path, other, MayRead|MayWrite))
	wantMode(t, path, 0o660)
	if err := Grant(path+"none", other, MayRead); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a grant on nothing gives %v", err)
	}
}

func TestWhatIsMadeInAFolderIsGrantedAsFarAsItsModeAllows(t *testing.T) {
	dir := t.TempDir()
	mustAll(t, GrantNew(dir, other, MayRead|MayWrite|MayUse))
	for name, mode := range map[string]os.FileMode{"shared": 0o660, "own": 0o600} {
		path := filepath.Join(dir, name)
		mustAll(t, os.WriteFile(path, nil, mode))
		wantMode(t, path, mode)
		if got := list(t, path); len(got) != len(encode(0, 0, 0)) {
			t.Errorf("%s has the list %x", name, got)
		}
	}
}
