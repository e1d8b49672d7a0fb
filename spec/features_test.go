package spec

import (
	"strings"
	"testing"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// withFeatures is a devcontainer.json with the descriptions of its features.
func withFeatures(text string, features ...*agboxv1.NamedFile) *agboxv1.CreateSandboxRequest {
	req := base("/project/.devcontainer/devcontainer.json", text, nil)
	req.BaseFiles[0].Files = features
	return req
}

func described(name, path, text string) *agboxv1.NamedFile {
	return &agboxv1.NamedFile{Name: name, Path: path, Content: []byte(text)}
}

func TestFeaturesOfADevcontainer(t *testing.T) {
	tool := described("registry.example/f/tool:1", "/cache/tool/devcontainer-feature.json", `{
  "id": "tool", "version": "1.2.3", "dependsOn": {"./common": {"shell": "zsh"}},
  "containerEnv": {"PATH": "/tool:${PATH}"}, "entrypoint": "/start", "capAdd": ["SYS_PTRACE"],
  "mounts": [{"source": "cache", "target": "/cache", "type": "volume"}], "customizations": {}, "postCreateCommand": "tool init"}`)
	tool.Digest = "sha256:00"
	r := resolve(t, withFeatures(`{
  "image": "debian", "remoteUser": "dev", "workspaceMount": "", "postCreateCommand": "make",
  "features": {"registry.example/f/tool:1": "2", "./last": {}}}`,
		tool,
		described("./common", "/project/.devcontainer/common/devcontainer-feature.json", `{"id": "common", "options": {"shell": {"default": "bash"}, "more": {"default": true}}}`),
		described("./last", "/project/.devcontainer/last/devcontainer-feature.json", `{"id": "last", "installsAfter": ["registry.example/f/tool"], "postStartCommand": "x"}`)))
	if r.Spec == nil {
		t.Fatal(r.Problems)
	}
	got := r.Spec.GetBuild()
	if got.GetFeatures()[1].GetReference() != "registry.example/f/tool@sha256:00" {
		t.Errorf("the reference is %q", got.GetFeatures()[1].GetReference())
	}
	got.Features[1].Reference = ""
	wantYAML(t, r.Spec, `
user: dev
build:
  image: debian
  features:
    - source: /project/.devcontainer/common
      options: {SHELL: zsh, MORE: "true", _REMOTE_USER: dev}
    - source: /cache/tool
      options: {VERSION: "2", _REMOTE_USER: dev}
      envs: {PATH: "/tool:${PATH}"}
      entrypoint: /start
    - source: /project/.devcontainer/last
      options: {_REMOTE_USER: dev}
security: {cap_add: [SYS_PTRACE]}
volumes: ["cache:/cache"]
post_create: ["tool init", x, make]
`)
	for path, want := range map[string]string{"security.cap_add.0": "/cache/tool/devcontainer-feature.json", "build.features.1": "/project/.devcontainer/devcontainer.json"} {
		var steps []any
		for step := range strings.SplitSeq(path, ".") {
			if step == "0" || step == "1" {
				steps = append(steps, int(step[0]-'0'))
			} else {
				steps = append(steps, step)
			}
		}
		if at := r.Origin(steps...); at.File != want {
			t.Errorf("%s is from %s, want %s", path, at.File, want)
		}
	}
}

func TestAnotherImageKeepsTheFeatures(t *testing.T) {
	for _, text := range []string{`"image": "debian"`, `"build": {"dockerfile": "Dockerfile"}`} {
		req := withFeatures(`{`+text+`, "workspaceMount": "", "features": {"./f": {}}}`, described("./f", "/project/.devcontainer/f/devcontainer-feature.json", `{}`))
		req.CreateSpec = &agboxv1.CreateSpec{Image: "mine"}
		wantYAML(t, good(t, req), `build: {image: mine, features: [{source: /project/.devcontainer/f}]}`)
	}
}

func TestFeaturesThatCannotBeUsedAreProblems(t *testing.T) {
	for text, want := range map[string]string{
		`{"go": {}}`:                         "features.go: \"go\" is no feature that is read here",
		`{"./missing": {}}`:                  "features../missing: The feature ./missing did not come with the request",
		`["./f"]`:                            "features: Here should be an object from features to their options",
		`{"./f": {"shell": "fish"}}`:         "features../f: \"fish\" is no value of the option shell: write one of bash, zsh",
		`{"./broken": {}}`:                   "",
		`{"./one": {}, "./two": {}}`:         "features: The features ./one, ./two wait for each other",
		`{"https://registry.example/f": {}}`: "is no feature that is read here",
	} {
		r := resolve(t, withFeatures(`{"image": "x", "workspaceMount": "", "features": `+text+`}`,
			described("./f", "/project/.devcontainer/f/devcontainer-feature.json", `{"options": {"shell": {"enum": ["bash", "zsh"]}}}`),
			described("./broken", "/project/.devcontainer/broken/devcontainer-feature.json", `{`),
			described("./one", "/project/.devcontainer/one/devcontainer-feature.json", `{"dependsOn": {"./two": {}}}`),
			described("./two", "/project/.devcontainer/two/devcontainer-feature.json", `{"installsAfter": ["./one"]}`)))
		if r.Spec != nil || len(r.Problems) != 1 {
			t.Errorf("%s: %v", text, r.Problems)
			continue
		}
		says(t, text, r.Problems, want)
	}
}

func TestAFileMustNotSayThatAFeatureIsOfARegistry(t *testing.T) {
	req := &agboxv1.CreateSandboxRequest{ConfigDir: "/project", ConfigYaml: []byte("build: {image: x, features: [{source: /secret, reference: a}]}\n")}
	if r := resolve(t, req); r.Spec != nil || !strings.Contains(r.Problems[0].GetField(), "reference") {
		t.Errorf("%v", r.Problems)
	}
}
