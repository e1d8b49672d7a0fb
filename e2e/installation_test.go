package e2e

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/agbox/agbox/e2e/internal/harness"
)

// inRepository runs a program in the repository's folder and returns what it printed.
func inRepository(t *testing.T, program string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program, args...)
	cmd.Dir = ".."
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, out)
	}
	return string(out)
}

// filesIn returns the paths of all files below a folder, relative to it and sorted.
func filesIn(t *testing.T, top string) []string {
	t.Helper()
	var found []string
	err := filepath.WalkDir(top, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() {
			found = append(found, strings.TrimPrefix(path, top+"/"))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func TestMakeInstallInstallsWhatRunsAndUninstallRemovesIt(t *testing.T) {
	t.Parallel()
	dest := t.TempDir()
	in := newInstall(t)
	inRepository(t, "make", "install", "DESTDIR="+dest, "PREFIX=/opt/agbox")
	top := filepath.Join(dest, "opt/agbox")

	in.Bin = filepath.Join(top, "bin")
	if out := in.Must(t, "run", "--rm", "--image", harness.ImageBusybox, "--", "echo", "from the installation"); out != "from the installation" {
		t.Errorf("the command printed %q", out)
	}
	for path, want := range map[string]string{
		"share/man/man1/agbox.1":                     ".TH AGBOX 1 ",
		"share/man/man1/agbox-daemon-upgrade.1":      "agboxd",
		"share/systemd/user/agboxd.service":          "\nExecStart=/opt/agbox/bin/agboxd run\n",
		"share/systemd/user/agboxd.socket":           "\nListenStream=%t/agbox/agboxd.sock\n",
		"share/bash-completion/completions/agbox":    "complete -o default -F __start_agbox agbox",
		"share/fish/vendor_completions.d/agbox.fish": "complete -c agbox",
		"share/zsh/site-functions/_agbox":            "#compdef agbox",
	} {
		text, err := os.ReadFile(filepath.Join(top, path))
		if err != nil {
			t.Error(err)
		} else if !strings.Contains(string(text), want) {
			t.Errorf("%s has no %q", path, want)
		}
	}

	other := filepath.Join(top, "share/man/man1/agboxes.1")
	if err := os.WriteFile(other, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	in.Bin = harness.Binaries
	inRepository(t, "make", "uninstall", "DESTDIR="+dest, "PREFIX=/opt/agbox")
	if left := filesIn(t, dest); !slices.Equal(left, []string{"opt/agbox/share/man/man1/agboxes.1"}) {
		t.Errorf("after make uninstall these files are left: %q", left)
	}
}
