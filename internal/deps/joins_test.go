package deps

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
)

// All arguments of a call are evaluated: a rename among them also comes after a write that failed.
func TestNoRenameIsAmongErrorsThatAreJoined(t *testing.T) {
	err := filepath.WalkDir("../..", func(path string, e fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		files := token.NewFileSet()
		file, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			joined, ok := n.(*ast.CallExpr)
			if !ok || called(joined) != "errors.Join" && called(joined) != "cmp.Or" {
				return true
			}
			for _, arg := range joined.Args {
				if call, ok := arg.(*ast.CallExpr); ok && strings.Contains(called(call), ".Rename") {
					t.Errorf("%s: %s is called also if an argument before it is an error", files.Position(call.Pos()), called(call))
				}
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// called names the function of a package that is called; otherwise it is empty.
func called(call *ast.CallExpr) string {
	if f, ok := call.Fun.(*ast.SelectorExpr); ok {
		if of, ok := f.X.(*ast.Ident); ok {
			return of.Name + "." + f.Sel.Name
		}
	}
	return ""
}
