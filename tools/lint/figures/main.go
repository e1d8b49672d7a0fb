// Command figures prints the size and the structure of the Go code in the current
// directory: what 'make figures' shows. With the argument "arrows" it prints only those that
// run back up. It fails if there is one.
//
// Product code is code that is not generated, and that is neither a test nor only used by
// tests or tools. An arrow goes from a file to each file of its package that declares what
// it uses, and from a folder to each folder beside it that it imports. An arrow is in a
// circle if a way leads back. Of those, as many run back up as must be removed to leave
// none in a circle (after Eades, Lin and Smyth 1993, so at most, and 0 only if there is no
// circle).
package main

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/token"
	"go/types"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/tools/go/packages"
)

const (
	module      = "github.com/agbox/agbox"
	shortFile   = 80 // lines
	longFunc    = 60 // lines
	longestList = 10
)

// apart are the folders whose code only serves tests and tools.
var apart = []string{"e2e", "tools", "scripts", "runtime/runtimetest", "daemon/guests/guesttest", "spec/badspecs"}

// file is a file of Go code that is not generated and not a test.
type file struct {
	path  string // from the root of the module
	lines int
}

type figures struct {
	fset     *token.FileSet
	files    []file
	packages int
	rooms    map[string]bool
	bare     []string         // exported names without a comment
	long     []string         // functions with more than longFunc lines
	inside   map[string]edges // by package: arrows between its files
	folders  map[string]edges // by folder: arrows between the folders in it
}

// edges are the arrows of a graph.
type edges map[string]map[string]bool

func (e edges) add(from, to string) {
	if e[from] == nil {
		e[from] = make(map[string]bool)
	}
	if e[to] == nil {
		e[to] = make(map[string]bool)
	}
	if from != to {
		e[from][to] = true
	}
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "figures:", err)
		os.Exit(1)
	}
}

func run() error {
	root, err := os.Getwd()
	if err != nil {
		return err
	}
	f := figures{fset: token.NewFileSet(), rooms: make(map[string]bool), inside: make(map[string]edges), folders: make(map[string]edges)}
	loaded, err := packages.Load(&packages.Config{
		Mode: packages.NeedName | packages.NeedFiles | packages.NeedSyntax | packages.NeedTypes | packages.NeedTypesInfo | packages.NeedImports | packages.NeedDeps,
		Fset: f.fset,
	}, "./...")
	if err != nil {
		return err
	}
	for _, pkg := range loaded {
		if len(pkg.Errors) > 0 {
			return pkg.Errors[0]
		}
		f.readPackage(root, pkg)
	}
	if len(os.Args) < 2 || os.Args[1] != "arrows" {
		f.print()
	}
	if back := printArrows("between folders of", f.folders) + printArrows("between files of", f.inside); back > 0 {
		return fmt.Errorf("%d arrows run back up: move what is declared too high to where it is used, or below", back)
	}
	return nil
}

func (f *figures) readPackage(root string, pkg *packages.Package) {
	dir := strings.TrimPrefix(strings.TrimPrefix(pkg.PkgPath, module), "/")
	if slices.ContainsFunc(apart, func(a string) bool { return within(dir, a) }) {
		return
	}
	f.packages++
	room, _, _ := strings.Cut(dir, "/")
	f.rooms[room] = true
	for imported := range pkg.Imports {
		if other, ours := strings.CutPrefix(imported, module+"/"); ours {
			f.addFolders(dir, other)
		}
	}
	own := make(edges)
	for _, syntax := range pkg.Syntax {
		if ast.IsGenerated(syntax) {
			continue
		}
		name := f.fset.Position(syntax.Package).Filename
		path, err := filepath.Rel(root, name)
		if err != nil {
			path = name
		}
		f.files = append(f.files, file{path: path, lines: f.fset.File(syntax.Package).LineCount()})
		own.add(path, path)
		f.readDeclarations(syntax)
		ast.Inspect(syntax, func(n ast.Node) bool {
			if id, ok := n.(*ast.Ident); ok {
				if declared := f.declaredIn(root, pkg, id); declared != "" {
					own.add(path, declared)
				}
			}
			return true
		})
	}
	f.inside[dir] = own
}

// declaredIn returns the file of the package that declares what id uses, if it is a
// function, a method, a type, a variable or a constant of the package.
func (f *figures) declaredIn(root string, pkg *packages.Package, id *ast.Ident) string {
	obj := pkg.TypesInfo.Uses[id]
	if obj == nil || obj.Pkg() != pkg.Types {
		return ""
	}
	fn, isFunc := obj.(*types.Func)
	method := isFunc && fn.Signature().Recv() != nil
	if obj.Parent() != pkg.Types.Scope() && !method {
		return ""
	}
	path, err := filepath.Rel(root, f.fset.Position(obj.Pos()).Filename)
	if err != nil || strings.HasSuffix(path, ".pb.go") {
		return ""
	}
	return path
}

// addFolders adds the arrows of an import to all folders that hold both packages: in each
// from the folder of the one to that of the other.
func (f *figures) addFolders(from, to string) {
	parent := ""
	for {
		a, restFrom, _ := strings.Cut(from, "/")
		b, restTo, _ := strings.Cut(to, "/")
		if a == "" || b == "" {
			return
		}
		if a != b {
			if f.folders[parent] == nil {
				f.folders[parent] = make(edges)
			}
			f.folders[parent].add(a, b)
			return
		}
		parent, from, to = filepath.Join(parent, a), restFrom, restTo
	}
}

func (f *figures) readDeclarations(syntax *ast.File) {
	for _, decl := range syntax.Decls {
		switch d := decl.(type) {
		case *ast.FuncDecl:
			if lines := f.line(d.End()) - f.line(d.Pos()) + 1; lines > longFunc {
				f.long = append(f.long, fmt.Sprintf("%s (%d)", d.Name.Name, lines))
			}
			if d.Doc == nil && d.Name.IsExported() && (d.Recv == nil || exportedReceiver(d.Recv)) {
				f.bare = append(f.bare, d.Name.Name)
			}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				f.readSpec(d, spec)
			}
		}
	}
}

func (f *figures) readSpec(d *ast.GenDecl, spec ast.Spec) {
	var names []*ast.Ident
	var doc *ast.CommentGroup
	switch s := spec.(type) {
	case *ast.TypeSpec:
		names, doc = []*ast.Ident{s.Name}, cmp.Or(s.Doc, s.Comment)
	case *ast.ValueSpec:
		names, doc = s.Names, cmp.Or(s.Doc, s.Comment)
	}
	for _, name := range names {
		if name.IsExported() && cmp.Or(doc, d.Doc) == nil {
			f.bare = append(f.bare, name.Name)
		}
	}
}

func exportedReceiver(recv *ast.FieldList) bool {
	t := recv.List[0].Type
	if star, ok := t.(*ast.StarExpr); ok {
		t = star.X
	}
	if index, ok := t.(*ast.IndexExpr); ok {
		t = index.X
	}
	id, ok := t.(*ast.Ident)
	return ok && id.IsExported()
}

func (f *figures) line(pos token.Pos) int { return f.fset.Position(pos).Line }

func (f *figures) print() {
	lines, short := 0, 0
	for _, one := range f.files {
		lines += one.lines
		if one.lines < shortFile {
			short++
		}
	}
	fmt.Printf("lines of product code    %d\n", lines)
	fmt.Printf("files                    %d, of these %d with less than %d lines\n", len(f.files), short, shortFile)
	fmt.Printf("packages                 %d\n", f.packages)
	fmt.Printf("rooms                    %d: %s\n", len(f.rooms), strings.Join(slices.Sorted(maps.Keys(f.rooms)), " "))
	fmt.Printf("exported, no comment     %d%s\n", len(f.bare), list(f.bare))
	fmt.Printf("functions over %d lines  %d%s\n", longFunc, len(f.long), list(f.long))
}

// printArrows prints the arrows that run back up, and returns how many these are.
func printArrows(title string, graphs map[string]edges) (all int) {
	fmt.Printf("arrows back up, %s:\n", title)
	none := 0
	for _, name := range slices.Sorted(maps.Keys(graphs)) {
		back := backUp(graphs[name])
		if len(back) == 0 {
			none++
			continue
		}
		all += len(back)
		fmt.Printf("  %s\n", cmp.Or(name, "(all)"))
		for _, arrow := range back {
			fmt.Println("    ", arrow)
		}
	}
	fmt.Printf("  %d others have none\n", none)
	return all
}

// backUp returns the arrows that run from a later node to an earlier one in an order that
// keeps these few.
func backUp(graph edges) []string {
	var back []string
	for _, part := range circles(graph) {
		order := arrange(graph, part)
		for from := range part {
			for to := range graph[from] {
				if part[to] && order[to] < order[from] {
					back = append(back, from+" -> "+to)
				}
			}
		}
	}
	slices.Sort(back)
	return back
}

// arrange numbers the nodes of a part after Eades, Lin and Smyth: what nothing uses comes
// first, what uses nothing last, and of the rest the one that uses most and is used least.
func arrange(graph edges, part map[string]bool) map[string]int {
	left := maps.Clone(part)
	order := make(map[string]int)
	first, last := 0, len(part)
	degrees := func(node string) (out, in int) {
		for other := range left {
			if graph[node][other] {
				out++
			}
			if graph[other][node] {
				in++
			}
		}
		return out, in
	}
	for len(left) > 0 {
		var best string
		most, sink := -len(part)-1, false
		for _, node := range slices.Sorted(maps.Keys(left)) {
			out, in := degrees(node)
			if out == 0 {
				best, sink = node, true
				break
			}
			score := out - in
			if in == 0 {
				score = len(part) + 1
			}
			if score > most {
				best, most = node, score
			}
		}
		delete(left, best)
		if sink {
			last--
			order[best] = last
			continue
		}
		order[best] = first
		first++
	}
	return order
}

// circles returns the strongly connected parts of a graph with more than one node (Tarjan).
func circles(graph edges) []map[string]bool {
	index, low, on := make(map[string]int), make(map[string]int), make(map[string]bool)
	var stack []string
	var found []map[string]bool
	var visit func(string)
	visit = func(node string) {
		index[node] = len(index) + 1
		low[node] = index[node]
		stack, on[node] = append(stack, node), true
		for to := range graph[node] {
			if index[to] == 0 {
				visit(to)
				low[node] = min(low[node], low[to])
			} else if on[to] {
				low[node] = min(low[node], index[to])
			}
		}
		if low[node] != index[node] {
			return
		}
		part := make(map[string]bool)
		for {
			top := stack[len(stack)-1]
			stack, on[top] = stack[:len(stack)-1], false
			part[top] = true
			if top == node {
				break
			}
		}
		if len(part) > 1 {
			found = append(found, part)
		}
	}
	for _, node := range slices.Sorted(maps.Keys(graph)) {
		if index[node] == 0 {
			visit(node)
		}
	}
	return found
}

func list(names []string) string {
	if len(names) == 0 {
		return ""
	}
	if len(names) > longestList {
		return ": " + strings.Join(names[:longestList], ", ") + ", ..."
	}
	return ": " + strings.Join(names, ", ")
}

func within(dir, parent string) bool {
	return dir == parent || strings.HasPrefix(dir, parent+"/")
}
