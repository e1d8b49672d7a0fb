package deps

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// mapFile is the map, and documents are what else tells of files of this repository.
const mapFile = "ARCHITECTURE.md"

var documents = []string{mapFile, "agents/README.md", "daemon/README.md", "daemon/machine/README.md", "docs/development.md", "docs/limits.md", "runtime/README.md"}

var (
	// quoted finds what the map writes as code.
	quoted = regexp.MustCompile("`[^`\n]+`")
	// source matches a name of a file of this repository. Files that only an install has are
	// .yaml, .json and others.
	source = regexp.MustCompile(`^[\w./-]+\.(go|md|proto|tsv|txt|sh)$`)
	// below matches a path with at least two parts, of which the first is no host name.
	below = regexp.MustCompile(`^[.\w-]*\w(/[\w.-]+)+/?$`)
)

// quotes returns what a document has in back quotes, without its blocks of code.
func quotes(t *testing.T, document string) []string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("../..", document))
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	for i, part := range strings.Split(string(raw), "```") {
		if i%2 == 0 {
			text.WriteString(part)
		}
	}
	all := quoted.FindAllString(text.String(), -1)
	for i, q := range all {
		all[i] = strings.Trim(q, "`")
	}
	return all
}

// tree returns all files and folders of this repository, relative to its root. It leaves
// out what make and tools put there.
func tree(t *testing.T) []string {
	t.Helper()
	var all []string
	root := os.DirFS("../..")
	err := fs.WalkDir(root, ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() && slices.Contains([]string{".git", "bin", ".build", "node_modules"}, entry.Name()) {
			return filepath.SkipDir
		}
		all = append(all, path)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestEachPathInADocumentLeadsToOnePlace(t *testing.T) {
	paths := tree(t)
	checked := 0
	for _, document := range documents {
		checked += checkPaths(t, document, paths)
	}
	if checked < 200 {
		t.Errorf("only %d paths were found", checked)
	}
}

// checkPaths checks the paths in a document, and returns how many there are.
func checkPaths(t *testing.T, document string, paths []string) (checked int) {
	for _, q := range quotes(t, document) {
		host, _, _ := strings.Cut(strings.TrimPrefix(q, "."), "/")
		if !source.MatchString(q) && (!below.MatchString(q) || strings.Contains(host, ".")) {
			continue
		}
		checked++
		want := strings.TrimSuffix(q, "/")
		var found []string
		for _, path := range paths {
			if path == want || strings.HasSuffix(path, "/"+want) {
				found = append(found, path)
			}
		}
		if len(found) > 1 && slices.Contains(found, want) {
			continue // a path from the root on
		}
		switch len(found) {
		case 0:
			t.Errorf("%s is in %s, but there is no such file or folder", q, document)
		case 1:
		default:
			t.Errorf("%s in %s may be any of %s: name the folder too", q, document, strings.Join(found, ", "))
		}
	}
	return checked
}

func TestTheMapNamesEachPackage(t *testing.T) {
	named := quotes(t, mapFile)
	for _, pkg := range list(t, "./...") {
		if path := strings.TrimPrefix(pkg, module); !slices.Contains(named, path) {
			t.Errorf("ARCHITECTURE.md does not name the package %s", path)
		}
	}
}
