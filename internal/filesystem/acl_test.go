package filesystem

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

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
