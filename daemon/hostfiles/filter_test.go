package hostfiles

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/agbox/agbox/workspace/archive"
)

// copied returns the files that a copy of a folder has.
func copied(t *testing.T, one Copy) []string {
	t.Helper()
	tree, err := Checker{}.Open(one)
	if err != nil {
		t.Fatal(err)
	}
	defer tree.Close()
	var out bytes.Buffer
	if err := tree.Pack(t.Context(), &out, "w", archive.Owner{}, nil, nil); err != nil {
		t.Fatal(err)
	}
	var names []string
	for in := tar.NewReader(&out); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			slices.Sort(names)
			return names
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Typeflag != tar.TypeDir && !strings.Contains(h.Name, ".git/") {
			names = append(names, strings.TrimPrefix(h.Name, "w/"))
		}
	}
}

// project makes a repository with these files, of which those of add are added.
func project(t *testing.T, dir string, files map[string]string, add ...string) {
	t.Helper()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	runs(t, dir, "init", "-q")
	runs(t, dir, append([]string{"add", "-f", "--"}, add...)...)
}

func runs(t *testing.T, dir string, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "git", append([]string{"-c", "protocol.file.allow=always", "-c", "user.name=x", "-c", "user.email=x@x.test"}, args...)...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("git %v: %v, %s", args, err, out)
	}
}

func TestIgnoredFilesAreCountedWhileTheyAreCopied(t *testing.T) {
	dir := t.TempDir()
	project(t, dir, map[string]string{
		".gitignore": "*.log\n/dist/\n.env\n", "a.c": "", "a.log": "", "dist/x": "", "dist/deep/y": "", "dist/.gitignore": strings.Repeat("x\n", 20_000),
		"sub/.env": "", "sub/.gitignore": "z\n", "sub/z": "", "sub/b.c": "", "not.log": "",
	}, "a.c")
	var seen Ignored
	one := Copy{Source: dir, Base: true, Ignored: &seen, Excludes: []string{"not.log"}}
	for range 2 { // a copy may be repeated
		copied(t, one)
		if got := strings.Join(seen.Names(), " "); seen.Files != 6 || got != "sub/.env a.log dist/ sub/z" {
			t.Errorf("%d files are ignored, among them %s", seen.Files, got)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, ".gitignore"), bytes.Repeat([]byte("x\n"), 20_000), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := copied(t, one); !slices.Contains(got, "a.c") {
		t.Errorf("with a .gitignore that cannot be used, the copy has %v", got)
	}
}

func TestOnlyWhatGitTracksIsCopied(t *testing.T) {
	below, dir := t.TempDir(), t.TempDir()
	project(t, below, map[string]string{"in": "", "out": ""}, "in")
	runs(t, below, "commit", "-qm", "x")
	project(t, dir, map[string]string{".gitignore": "*.log\n", "a.c": "", "kept.log": "", "a.log": "", "new.c": "", "sub/b.c": "", "sub/new.c": "", "only/new.c": ""},
		"a.c", ".gitignore", "kept.log", "sub/b.c")
	runs(t, dir, "submodule", "--quiet", "add", below, "mod")
	if err := os.WriteFile(filepath.Join(dir, "mod", "new"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	// What the repository says about programs is not executed.
	ran := filepath.Join(t.TempDir(), "ran")
	runs(t, dir, "config", "core.fsmonitor", "touch "+ran)
	if got := strings.Join(copied(t, Copy{Source: dir, Base: true, Tracked: true}), " "); got != ".gitignore .gitmodules a.c kept.log mod/.git mod/in sub/b.c" {
		t.Errorf("the copy has %s", got)
	}
	if got := strings.Join(copied(t, Copy{Source: filepath.Join(dir, "sub"), Base: true, Tracked: true}), " "); got != "b.c" {
		t.Errorf("the copy of a folder below has %s", got)
	}
	if _, err := os.Stat(ran); err == nil {
		t.Error("a program that the repository names was executed")
	}
	tree, err := Checker{}.Open(Copy{Source: t.TempDir(), Base: true, Tracked: true})
	if err != nil {
		t.Fatal(err)
	}
	defer tree.Close()
	if err := tree.Pack(t.Context(), io.Discard, "w", archive.Owner{}, nil, nil); err == nil || !strings.Contains(err.Error(), "What git tracks of ") {
		t.Errorf("outside of a repository: %v", err)
	}
}
