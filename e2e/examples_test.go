package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/agbox/agbox/e2e/internal/harness"
	"github.com/agbox/agbox/internal/ids"
)

// The public compose files and devcontainers whose facts are in the testdata of
// daemon/admission are created here. One image stands in for all others: it runs whatever
// it is told, and stays. Host ports are left to the engine, since other tests have theirs.
const publicFiles = "../daemon/admission/testdata"

// worthAlways are created by every run of the tests, the others by `make test-examples`.
var worthAlways = []string{"flask-redis", "nginx-flask-mysql", "java", "postgres"}

var verdictLine = regexp.MustCompile(`(?m)^(\S+): (clean|told)$`)

// working are the names of the public files that are not refused.
func working(t *testing.T, kind string) []string {
	t.Helper()
	golden, err := os.ReadFile(filepath.Join(publicFiles, kind+".golden"))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, found := range verdictLine.FindAllStringSubmatch(string(golden), -1) {
		names = append(names, found[1])
	}
	return names
}

// standIn builds the image that stands in for all others.
func standIn(t *testing.T, in *install) string {
	t.Helper()
	who := strings.ToLower(ids.New())
	removeBuilt(t, who)
	const stubs = "for p in go yarn java pip3 dotnet; do printf '#!/bin/sh\\n' >/bin/$p && chmod +x /bin/$p; done; echo postgres:x:70:70::/:/bin/sh >>/etc/passwd"
	dir := in.write(t, "stand-in", map[string]string{"Dockerfile": "FROM " + harness.ImageEntrypoint + "\nLABEL who=" + who + "\nRUN " + stubs + "\n"})
	tag := "agbox-test/stand-in:" + who
	in.Must(t, "image", "build", "-t", tag, dir)
	return tag
}

// dockerfile has all stages that the public files build.
func dockerfile(image string) string {
	var b strings.Builder
	for _, stage := range []string{"builder", "development", "last"} {
		fmt.Fprintf(&b, "FROM %s AS %s\n", image, stage)
	}
	return b.String()
}

// composeOf is a public compose file with other images and ports, with its primary and the
// files that it needs.
func composeOf(t *testing.T, name, image string) (text, primary string, files map[string]string) {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(publicFiles, "compose", name+".yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Test struct {
			Primary string
			Files   []string
		} `yaml:"x-test"`
		Services map[string]map[string]any
		Rest     map[string]any `yaml:",inline"`
	}
	if err := yaml.Unmarshal(content, &file); err != nil {
		t.Fatal(err)
	}
	for _, service := range file.Services {
		standInFor(service, image)
	}
	if file.Rest == nil {
		file.Rest = make(map[string]any)
	}
	file.Rest["services"] = file.Services
	out, err := yaml.Marshal(file.Rest)
	if err != nil {
		t.Fatal(err)
	}
	files = map[string]string{}
	for _, path := range file.Test.Files {
		if strings.HasSuffix(path, "/") {
			path += ".keep"
		}
		if files[path] = ""; strings.Contains(path, "Dockerfile") {
			files[path] = dockerfile(image)
		}
	}
	return string(out), file.Test.Primary, files
}

// standInFor changes what a service cannot have here: its image and programs of that, and
// ports of the host.
func standInFor(service map[string]any, image string) {
	if service["image"] != nil && service["build"] == nil {
		service["image"] = image
	}
	delete(service, "entrypoint")
	if check, ok := service["healthcheck"].(map[string]any); ok {
		check["test"] = []string{"CMD", "true"}
		check["interval"], check["start_period"] = "500ms", "0s"
	}
	ports, _ := service["ports"].([]any)
	for i, port := range ports {
		if long, ok := port.(map[string]any); ok {
			delete(long, "published")
			continue
		}
		text := fmt.Sprint(port)
		ports[i] = text[strings.LastIndex(text, ":")+1:]
	}
}

func TestPublicExamplesMakeSandboxes(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	image := standIn(t, in)
	all := os.Getenv("AGBOX_EXAMPLES") == "all"
	for _, kind := range []struct {
		name  string
		least int
		make  func(t *testing.T, name string) []string
	}{
		{"compose", 30, func(t *testing.T, name string) []string {
			text, primary, files := composeOf(t, name, image)
			files["compose.yaml"] = text
			dir := in.write(t, "compose-"+name, files)
			return []string{"--compose", filepath.Join(dir, "compose.yaml"), "--compose-primary", primary}
		}},
		{"devcontainer", 10, func(t *testing.T, name string) []string {
			return []string{"--devcontainer", devcontainerOf(t, in, name, image)}
		}},
	} {
		made := 0
		for _, name := range working(t, kind.name) {
			if !all && !slices.Contains(worthAlways, name) {
				continue
			}
			t.Run(kind.name+"/"+name, func(t *testing.T) {
				id := in.Must(t, append([]string{"create", "--trust"}, kind.make(t, name)...)...)
				in.Agbox(t, "exec", id, "--", "true").Want(t, 0)
				in.Must(t, "rm", "-f", id)
				made++
			})
		}
		if t.Logf("%s: %d sandboxes", kind.name, made); all && made < kind.least {
			t.Errorf("%d files of the kind %s make a sandbox, want %d", made, kind.name, kind.least)
		}
	}
}

// devcontainerOf writes a public devcontainer.json with other images, ports and registries.
func devcontainerOf(t *testing.T, in *install, name, image string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(publicFiles, "devcontainer", name+".json"))
	if err != nil {
		t.Fatal(err)
	}
	composed, err := os.ReadFile(filepath.Join(publicFiles, "devcontainer", "docker-compose.yml"))
	if err != nil {
		t.Fatal(err)
	}
	description, err := os.ReadFile(filepath.Join(publicFiles, "features", "java.json"))
	if err != nil {
		t.Fatal(err)
	}
	host := featureRegistry(t, map[string]string{"devcontainer-feature.json": string(description), "install.sh": "test \"$VERSION\" = none\n"})
	text := string(content)
	for pattern, with := range map[string]string{
		`"image": "[^"]*"`: `"image": "` + image + `"`, `"forwardPorts": \[[^]]*\]`: `"forwardPorts": []`,
		`registry\.example/devcontainers/features/[a-z-]*:[0-9]`: host + "/f/greet:1",
	} {
		text = regexp.MustCompile(pattern).ReplaceAllString(text, with)
	}
	dir := in.write(t, "dev-"+name, map[string]string{
		".devcontainer/devcontainer.json":  text,
		".devcontainer/Dockerfile":         dockerfile(image),
		".devcontainer/docker-compose.yml": regexp.MustCompile(`image: "[^"]*"`).ReplaceAllString(string(composed), "image: "+image),
	})
	return filepath.Join(dir, ".devcontainer/devcontainer.json")
}
