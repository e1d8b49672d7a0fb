package main

import (
	"os"
	"path/filepath"
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
