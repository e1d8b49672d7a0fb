package locks

import (
	"go/types"
	"slices"
	"strings"

	"golang.org/x/tools/go/ssa"
)

// harmless are the packages that do no I/O. All others that are not ours count as I/O.
var harmless = []string{
	"bytes", "cmp", "container/", "context", "crypto/sha256", "encoding/", "errors", "hash/", "internal/", "iter", "maps", "math", "math/",
	"net/netip", "net/url", "path", "reflect", "regexp", "runtime", "runtime/debug", "slices", "sort", "strconv", "strings", "sync", "sync/atomic",
	"text/", "time", "unicode", "unicode/", "unique", "unsafe",
	"github.com/containerd/errdefs", "github.com/distribution/reference",
	"google.golang.org/grpc/codes", "google.golang.org/grpc/status", "google.golang.org/protobuf/",
}

// exceptions are single functions that differ from their packages: true for those
// that do I/O or wait for time to pass. The system calls among the others wait for
// nobody: not for a disk, a peer, or another process.
var exceptions = map[string]bool{
	"time.Sleep": true,

	"fmt.Append": false, "fmt.Appendf": false, "fmt.Errorf": false, "fmt.Sprint": false, "fmt.Sprintf": false, "fmt.Sprintln": false,
	"os.Getenv": false, "os.Getpagesize": false, "os.Getpid": false, "os.IsExist": false, "os.IsNotExist": false,
	"os/signal.Ignore": false, "os/signal.Ignored": false, "os/signal.Notify": false, "os/signal.Reset": false, "os/signal.Stop": false,
	// They only lead to the descriptor. What a function does with it that they are given counts by itself.
	"(*os.File).Fd": false, "(*os.File).SyscallConn": false, "(syscall.RawConn).Control": false, "(syscall.Conn).SyscallConn": false,
	"syscall.Kill": false, "(*syscall.Timeval).Nano": false,
	"(syscall.WaitStatus).ExitStatus": false, "(syscall.WaitStatus).Exited": false, "(syscall.WaitStatus).Signal": false, "(syscall.WaitStatus).Signaled": false,
	"golang.org/x/sys/unix.FcntlInt": false, "golang.org/x/sys/unix.Getpgrp": false, "golang.org/x/sys/unix.Getpid": false,
	"golang.org/x/sys/unix.IoctlGetInt": false, "golang.org/x/sys/unix.Kill": false, "golang.org/x/sys/unix.Prlimit": false,
	"golang.org/x/sys/unix.Tgkill": false,
}

// later are the functions that call what they are given when the caller has gone on.
var later = []string{"time.AfterFunc", "context.AfterFunc", "(*sync.WaitGroup).Go"}

// callees are the functions that a call may reach, those that it hands to others
// included. io says which I/O it does outside our code; empty for none.
func (p *program) callees(call ssa.CallInstruction) (callees []*ssa.Function, io string) {
	common := call.Common()
	handed := functionsIn(common.Args)
	if _, builtin := common.Value.(*ssa.Builtin); builtin {
		return nil, ""
	}
	if common.IsInvoke() && !p.declares(common.Value.Type()) {
		// Others may implement it too, so that what we know of it says nothing.
		if isHarmless(common.Method.Pkg(), common.Method.FullName()) {
			return handed, ""
		}
		return append(handed, p.called[call]...), common.Method.FullName()
	}
	callees = p.called[call]
	if static := common.StaticCallee(); static != nil {
		callees = []*ssa.Function{static}
	}
	if len(callees) == 0 {
		if isCancel(common.Value.Type()) || isIterator(common.Value) {
			return handed, ""
		}
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

// functionsIn are the functions among a call's arguments.
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

// isCancel reports whether a function value ends a context: it wakes who waits, and does nothing itself.
func isCancel(t types.Type) bool {
	named, ok := types.Unalias(t).(*types.Named)
	return ok && named.Obj().Pkg() != nil && named.Obj().Pkg().Path() == "context"
}

// isIterator reports whether a function value was made by a function of a harmless package, as strings.SplitSeq does.
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
