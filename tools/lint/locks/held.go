package locks

import (
	"go/token"
	"go/types"
	"slices"
	"strings"

	"golang.org/x/tools/go/ssa"
)

// question asks what a function does if it is called with or without a mutex held.
type question struct {
	fn   *ssa.Function
	lock *lock
	held bool
}

// answer says whether the mutex is held when the function returns, and which I/O the
// function does while the mutex is held. The call of a function value counts as I/O.
type answer struct {
	held bool
	io   []use
}

// use is a call that does I/O, with the path of calls from the function in question to
// it.
type use struct {
	what string
	path []string
}

// ask analyses a function once per question. A recursive call of a function that is being
// analysed adds nothing.
func (p *program) ask(q question) *answer {
	if a := p.known[q]; a != nil {
		return a
	}
	a := &answer{held: q.held}
	p.known[q] = a
	entry := map[*ssa.BasicBlock]bool{}
	if len(q.fn.Blocks) == 0 {
		return a
	}
	entry[q.fn.Blocks[0]] = q.held
	reached := map[*ssa.BasicBlock]bool{}
	for todo := []*ssa.BasicBlock{q.fn.Blocks[0]}; len(todo) > 0; {
		block := todo[0]
		todo = todo[1:]
		reached[block] = true
		exit := p.walk(q, block, entry[block], nil)
		for _, next := range block.Succs {
			if !reached[next] || exit && !entry[next] {
				entry[next] = entry[next] || exit
				todo = append(todo, next)
			}
		}
	}
	held := false
	unlocksAtEnd := p.defersUnlock(q)
	for block := range reached {
		exit := p.walk(q, block, entry[block], a)
		if _, returns := block.Instrs[len(block.Instrs)-1].(*ssa.Return); returns && exit && !unlocksAtEnd {
			held = true
		}
	}
	a.held = held
	return a
}

// walk follows one block and reports whether the mutex is held at its end. If a is given,
// walk adds the I/O under the mutex to it.
func (p *program) walk(q question, block *ssa.BasicBlock, held bool, a *answer) bool {
	for _, instr := range block.Instrs {
		call, ok := instr.(ssa.CallInstruction)
		if !ok {
			continue
		}
		switch call.(type) {
		case *ssa.Go: // runs without our mutexes
		case *ssa.Defer: // runs under a mutex that is locked before and unlocked by a defer
			if a != nil && held {
				p.call(q, call, true, a)
			}
		default:
			switch op := operation(call); {
			case op == none:
				held = p.call(q, call, held, a)
			case p.isLock(q.lock, call):
				held = op == locks
			}
		}
	}
	return held
}

// call reports whether the mutex is held after a call.
func (p *program) call(q question, call ssa.CallInstruction, held bool, a *answer) bool {
	if operation(call) != none {
		return held
	}
	callees, io := p.callees(call)
	if isValue(call) {
		io = "the call of a function value"
	}
	if held && a != nil && io != "" {
		p.use(q, a, call, use{what: io})
	}
	after, any := false, false
	for _, callee := range callees {
		if !p.isOurs(callee) {
			continue
		}
		any = true
		known := p.ask(question{callee, q.lock, held})
		after = after || known.held
		if held && a != nil {
			for _, u := range known.io {
				p.use(q, a, call, use{u.what, append([]string{callee.RelString(nil)}, u.path...)})
			}
		}
	}
	if !any {
		return held
	}
	return after
}

// use records I/O under the mutex. It is reported where the mutex was locked, not in
// every function that is called with it.
func (p *program) use(q question, a *answer, call ssa.CallInstruction, u use) {
	if !slices.ContainsFunc(a.io, func(other use) bool { return other.what == u.what }) {
		a.io = append(a.io, u)
	}
	q.lock.used = true
	if q.held || q.lock.reason != "" {
		return
	}
	pos := call.Pos()
	if !pos.IsValid() {
		pos = functionsIn(call.Common().Args)[0].Pos() // the body of a loop over a function
	}
	// One path from a call to I/O suffices.
	if _, reported := p.found[pos]; !reported {
		p.report(pos, "%s is held across %s", q.lock.name, strings.Join(append(u.path, u.what), " > "))
	}
}

// defersUnlock reports whether the function unlocks the mutex when it returns.
func (p *program) defersUnlock(q question) bool {
	for _, block := range q.fn.Blocks {
		for _, instr := range block.Instrs {
			call, ok := instr.(*ssa.Defer)
			if !ok {
				continue
			}
			if operation(call) == unlocks && p.isLock(q.lock, call) {
				return true
			}
			if callee := call.Call.StaticCallee(); callee != nil && p.isOurs(callee) && p.mentions(callee, q.lock) && !p.ask(question{callee, q.lock, true}).held {
				return true
			}
		}
	}
	return false
}

// mentions reports whether a function itself locks or unlocks the mutex.
func (p *program) mentions(fn *ssa.Function, l *lock) bool {
	for _, block := range fn.Blocks {
		for _, instr := range block.Instrs {
			if call, ok := instr.(ssa.CallInstruction); ok && operation(call) != none && p.isLock(l, call) {
				return true
			}
		}
	}
	return false
}

func (p *program) isLock(l *lock, call ssa.CallInstruction) bool {
	decl, _ := declaration(receiver(call))
	return decl == l.decl
}

// op is the effect of a call on a mutex.
type op int

const (
	none op = iota
	locks
	unlocks
)

func operation(call ssa.CallInstruction) op {
	callee := call.Common().StaticCallee()
	if callee == nil || callee.Signature.Recv() == nil || callee.Pkg == nil || callee.Pkg.Pkg.Path() != "sync" {
		return none
	}
	named, ok := deref(callee.Signature.Recv().Type()).(*types.Named)
	if !ok || named.Obj().Name() != "Mutex" && named.Obj().Name() != "RWMutex" {
		return none
	}
	switch callee.Name() {
	case "Lock", "RLock", "TryLock", "TryRLock":
		return locks
	case "Unlock", "RUnlock":
		return unlocks
	}
	return none
}

func receiver(call ssa.CallInstruction) ssa.Value { return call.Common().Args[0] }

func deref(t types.Type) types.Type {
	if ptr, ok := t.Underlying().(*types.Pointer); ok {
		return ptr.Elem()
	}
	return t
}

// declaration returns the position where the mutex behind a pointer is declared, and its
// name.
func declaration(v ssa.Value) (token.Pos, string) {
	switch v := v.(type) {
	case *ssa.FieldAddr:
		strct := deref(v.X.Type())
		field := strct.Underlying().(*types.Struct).Field(v.Field)
		if named, ok := strct.(*types.Named); ok {
			return field.Pos(), named.Obj().Name() + "." + field.Name()
		}
		_, outer := declaration(v.X)
		return field.Pos(), outer + "." + field.Name()
	case *ssa.IndexAddr:
		return declaration(v.X)
	case *ssa.UnOp:
		return declaration(v.X)
	case *ssa.Alloc:
		return v.Pos(), v.Comment
	case *ssa.FreeVar:
		return v.Pos(), v.Name()
	case *ssa.Global:
		return v.Pos(), v.Name()
	}
	return token.NoPos, ""
}
