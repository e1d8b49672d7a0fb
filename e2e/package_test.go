package e2e

import (
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/agbox/agbox/e2e/internal/harness"
)

func TestTheDebianPackageHasEverythingAndRuns(t *testing.T) {
	t.Parallel()
	dist, root := t.TempDir(), t.TempDir()
	in := newInstall(t)
	path := strings.TrimSpace(inRepository(t, "env", "DIST="+dist, "scripts/package.sh"))

	info := inRepository(t, "dpkg-deb", "--info", path)
	for _, want := range []string{"\n Package: agbox\n", "\n Maintainer: ", "\n Recommends: docker.io | docker-ce | moby-engine, git\n", "\n Description: "} {
		if !strings.Contains(info, want) {
			t.Errorf("dpkg-deb --info has no %q:\n%s", want, info)
		}
	}
	built := strings.TrimPrefix(in.Must(t, "--version"), "agbox ")
	version := strings.TrimSpace(inRepository(t, "scripts/debian-version.sh", built))
	if got := strings.TrimSpace(inRepository(t, "dpkg-deb", "--field", path, "Version")); got != version {
		t.Errorf("the package has version %q, want %q", got, version)
	}

	list := inRepository(t, "dpkg-deb", "-c", path)
	for _, want := range []string{
		"drwxr-xr-x ./",
		"-rwxr-xr-x ./usr/bin/agbox", "-rwxr-xr-x ./usr/bin/agboxd", "-rwxr-xr-x ./usr/bin/agbox-init",
		"-rw-r--r-- ./usr/lib/systemd/user/agboxd.service", "-rw-r--r-- ./usr/lib/systemd/user/agboxd.socket",
		"-rw-r--r-- ./usr/share/man/man1/agbox.1.gz", "-rw-r--r-- ./usr/share/man/man1/agbox-daemon-upgrade.1.gz",
		"-rw-r--r-- ./usr/share/bash-completion/completions/agbox", "-rw-r--r-- ./usr/share/fish/vendor_completions.d/agbox.fish",
		"-rw-r--r-- ./usr/share/zsh/vendor-completions/_agbox", "-rw-r--r-- ./usr/share/doc/agbox/copyright",
		"-rw-r--r-- ./usr/share/agbox/proto/agbox/v1/service.proto", "-rw-r--r-- ./usr/share/agbox/proto/buf/validate/validate.proto",
		"-rw-r--r-- ./usr/share/doc/agbox/examples/javascript/follow.js",
	} {
		if !listed(list, want) {
			t.Errorf("dpkg-deb -c does not list %q of root:\n%s", want, list)
		}
	}

	dpkg := scratchRoot(t, root)
	dpkg("-i", path)
	dpkg("-V", "agbox")
	wantLicenses(t, filepath.Join(root, "usr"))
	own := in.Bin
	in.Bin = filepath.Join(root, "usr/bin")
	if out := in.Must(t, "run", "--rm", "--image", harness.ImageBusybox, "--", "echo", "from the package"); out != "from the package" {
		t.Errorf("the command printed %q", out)
	}
	wantExample(t, in, filepath.Join(root, "usr/share"))
	in.Must(t, "daemon", "stop")
	in.Bin = own
	dpkg("-P", "agbox")
	if left, err := filepath.Glob(filepath.Join(root, "[^v]*")); err != nil || len(left) > 0 { // all but the list of packages in /var
		t.Errorf("after the removal of the package there are %q, %v", left, err)
	}
}

// wantExample checks that the definitions of the API in a folder share need nothing else, and runs
// the example beside them.
func wantExample(t *testing.T, in *install, share string) {
	t.Helper()
	proto, example, dir := filepath.Join(share, "agbox/proto"), filepath.Join(share, "doc/agbox/examples/javascript"), t.TempDir()
	inRepository(t, "go", "tool", "-modfile=tools/go.mod", "buf", "build", proto)
	program, err := os.ReadFile(filepath.Join(example, "follow.js"))
	if err != nil {
		t.Fatal(err)
	}
	javascript(t, example, string(program), dir)
	in.Create(t, "demo", harness.ImageBusybox)
	job := in.Must(t, "exec", "-d", "demo", "--", "sh", "-c", "echo for an editor; echo and more >&2")
	cmd := exec.CommandContext(harness.Bounded(t), "node", filepath.Join(dir, "follow.js"), in.Socket(), job, filepath.Join(dir, "proto")+":"+proto)
	var out, told strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &told
	if err := cmd.Run(); err != nil {
		t.Fatalf("node: %v\n%s", err, told.String())
	}
	want := toldAtEnd{State: "EXEC_STATE_FINISHED", Stdout: "14", Stderr: "9", Opened: 1}
	var end toldAtEnd
	if err := json.Unmarshal([]byte(told.String()), &end); err != nil || end != want || !strings.Contains(out.String(), "for an editor\n") {
		t.Errorf("the example printed %q and told %s (%v); want %+v", out.String(), told.String(), err, want)
	}
	in.Must(t, "rm", "--wait", "-f", "demo")
}

// scratchRoot makes the list of packages of a root folder, and returns a function that runs
// dpkg there.
func scratchRoot(t *testing.T, root string) (dpkg func(args ...string)) {
	t.Helper()
	for _, name := range []string{"info", "updates"} {
		if err := os.MkdirAll(filepath.Join(root, "var/lib/dpkg", name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(root, "var/lib/dpkg/status"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	return func(args ...string) {
		t.Helper()
		inRepository(t, "dpkg", append([]string{"--root=" + root, "--log=/dev/null"}, args...)...)
	}
}

// wantLicenses checks that the package has the licence of each module in its programs.
func wantLicenses(t *testing.T, usr string) {
	t.Helper()
	doc := filepath.Join(usr, "share/doc/agbox")
	all, err := os.ReadFile(filepath.Join(doc, "copyright"))
	if err != nil {
		t.Fatal(err)
	}
	modules := 0
	for _, program := range []string{"agbox", "agboxd", "agbox-init"} {
		info, err := buildinfo.ReadFile(filepath.Join(usr, "bin", program))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range append(info.Deps, &debug.Module{Path: "go", Version: info.GoVersion}) {
			modules++
			if !strings.Contains(string(all), "\n  "+m.Path+" "+m.Version+" ") {
				t.Errorf("the copyright has no line for %s %s in %s", m.Path, m.Version, program)
			}
			if text, err := os.ReadFile(filepath.Join(doc, "licenses", strings.ReplaceAll(m.Path, "/", "_")+".txt")); err != nil || len(text) < 500 {
				t.Errorf("the licence of %s has %d bytes, %v", m.Path, len(text), err)
			}
		}
	}
	if modules < 30 {
		t.Errorf("the programs name only %d modules", modules)
	}
}

// listed reports whether a list of dpkg-deb -c has an entry of root with that mode and
// path, given as "MODE PATH".
func listed(list, entry string) bool {
	for line := range strings.Lines(list) {
		// MODE OWNER/GROUP SIZE DATE TIME PATH
		if f := strings.Fields(line); len(f) == 6 && f[0]+" "+f[5] == entry && f[1] == "root/root" {
			return true
		}
	}
	return false
}

func TestDebianVersionsSortAsTheCommits(t *testing.T) {
	t.Parallel()
	before := "0~dev"
	for _, c := range []struct{ described, want string }{
		{"v1.2.0-rc.1", "1.2.0~rc.1"},
		{"v1.2.0-rc.1-3-gabcdef0", "1.2.0~rc.1+3.gabcdef0"},
		{"v1.2.0-rc-2", "1.2.0~rc.2"},
		{"v1.2.0", "1.2.0"},
		{"v1.2.0-dirty", "1.2.0+dirty"},
		{"v1.2.1", "1.2.1"},
		{"v1.2.1-9-g1a2b3c4", "1.2.1+9.g1a2b3c4"},
		{"v1.2.1-14-g1a2b3c4", "1.2.1+14.g1a2b3c4"},
		{"v1.2.1-14-g1a2b3c4-dirty", "1.2.1+14.g1a2b3c4.dirty"},
		{"v1.10.0", "1.10.0"},
	} {
		got := strings.TrimSpace(inRepository(t, "scripts/debian-version.sh", c.described))
		if got != c.want {
			t.Errorf("%s becomes %q, want %q", c.described, got, c.want)
		}
		inRepository(t, "dpkg", "--compare-versions", before, "lt", got)
		before = got
	}
	commit := strings.TrimSpace(inRepository(t, "git", "rev-parse", "--short", "HEAD"))
	count := strings.TrimSpace(inRepository(t, "git", "rev-list", "--count", "HEAD"))
	if got, want := strings.TrimSpace(inRepository(t, "scripts/debian-version.sh", commit)), fmt.Sprintf("0~%s.g%s", count, commit); got != want {
		t.Errorf("%s becomes %q, want %q", commit, got, want)
	}
	for _, tag := range []string{"release-1", "v1.2", "nightly"} {
		cmd := exec.CommandContext(t.Context(), "../scripts/debian-version.sh", tag)
		if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "'"+tag+"' is no version") {
			t.Errorf("%s: %v, %s", tag, err, out)
		}
	}
}
