package deps

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// reading are the functions of package os that open a file by its name.
var reading = []string{"Open", "OpenFile", "OpenInRoot", "ReadFile", "ReadDir", "DirFS"}

// ownReads are the files that open something else than what a folder brings, and why.
var ownReads = map[string]string{
	"client/daemon.go":            "locks and log of the daemon, below agbox's own folder",
	"client/copy.go":              "places that the caller names, for agbox cp",
	"client/syncround.go":         "copies in a scratch folder, and what package edits has checked",
	"client/compare.go":           "writes into a scratch folder",
	"cmd/agbox/daemonlogs.go":     "logs below agbox's own folder",
	"cmd/agbox/tools.go":          "what was agreed to, below agbox's own folder",
	"cmd/agbox/config.go":         "writes a file that it makes itself",
	"client/registry/registry.go": "what was fetched, below agbox's own folder",
	"spec/docgen/main.go":         "a program of this project that reads its own documents",
	"spec/trust/trust.go":         "answers, below agbox's own folder",
}

// TestFilesOfAFolderAreReadByOnePackage refuses other ways to read what a stranger may have
// written: a FIFO hangs, a device has no end, a link leads anywhere.
func TestFilesOfAFolderAreReadByOnePackage(t *testing.T) {
	const root = "../.."
	for _, dir := range []string{"spec", "client", "cmd/agbox", "daemon/build", "workspace/gitignore", "spec/presets", "spec/projections", "client/registry", "spec/trust"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			name, err := filepath.Rel(root, path)
			if err != nil || ownReads[name] != "" {
				return err
			}
			set := token.NewFileSet()
			file, err := parser.ParseFile(set, path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			ast.Inspect(file, func(n ast.Node) bool {
				if call, ok := n.(*ast.SelectorExpr); ok && slices.Contains(reading, call.Sel.Name) {
					if pkg, ok := call.X.(*ast.Ident); ok && pkg.Name == "os" {
						t.Errorf("%s: os.%s reads by name: use internal/filesystem, or enter the file in ownReads", set.Position(call.Pos()), call.Sel.Name)
					}
				}
				return true
			})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}
