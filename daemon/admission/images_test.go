package admission

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

func TestBuildsOfFilesAreListedAndReadOnlyTheirOwnFolder(t *testing.T) {
	outside, dir := folder(t), folder(t)
	if err := errors.Join(os.Mkdir(filepath.Join(dir, "web"), 0o700), os.Symlink(outside, filepath.Join(dir, "link"))); err != nil {
		t.Fatal(err)
	}
	for yaml, want := range map[string]string{
		"build: ./web":     "",
		"build: .":         "",
		"build: link":      "A file may build only from its own folder",
		"build: " + "..":   "A file may build only from its own folder",
		"build: ./none":    "does not exist",
		"build: " + "/etc": "is refused",
		"image: x\nservices: [{name: a, build: link}]": "A file may build only from its own folder",
	} {
		for _, untrusted := range []bool{true, false} {
			req := &agboxv1.CreateSandboxRequest{ConfigYaml: []byte(yaml + "\n"), ConfigDir: dir, HomeDir: "/nowhere", UntrustedFiles: untrusted}
			result := bare(t).Resolve(t.Context(), req)
			told := ""
			for _, p := range result.Problems {
				told += p.GetMessage()
			}
			if want := want; !untrusted && strings.HasPrefix(want, "A file may") {
				if told != "" {
					t.Errorf("%s, trusted: %s", yaml, told)
				}
			} else if !strings.Contains(told, want) || (told != "") != (want != "") {
				t.Errorf("%s, untrusted %t: %q, want %q", yaml, untrusted, told, want)
			}
		}
	}
	got := requests(t, &agboxv1.CreateSandboxRequest{ConfigYaml: []byte("build: ./web\nservices:\n- {name: a, build: {context: ., dockerfile: d}}\n"), ConfigDir: dir, HomeDir: "/nowhere"})
	want := "! build: Dockerfile from " + dir + "/web: its commands run in the engine's own network, and may reach this machine (agbox.yaml:1 build)\n" +
		"! build: service a: d from " + dir + ": its commands run in the engine's own network, and may reach this machine (agbox.yaml:3 services[0].build)"
	if got != want {
		t.Errorf("the requests are\n%s\nwant\n%s", got, want)
	}
}

func TestBuildContextsOfUntrustedFilesAreStoredWithoutLinks(t *testing.T) {
	dir := folder(t)
	if err := errors.Join(os.Mkdir(filepath.Join(dir, "web"), 0o700), os.Symlink("web", filepath.Join(dir, "link"))); err != nil {
		t.Fatal(err)
	}
	req := &agboxv1.CreateSandboxRequest{ConfigYaml: []byte("build: link\n"), ConfigDir: dir, HomeDir: "/nowhere", UntrustedFiles: true}
	asked := newRequestList(req, bare(t).merge(req))
	s := asked.result.Draft()
	asked.resolveSources(s)
	if s.GetBuild().GetContext() != filepath.Join(dir, "web") || !s.GetSourcesResolved() {
		t.Errorf("the spec is %v", s)
	}
}

func TestFeaturesOfFilesAreListedAndReadOnlyTheirOwnFolder(t *testing.T) {
	outside, dir := folder(t), folder(t)
	for _, path := range []string{filepath.Join(outside, "f"), filepath.Join(dir, ".devcontainer", "f")} {
		if err := os.MkdirAll(path, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	ask := func(path, digest string) *agboxv1.CreateSandboxRequest {
		return &agboxv1.CreateSandboxRequest{ConfigDir: dir, HomeDir: "/nowhere", UntrustedFiles: true, BaseFiles: []*agboxv1.ConfigFile{{
			Path: filepath.Join(dir, ".devcontainer/devcontainer.json"), Content: []byte(`{"image": "x", "workspaceMount": "", "features": {"registry.example/f:1": {}}}`),
			Files: []*agboxv1.NamedFile{{Name: "registry.example/f:1", Path: filepath.Join(path, "f/devcontainer-feature.json"), Content: []byte("{}"), Digest: digest}},
		}}}
	}
	for _, c := range []struct{ path, digest, want string }{
		{filepath.Join(dir, ".devcontainer"), "", ""}, {outside, "sha256:1", ""}, {outside, "", "A file may use only features in its own folder or of a registry"},
		{"/etc", "sha256:1", "is refused"},
	} {
		told := ""
		for _, p := range bare(t).Resolve(t.Context(), ask(c.path, c.digest)).Problems {
			told += p.GetMessage()
		}
		if !strings.Contains(told, c.want) || (told != "") != (c.want != "") {
			t.Errorf("%s with the digest %q: %q, want %q", c.path, c.digest, told, c.want)
		}
	}
	want := "! feature: registry.example/f@sha256:1: its install.sh changes the image, runs in the engine's own network, and may reach this machine (devcontainer.json:1 features.registry.example/f:1)"
	if got := requests(t, ask(outside, "sha256:1")); got != want {
		t.Errorf("the requests are\n%s\nwant\n%s", got, want)
	}
}
