package client

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// project writes files below a new folder.
func project(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestFilesThatADevcontainerNamesAreRead(t *testing.T) {
	dir := project(t, map[string]string{
		".devcontainer/devcontainer.json":           `{"dockerComposeFile": "../compose.yml", "service": "app", "features": {"./f": {}}}`,
		".devcontainer/f/devcontainer-feature.json": `{"dependsOn": {"./g": {}}}`, ".devcontainer/f/install.sh": "f",
		".devcontainer/g/devcontainer-feature.json": `{}`, ".devcontainer/g/install.sh": "g",
		"compose.yml":   "services: {app: {image: \"${IMAGE}\", extends: {file: sub/other.yml, service: x}, env_file: [a.env, none.env]}}",
		"sub/other.yml": "services: {x: {env_file: b.env}}", "a.env": "A=1", "sub/b.env": "B=1", ".env": "IMAGE=debian",
	})
	in, err := SpecFiles{
		Bases: []SpecBase{{File: filepath.Join(dir, ".devcontainer/devcontainer.json")}}, LookupEnv: func(string) (string, bool) { return "", false },
	}.Load()
	if err != nil {
		t.Fatal(err)
	}
	var sent, shown []string
	for _, f := range in.Request.GetBaseFiles()[0].GetFiles() {
		sent = append(sent, strings.TrimPrefix(f.GetPath(), dir+"/"))
		if strings.HasSuffix(f.GetPath(), "/compose.yml") && f.GetVariables()["IMAGE"] != "debian" {
			t.Errorf("the variables are %v", f.GetVariables())
		}
	}
	want := []string{".devcontainer/f/devcontainer-feature.json", ".devcontainer/g/devcontainer-feature.json", "compose.yml", "a.env", "sub/other.yml", "sub/b.env"}
	if !slices.Equal(sent, want) {
		t.Errorf("sent are %q, want %q", sent, want)
	}
	for _, f := range in.Files {
		shown = append(shown, strings.TrimPrefix(f.Path, dir+"/"))
		if secret := strings.HasSuffix(f.Path, ".env"); secret != f.Secret {
			t.Errorf("%s is secret: %v", f.Path, f.Secret)
		}
	}
	for _, name := range append(want, ".devcontainer/f/install.sh", ".env") {
		if !slices.Contains(shown, name) {
			t.Errorf("%s is not among the files that a person agrees to: %q", name, shown)
		}
	}
}

func TestFilesOutsideOfTheProjectAreNotRead(t *testing.T) {
	for name, text := range map[string]string{
		"a compose file": `{"dockerComposeFile": "../../compose.yml"}`,
		"a feature":      `{"features": {"../../f": {}}}`,
		"a link":         `{"dockerComposeFile": "link.yml"}`,
	} {
		dir := project(t, map[string]string{"compose.yml": "services: {}", "f/devcontainer-feature.json": "{}", "f/install.sh": "", "project/.devcontainer/devcontainer.json": text})
		if err := os.Symlink(filepath.Join(dir, "compose.yml"), filepath.Join(dir, "project/.devcontainer/link.yml")); err != nil {
			t.Fatal(err)
		}
		if _, err := (SpecFiles{Bases: []SpecBase{{File: filepath.Join(dir, "project/.devcontainer/devcontainer.json")}}}).Load(); err == nil {
			t.Errorf("%s outside of the project was read", name)
		}
	}
}

func TestDockerfilesAreAmongWhatAPersonAgreesTo(t *testing.T) {
	for name, text := range map[string]string{
		"agbox.yaml":                      "build: {context: web, dockerfile: Dockerfile.dev}\n",
		"compose.yaml":                    "services: {a: {build: {context: web, dockerfile: Dockerfile.dev}}}\n",
		".devcontainer/devcontainer.json": `{"build": {"context": "..", "dockerfile": "../web/Dockerfile.dev"}}`,
	} {
		dir := project(t, map[string]string{name: text, "web/Dockerfile.dev": "FROM x\n"})
		files := SpecFiles{Bases: []SpecBase{{File: filepath.Join(dir, name)}}}
		if name == "agbox.yaml" {
			files = SpecFiles{File: filepath.Join(dir, name)}
		}
		in, err := files.Load()
		if err != nil || !slices.ContainsFunc(in.Files, func(f SpecSource) bool {
			return f.Path == filepath.Join(dir, "web/Dockerfile.dev") && string(f.Content) == "FROM x\n"
		}) {
			t.Errorf("%s: the files are %v (%v)", name, in, err)
		}
	}
}

func TestVariablesInNamesAreReplacedAndProfilesComeFromTheFlag(t *testing.T) {
	dir := project(t, map[string]string{
		"compose.yaml": "include: ['${PART}.yml']\nservices: {app: {profiles: [x], env_file: '${STAGE:-dev}.env', extends: {file: '${PART}.yml', service: x}}}",
		"part.yml":     "services: {x: {env_file: '${PART}.env'}}", "dev.env": "A=1", "part.env": "B=1",
	})
	in, err := SpecFiles{
		Bases: []SpecBase{{File: filepath.Join(dir, "compose.yaml")}}, Profiles: []string{"x", "y"},
		LookupEnv: func(name string) (string, bool) { return "part", name == "PART" },
	}.Load()
	if err != nil {
		t.Fatal(err)
	}
	file := in.Request.GetBaseFiles()[0]
	var sent []string
	for _, f := range file.GetFiles() {
		sent = append(sent, strings.TrimPrefix(f.GetPath(), dir+"/"))
	}
	if want := []string{"part.yml", "part.env", "dev.env"}; !slices.Equal(sent, want) {
		t.Errorf("sent are %q, want %q", sent, want)
	}
	if got := file.GetVariables()["COMPOSE_PROFILES"]; got != "x,y" || slices.Contains(in.Variables, "COMPOSE_PROFILES") {
		t.Errorf("the profiles are %q, and these variables are asked about: %q", got, in.Variables)
	}
}
