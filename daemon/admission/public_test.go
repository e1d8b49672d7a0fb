package admission

import (
	"flag"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/spec/document"
	"github.com/agbox/agbox/spec/feature"
)

var update = flag.Bool("update", false, "write the golden files")

// verdictOf resolves a file of another tool in a folder that has what the file names, as
// the CLI does, and returns how it came out: clean, told or refused, with the sentences.
func verdictOf(t *testing.T, name string, content []byte, primary string, files []string) (verdict string, sentences []string) {
	t.Helper()
	above := folder(t)
	dir := filepath.Join(above, "project")
	for _, file := range append(files, filepath.Dir(name)+"/") {
		path := filepath.Join(dir, file)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(file, "/") {
			path = filepath.Join(path, ".keep")
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(path, nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	result := bare(t).Resolve(t.Context(), &agboxv1.CreateSandboxRequest{
		ConfigDir: dir, HomeDir: "/nowhere", UntrustedFiles: true,
		BaseFiles: []*agboxv1.ConfigFile{{
			Path: filepath.Join(dir, name), Content: content, Primary: primary, Format: document.FormatOf(name),
			Files: append(featuresOf(t, dir, content), composedOf(t, dir, content)...),
		}},
	})
	say := func(mark string, all []*agboxv1.SpecProblem) {
		for _, p := range all {
			sentences = append(sentences, fmt.Sprintf("  %s %s: %s", mark, p.GetField(), strings.NewReplacer(dir, "DIR", above, "ABOVE").Replace(p.GetMessage())))
		}
	}
	say("!", result.Problems)
	say("-", result.Notices)
	switch {
	case len(result.Problems) > 0:
		return "refused", sentences
	case len(result.Notices) > 0:
		return "told", sentences
	}
	return "clean", sentences
}

// featuresOf returns the features of a devcontainer.json as if they had been fetched. Their
// descriptions are below testdata.
func featuresOf(t *testing.T, dir string, content []byte) []*agboxv1.NamedFile {
	t.Helper()
	var all []*agboxv1.NamedFile
	for _, name := range feature.Named(content) {
		id := path.Base(feature.Name(name))
		described, err := os.ReadFile(filepath.Join("testdata", "features", id+".json"))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(filepath.Join(dir, "cache", id), 0o755); err != nil {
			t.Fatal(err)
		}
		all = append(all, &agboxv1.NamedFile{Name: name, Path: filepath.Join(dir, "cache", id, feature.FileName), Content: described, Digest: "sha256:0"})
	}
	return all
}

// composedOf returns the compose files of a devcontainer.json, which are below testdata.
func composedOf(t *testing.T, dir string, content []byte) []*agboxv1.NamedFile {
	t.Helper()
	var all []*agboxv1.NamedFile
	for _, named := range document.NamedIn(agboxv1.ConfigFormat_CONFIG_FORMAT_DEVCONTAINER, content, nil) {
		text, err := os.ReadFile(filepath.Join("testdata", "devcontainer", named.Name))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, &agboxv1.NamedFile{Name: named.Name, Path: filepath.Join(dir, ".devcontainer", named.Name), Content: text})
	}
	return all
}

// public classifies all files of a folder below testdata, compares with its golden file,
// and fails if fewer than least work.
func public(t *testing.T, kind, pattern string, all, least int, classify func(path string, content []byte) (string, []string)) {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join("testdata", kind, pattern))
	if err != nil || len(paths) != all {
		t.Fatalf("there are %d files, want %d (%v)", len(paths), all, err)
	}
	var b strings.Builder
	count := make(map[string]int)
	for _, path := range paths {
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		verdict, sentences := classify(path, content)
		count[verdict]++
		name := strings.TrimSuffix(filepath.Base(path), filepath.Ext(path))
		fmt.Fprintf(&b, "%s: %s\n%s", name, verdict, strings.Join(append(sentences, ""), "\n"))
	}
	fmt.Fprintf(&b, "\n%d clean, %d told, %d refused\n", count["clean"], count["told"], count["refused"])
	if works := count["clean"] + count["told"]; works < least {
		t.Errorf("%d of %d files work, want %d:\n%s", works, all, least, b.String())
	}
	golden := filepath.Join("testdata", kind+".golden")
	if *update {
		if err := os.WriteFile(golden, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil || string(want) != b.String() {
		t.Errorf("the verdicts differ from %s (%v), which -update writes:\n%s", golden, err, b.String())
	}
}

func TestPublicComposeFiles(t *testing.T) {
	public(t, "compose", "*.yaml", 39, 30, func(path string, content []byte) (string, []string) {
		node := document.YAML(path, content, new(document.Report)).Get("x-test")
		var files []string
		for _, item := range node.Get("files").Items {
			files = append(files, item.Text)
		}
		return verdictOf(t, "compose.yaml", content, node.Get("primary").Text, files)
	})
}

func TestPublicDevcontainers(t *testing.T) {
	public(t, "devcontainer", "*.json", 12, 10, func(_ string, content []byte) (string, []string) {
		return verdictOf(t, ".devcontainer/devcontainer.json", content, "", []string{".devcontainer/Dockerfile"})
	})
}
