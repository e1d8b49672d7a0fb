package hostfiles

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// file writes a policy into a folder of the test.
func file(t *testing.T, content string) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "policy.yaml")
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// mine loads a policy that belongs to this user.
func mine(path string) (*Policy, error) { return loadPolicy(path, "/home/me", uint32(os.Geteuid())) }

const whole = `allow:
  dangerous_mounts: false
  privileged: false
mounts:
  writable: [~/src, /srv/projects]
  read_only: [/usr/share]
  denied: [/srv/projects/secret]
covers: [.husky, tools/run]
trusted_folders: [/srv/ci]
`

func TestAPolicyBoundsWhatLeavesTheHost(t *testing.T) {
	p, err := mine(file(t, whole))
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string][2]bool{ // read-only, writable
		"/home/me/src/x": {true, true}, "/srv/projects": {false, false}, "/srv/projects/a": {true, true}, "/srv/projects/secret/x": {false, false},
		"/usr/share/x": {true, false}, "/home/me": {false, false}, "/home/me/srcs": {false, false},
	} {
		for i, writable := range []bool{false, true} {
			if why := p.Refuses(path, writable, false); (why == "") != want[i] {
				t.Errorf("%s, writable %v: %q", path, writable, why)
			}
		}
	}
	denies, err := mine(file(t, "mounts:\n  denied: [/srv/secret]\n"))
	if err != nil || denies.Refuses("/", false, false) == "" || denies.Refuses("/srv/other", true, false) != "" {
		t.Errorf("/ holds what is denied: %q, %v", denies.Refuses("/", false, false), err)
	}
	top := filepath.Join(t.TempDir(), "top")
	if err := os.Symlink("/", top); err != nil {
		t.Fatal(err)
	}
	all, err := mine(file(t, "mounts:\n  writable: ["+top+"]\ntrusted_folders: ["+top+"]\n"))
	if err != nil || all.Refuses("/srv/other", true, false) == "" || all.Opens("/srv/other") || all.Trusts("/srv") {
		t.Errorf("a link to / opens all: %v", err)
	}
	nothing, err := mine(file(t, "mounts:\n  denied: ["+top+"]\n"))
	if err != nil || nothing.Refuses("/srv/other", false, true) == "" {
		t.Errorf("a link to / denies less than all: %v", err)
	}
	if why := p.Refuses("/home/me/.gitconfig", false, true); why != "" {
		t.Errorf("a built-in tool: %s", why)
	}
	if !p.Opens("/srv/projects/a") || p.Opens("/usr/share") || p.Dangerous || p.Privileged || !p.Devices || !p.WritableConfig {
		t.Errorf("got %+v", p)
	}
	if shown := p.Show(); !strings.Contains(shown, "  dangerous_mounts: false # line 2\n") || !strings.Contains(shown, "  devices: true # default\n") || !strings.Contains(shown, "covers: [\".husky\", \"tools/run\"] # line 8\n") {
		t.Errorf("shown as\n%s", shown)
	}
	if again, err := mine(file(t, p.Show())); err != nil || again.Refuses("/srv/projects/a", true, false) != "" || again.Dangerous {
		t.Errorf("what is shown is no policy: %v", err)
	}
}

func TestWithoutAPolicyNothingIsBounded(t *testing.T) {
	p, err := mine(filepath.Join(t.TempDir(), "none"))
	if err != nil || p.Found || p.Refuses("/srv/x", true, false) != "" || p.Opens("/srv/x") || !p.Dangerous {
		t.Errorf("%+v, %v", p, err)
	}
}

func TestAPolicyWithAMistakeIsRefusedWithItsLine(t *testing.T) {
	for content, says := range map[string]string{
		"covers: x": "Line 1: covers is a list", "\nallow: {devices: maybe}": "Line 2: allow.devices is true or false", "mounts: {writeable: []}": "no setting \"mounts.writeable\"",
		"mounts: {writable: [src]}": "absolute path", "mounts: {writable: [/]}": "absolute path", "covers: [../x]": "not a name in a project", "[]": "Here should be settings", "a: [": "not YAML",
	} {
		if _, err := mine(file(t, content)); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v, want %q", content, err, says)
		}
	}
}

func TestAPolicyThatOthersCanChangeIsRefused(t *testing.T) {
	for says, change := range map[string]func(path string) error{
		"may write to":       func(path string) error { return os.Chmod(path, 0o664) },
		"regular file":       func(path string) error { _ = os.Remove(path); return unix.Mkfifo(path, 0o644) },
		"symbolic link":      func(path string) error { _ = os.Rename(path, path+"2"); return os.Symlink(path+"2", path) },
		"policy.yaml cannot": func(path string) error { return os.Chmod(filepath.Dir(path), 0o777) },
	} {
		path := file(t, whole)
		if err := change(path); err != nil {
			t.Fatal(err)
		}
		if _, err := mine(path); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v", says, err)
		}
	}
}

func TestOnlyRootAndTheOwnerMayHaveThePolicyAndItsFolders(t *testing.T) {
	const owner, folder, sticky = 1000, unix.S_IFDIR | 0o755, unix.S_IFDIR | unix.S_ISVTX | 0o777
	for _, row := range []struct {
		uid, mode uint32
		says      string // empty: accepted
	}{
		{0, 0o644, ""}, {owner, 0o644, ""}, {owner, folder, ""}, {0, sticky, ""},
		{1001, 0o644, "belongs to user 1001"}, {1001, folder, "belongs to user 1001"}, {1001, sticky, "belongs to user 1001"},
		{0, 0o664, "may write to"}, {0, 0o646, "may write to"}, {owner, folder | 0o020, "may write to"}, {0, unix.S_ISVTX | 0o646, "may write to"},
	} {
		err := checkPolicyOwner("p", "n", unix.Stat_t{Uid: row.uid, Mode: row.mode}, owner)
		if (err == nil) != (row.says == "") || err != nil && !strings.Contains(err.Error(), row.says) {
			t.Errorf("user %d, mode %o: %v, want %q", row.uid, row.mode, err, row.says)
		}
	}
}
