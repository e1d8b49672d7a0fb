package locks

import (
	"go/types"
	"slices"
	"strings"

	"golang.org/x/tools/go/ssa"
)

// harmless are the packages that do no I/O. All other foreign packages count as I/O.
var harmless = []string{
	"bytes", "cmp", "container/", "context", "crypto/sha256", "encoding/", "errors", "hash/", "internal/", "iter", "maps", "math", "math/",
	"net/netip", "net/url", "path", "reflect", "regexp", "runtime", "runtime/debug", "slices", "sort", "strconv", "strings", "sync", "sync/atomic",
	"text/", "time", "unicode", "unicode/", "unique", "unsafe",
	"github.com/containerd/errdefs", "github.com/distribution/reference",
	"google.golang.org/grpc/codes", "google.golang.org/grpc/status", "google.golang.org/protobuf/",
}

// exceptions are functions that differ from the rest of their packages: true for those
// that do I/O or sleep. The system calls among the others never block on a disk, a peer,
// or another process.
var exceptions = map[string]bool{
	"time.Sleep": true,

	"fmt.Append": false, "fmt.Appendf": false, "fmt.Errorf": false, "fmt.Sprint": false, "fmt.Sprintf": false, "fmt.Sprintln": false,
	"os.Getenv": false, "os.Getpagesize": false, "os.Getpid": false, "os.IsExist": false, "os.IsNotExist": false,
	"os/signal.Ignore": false, "os/signal.Ignored": false, "os/signal.Notify": false, "os/signal.Reset": false, "os/signal.Stop": false,
	// These only give access to the descriptor. The functions that they call are analysed
	// themselves.
	"(*os.File).Fd": false, "(*os.File).SyscallConn": false, "(syscall.RawConn).Control": false, "(syscall.Conn).SyscallConn": false,
	"syscall.Kill": false, "(*syscall.Timeval).Nano": false,
	"(syscall.WaitStatus).ExitStatus": false, "(syscall.WaitStatus).Exited": false, "(syscall.WaitStatus).Signal": false, "(syscall.WaitStatus).Signaled": false,
	"golang.org/x/sys/unix.FcntlInt": false, "golang.org/x/sys/unix.Getpgrp": false, "golang.org/x/sys/unix.Getpid": false,
	"golang.org/x/sys/unix.IoctlGetInt": false, "golang.org/x/sys/unix.Kill": false, "golang.org/x/sys/unix.Prlimit": false,
	"golang.org/x/sys/unix.Tgkill": false,
}

// later are the functions that call their argument after the caller has continued.
var later = []string{"time.AfterFunc", "context.AfterFunc", "(*sync.WaitGroup).Go"}

// callees are the functions that a call may reach, including those that it passes as
// arguments. io says which I/O the call does outside our code; it is empty for none.
func (p *program) callees(call ssa.CallInstruction) (callees []*ssa.Function, io string) {
	common := call.Common()
	handed := functionsIn(common.Args)
	if _, builtin := common.Value.(*ssa.Builtin); builtin {
		return nil, ""
	}
	if common.IsInvoke() && !p.declares(common.Value.Type()) {
		// Other packages may also implement it, so our implementations prove nothing.
		if isHarmless(common.Method.Pkg(), common.Method.FullName()) {
			return handed, ""
		}
		return append(handed, p.called[call]...), common.Method.FullName()
	}
	callees = p.called[call]
	if static := common.StaticCallee(); static != nil {
		callees = []*ssa.Function{static}
	}
	if isCancel(common.Value.Type()) || isIterator(common.Value) {
		return handed, ""
	}
	if len(callees) == 0 {
		return nil, "a function that is not known here"
	}
	for _, callee := range callees {
		if p.isOurs(callee) {
			continue
		}
		name := callee.RelString(nil)
		if object := callee.Object(); object != nil && !isHarmless(object.Pkg(), name) {
			io = name
		}
		if !slices.Contains(later, name) {
			callees = append(slices.Clip(callees), handed...)
		}
	}
	return callees, io
}

// declares reports whether an interface is one of ours.
func (p *program) declares(t types.Type) bool {
	named, ok := types.Unalias(t).(*types.Named)
	if !ok || named.Obj().Pkg() == nil {
		return false
	}
	for pkg := range p.ours {
		if pkg.Pkg == named.Obj().Pkg() {
			return true
		}
	}
	return false
}

// functionsIn returns the functions among a call's arguments.
func functionsIn(args []ssa.Value) []*ssa.Function {
	var found []*ssa.Function
	for _, arg := range args {
		switch v := arg.(type) {
		case *ssa.Function:
			found = append(found, v)
		case *ssa.MakeClosure:
			found = append(found, v.Fn.(*ssa.Function))
		}
	}
	return found
}

// isValue reports whether a call goes to a function value: whoever made the value decides
// what it does, also that it needs the mutex.
func isValue(call ssa.CallInstruction) bool {
	common := call.Common()
	_, builtin := common.Value.(*ssa.Builtin)
	return !builtin && !common.IsInvoke() && common.StaticCallee() == nil && !isCancel(common.Value.Type()) && !isIterator(common.Value)
}

// isCancel reports whether a function value cancels a context: that only wakes waiting
// goroutines.
func isCancel(t types.Type) bool {
	named, ok := types.Unalias(t).(*types.Named)
	return ok && named.Obj().Pkg() != nil && named.Obj().Pkg().Path() == "context"
}

// isIterator reports whether a function value was made by a function of a harmless
// package, such as strings.SplitSeq.
func isIterator(v ssa.Value) bool {
	call, ok := v.(*ssa.Call)
	if !ok || call.Call.StaticCallee() == nil {
		return false
	}
	maker := call.Call.StaticCallee()
	return maker.Object() != nil && isHarmless(maker.Object().Pkg(), maker.RelString(nil))
}

func isHarmless(pkg *types.Package, name string) bool {
	if does, ok := exceptions[name]; ok {
		return !does
	}
	return pkg == nil || slices.ContainsFunc(harmless, func(h string) bool {
		return pkg.Path() == h || strings.HasSuffix(h, "/") && strings.HasPrefix(pkg.Path(), h)
	})
}
