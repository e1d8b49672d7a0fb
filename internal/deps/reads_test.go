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

// ownReads are the functions that open something else than what a folder brings, and why.
var ownReads = map[string]string{
	"client/daemon.go spawn":           "the log of the daemon, below agbox's own folder",
	"client/daemon.go takeTurn":        "a lock, below agbox's own folder",
	"client/daemon.go rivalRuns":       "a lock, below agbox's own folder",
	"client/daemon.go explain":         "the log of the daemon, below agbox's own folder",
	"client/copy.go openTree":          "a place that the caller names, for agbox cp",
	"client/copy.go CopyFrom":          "a place that the caller names, for agbox cp",
	"client/syncround.go put":          "copies in a scratch folder, which package edits has checked",
	"client/compare.go add":            "writes into a scratch folder",
	"cmd/agbox/logs.go showFile":       "a log below agbox's own folder",
	"cmd/agbox/logs.go successor":      "a log below agbox's own folder",
	"cmd/agbox/truststore.go list":     "answers, below agbox's own folder",
	"cmd/agbox/tools.go extras":        "what was agreed to, below agbox's own folder",
	"cmd/agbox/config.go writeStarter": "writes a file that it makes itself",
	"client/registry.go extract":       "what was fetched, below agbox's own folder",
	"client/registry.go known":         "what was fetched, below agbox's own folder",
}

// TestFilesOfAFolderAreReadByOnePackage refuses other ways to read what a stranger may have
// written: a FIFO hangs, a device has no end, a link leads anywhere.
func TestFilesOfAFolderAreReadByOnePackage(t *testing.T) {
	const root = "../.."
	used := make(map[string]bool)
	for _, dir := range []string{"spec", "client", "cmd/agbox", "daemon/build", "workspace/gitignore"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			name, err := filepath.Rel(root, path)
			if err != nil {
				return err
			}
			set := token.NewFileSet()
			file, err := parser.ParseFile(set, path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			for _, decl := range file.Decls {
				fn, isFunc := decl.(*ast.FuncDecl)
				if isFunc && ownReads[name+" "+fn.Name.Name] != "" {
					used[name+" "+fn.Name.Name] = true
					continue
				}
				ast.Inspect(decl, func(n ast.Node) bool {
					if call, ok := n.(*ast.SelectorExpr); ok && slices.Contains(reading, call.Sel.Name) {
						if pkg, ok := call.X.(*ast.Ident); ok && pkg.Name == "os" {
							t.Errorf("%s: os.%s reads by name: use internal/filesystem, or enter the function in ownReads", set.Position(call.Pos()), call.Sel.Name)
						}
					}
					return true
				})
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for where := range ownReads {
		if !used[where] {
			t.Errorf("ownReads has %s, which is not there: take it out", where)
		}
	}
}
