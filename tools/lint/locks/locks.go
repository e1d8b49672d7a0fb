// Package locks finds mutexes that are held across I/O or across the call of a function
// value. A goroutine that waits for a disk, a socket or another process while it holds a
// mutex blocks all others that need the mutex, for as long as the I/O takes. A function
// value that takes the same mutex blocks them for ever, also if both only read: between
// two RLocks of one goroutine a writer may begin to wait. So copy under the mutex, and
// decide after it. A clock is a function value too. A literal given to a function of the
// standard library, such as slices.SortFunc, is analysed instead.
//
// If the purpose of a mutex is the order of I/O, the comment of its declaration says so,
// on a separate line:
//
//	// Held across I/O: the kernel must see these calls in this order.
//
// Sources: x/tools/go/ssa for the code, x/tools/go/callgraph/vta for the functions that a
// call of an interface's method or of a function value may reach.
package locks

import (
	"cmp"
	"fmt"
	"go/token"
	"go/types"
	"maps"
	"slices"
	"strings"

	"golang.org/x/tools/go/callgraph"
	"golang.org/x/tools/go/callgraph/cha"
	"golang.org/x/tools/go/callgraph/vta"
	"golang.org/x/tools/go/packages"
	"golang.org/x/tools/go/ssa"
	"golang.org/x/tools/go/ssa/ssautil"
)

// Finding is a mutex that is held across a call that does I/O, or a mark that does not
// apply.
type Finding struct {
	Pos     token.Position
	Message string
}

// String formats a finding like a compiler's message.
func (f Finding) String() string { return fmt.Sprintf("%s: %s", f.Pos, f.Message) }

// program is the code under analysis, with the results so far.
type program struct {
	fset   *token.FileSet
	ours   map[*ssa.Package]bool
	called map[ssa.CallInstruction][]*ssa.Function
	locks  map[token.Pos]*lock
	known  map[question]*answer
	found  map[token.Pos]string
}

// lock is a mutex by its declaration: all mutexes of one struct field count as one.
type lock struct {
	decl   token.Pos
	name   string
	reason string // why it may be held across I/O; empty if it may not
	used   bool   // it is held across I/O somewhere
}

// Find analyses the packages that match the patterns, relative to dir, without their
// tests.
func Find(dir string, patterns ...string) ([]Finding, error) {
	const mode = packages.NeedName | packages.NeedFiles | packages.NeedCompiledGoFiles | packages.NeedImports |
		packages.NeedDeps | packages.NeedExportFile | packages.NeedTypes | packages.NeedSyntax | packages.NeedTypesInfo |
		packages.NeedTypesSizes
	loaded, err := packages.Load(&packages.Config{Mode: mode &^ packages.NeedDeps, Dir: dir}, patterns...)
	if err != nil {
		return nil, err
	}
	for _, pkg := range loaded {
		if len(pkg.Errors) > 0 {
			return nil, pkg.Errors[0]
		}
	}
	prog, pkgs := ssautil.Packages(loaded, ssa.InstantiateGenerics)
	prog.Build()
	p := &program{
		fset: prog.Fset, ours: map[*ssa.Package]bool{}, called: map[ssa.CallInstruction][]*ssa.Function{},
		locks: map[token.Pos]*lock{}, known: map[question]*answer{}, found: map[token.Pos]string{},
	}
	for _, pkg := range pkgs {
		p.ours[pkg] = true
	}
	functions := allFunctions(prog, pkgs)
	p.resolveCalls(vta.CallGraph(functions, cha.CallGraph(prog)))
	p.collectLocks(functions)
	p.readMarks(loaded)
	maps.DeleteFunc(functions, func(fn *ssa.Function, _ bool) bool { return !p.isOurs(fn) })
	for _, fn := range slices.SortedFunc(maps.Keys(functions), byName) {
		for _, l := range p.locks {
			p.ask(question{fn, l, false})
		}
	}
	return p.findings(), nil
}

// allFunctions returns the functions that the packages declare, including methods that
// nothing calls, and all that these may call.
func allFunctions(prog *ssa.Program, pkgs []*ssa.Package) map[*ssa.Function]bool {
	all := ssautil.AllFunctions(prog)
	for _, pkg := range pkgs {
		for _, member := range pkg.Members {
			typ, ok := member.(*ssa.Type)
			if !ok {
				continue
			}
			methods := types.NewMethodSet(types.NewPointer(typ.Type()))
			for method := range methods.Methods() {
				addFunction(all, prog.MethodValue(method))
			}
		}
	}
	return all
}

// addFunction adds a function and those declared inside it.
func addFunction(all map[*ssa.Function]bool, fn *ssa.Function) {
	if fn == nil || all[fn] {
		return
	}
	all[fn] = true
	for _, inner := range fn.AnonFuncs {
		addFunction(all, inner)
	}
}

// resolveCalls records which functions a call may reach.
func (p *program) resolveCalls(graph *callgraph.Graph) {
	for _, node := range graph.Nodes {
		for _, edge := range node.Out {
			if edge.Site != nil {
				p.called[edge.Site] = append(p.called[edge.Site], edge.Callee.Func)
			}
		}
	}
	for site, callees := range p.called {
		slices.SortFunc(callees, byName)
		p.called[site] = slices.Compact(callees)
	}
}

func byName(a, b *ssa.Function) int { return cmp.Compare(a.String(), b.String()) }

// collectLocks finds every mutex that some function locks.
func (p *program) collectLocks(functions map[*ssa.Function]bool) {
	for fn := range functions {
		for _, block := range fn.Blocks {
			for _, instr := range block.Instrs {
				call, ok := instr.(ssa.CallInstruction)
				if !ok || !p.isOurs(fn) || operation(call) == none {
					continue
				}
				decl, name := declaration(receiver(call))
				if !decl.IsValid() {
					p.report(call.Pos(), "this mutex has no name here: lock and unlock it as the field or variable that it is")
				} else if p.locks[decl] == nil {
					p.locks[decl] = &lock{decl: decl, name: name}
				}
			}
		}
	}
}

// mark begins the line of a declaration's comment that allows I/O under the mutex.
const mark = "Held across I/O: "

// readMarks reads the comments above and beside the declarations of the mutexes.
func (p *program) readMarks(loaded []*packages.Package) {
	reasons := map[string]string{} // by file and line of the declaration
	for _, pkg := range loaded {
		for _, file := range pkg.Syntax {
			for _, group := range file.Comments {
				first, last := p.fset.Position(group.Pos()), p.fset.Position(group.End())
				for line := range strings.Lines(group.Text()) {
					if reason, ok := strings.CutPrefix(line, mark); ok {
						reasons[place(first.Filename, first.Line)] = strings.TrimSpace(reason)
						reasons[place(last.Filename, last.Line+1)] = strings.TrimSpace(reason)
					}
				}
			}
		}
	}
	for _, l := range p.locks {
		pos := p.fset.Position(l.decl)
		l.reason = reasons[place(pos.Filename, pos.Line)]
	}
}

func place(file string, line int) string { return fmt.Sprint(file, ":", line) }

func (p *program) isOurs(fn *ssa.Function) bool {
	if origin := fn.Origin(); origin != nil {
		fn = origin
	}
	for fn.Pkg == nil && fn.Parent() != nil {
		fn = fn.Parent()
	}
	return fn.Pkg != nil && p.ours[fn.Pkg] && fn.Blocks != nil
}

func (p *program) report(pos token.Pos, format string, args ...any) {
	p.found[pos] = fmt.Sprintf(format, args...)
}

// findings returns all findings, including unnecessary marks, in the order of the files.
func (p *program) findings() []Finding {
	for _, l := range p.locks {
		if l.reason != "" && !l.used {
			p.report(l.decl, "%s is held across nothing that does I/O: remove the line %q", l.name, strings.TrimSpace(mark))
		}
	}
	var all []Finding
	for pos, message := range p.found {
		all = append(all, Finding{p.fset.Position(pos), message})
	}
	slices.SortFunc(all, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.Pos.Filename, b.Pos.Filename), cmp.Compare(a.Pos.Line, b.Pos.Line), cmp.Compare(a.Message, b.Message))
	})
	return all
}
