package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

func TestPrimaryOfAComposeFileIsTheServiceThatIsBuilt(t *testing.T) {
	for text, want := range map[string]string{
		"services: {db: {image: x}, web: {build: .}, api: {build: .}}":  "web",
		"services: {db: {image: x}, web: {image: y}}":                   "db",
		"services: {db: {image: x, x-agbox: primary}, web: {build: .}}": "",
		"services: 5": "", "[": "", "{}": "",
	} {
		if got := primaryOf([]byte(text)); got != want {
			t.Errorf("%s: the primary is %q, want %q", text, got, want)
		}
	}
}

func TestSandboxOfAFolderHasItsName(t *testing.T) {
	for base, want := range map[string]string{"My Shop": "my-shop", "_x": "x", "a.b": "a.b"} {
		dir := filepath.Join(t.TempDir(), base)
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		t.Chdir(dir)
		if _, got, err := folderOf(""); err != nil || got != want {
			t.Errorf("the sandbox of %s is called %q, want %q (%v)", base, got, want, err)
		}
	}
}

// TestUpTakesUpWhatAnotherOneMakesAtTheSameTime: both find no sandbox of the folder, and the
// other one is first to make it.
func TestUpTakesUpWhatAnotherOneMakesAtTheSameTime(t *testing.T) {
	inFolder(t, nil)
	d, socket := serveScripted(t)
	d.creating = func(in *agboxv1.CreateSandboxRequest) {
		d.creating = nil
		first := proto.CloneOf(in)
		first.SandboxId = "first"
		if _, err := d.CreateSandbox(t.Context(), first); err != nil {
			t.Error(err)
		}
	}
	code, out, errs := agbox(t, socket, "up", "--name", "shop", "--image", "good", "--no-workspace")
	if code != 0 || out != "first\n" || len(d.boxes) != 1 {
		t.Errorf("up ends with %d, %q, %q and %d sandboxes", code, out, errs, len(d.boxes))
	}
	d.creating = func(in *agboxv1.CreateSandboxRequest) {
		d.creating = nil
		d.boxes = append(d.boxes, &agboxv1.SandboxHandle{SandboxId: "strange", Name: in.CreateSpec.Name})
	}
	code, _, errs = agbox(t, socket, "up", "--name", "other", "--image", "good", "--no-workspace")
	if code != 1 || !strings.Contains(errs, "sandbox other is not that of this folder") {
		t.Errorf("with a sandbox of another folder up ends with %d and %q", code, errs)
	}
}

func TestSpecsAreTheSameBesidesSecretsAndLinks(t *testing.T) {
	dir := resolvedLinks(t.TempDir())
	if err := os.Symlink(dir, filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	made := &agboxv1.CreateSpec{
		Image: "x", Envs: map[string]string{"API_KEY": "(secret)", "A": "1"}, SourcesResolved: true,
		Workspace: &agboxv1.WorkspaceSpec{Source: dir}, Mounts: []*agboxv1.MountSpec{{Source: dir, Target: "/m"}},
		Services: []*agboxv1.ServiceSpec{{Name: "s", Build: &agboxv1.BuildSpec{Context: dir}}},
	}
	now := proto.CloneOf(made)
	link := filepath.Join(dir, "link")
	now.Envs["API_KEY"], now.SourcesResolved, now.Workspace.Source, now.Mounts[0].Source, now.Services[0].Build.Context = "k", false, link, link, link
	if got := differs(now, made); got != "" {
		t.Errorf("they differ in %s", got)
	}
	now.Envs["A"], now.Command = "2", []string{"ls"}
	if got := differs(now, made); got != "envs, command" {
		t.Errorf("they differ in %q", got)
	}
	if elsewhere := proto.CloneOf(made); differs(elsewhere, made) != "" {
		t.Error("a copy differs")
	} else if elsewhere.Workspace.Source = filepath.Join(dir, "other"); differs(elsewhere, made) != "workspace" {
		t.Error("another folder does not differ")
	}
}
