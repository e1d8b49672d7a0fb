package supervisor

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"github.com/agbox/agbox/logs"
	guestv1 "github.com/agbox/agbox/proto/guestlite/v1"
	"github.com/agbox/agbox/runtime/supervisor/output"
)

// defaultTerm is the value of TERM if neither container nor request sets it.
const defaultTerm = "xterm"

// streams are the standard streams of an exec.
type streams struct {
	out *output.Output
	// input is nil if the process reads an end of file at once.
	input *input
	// stdin becomes descriptor 0 of the process.
	stdin *os.File
	// pipe is true if stdin is the end of a pipe of this exec.
	pipe bool
}

// openStreams opens the streams that a request needs.
func (s *Supervisor) openStreams(req *guestv1.StartRequest, uid int, w *logs.Writer) (*streams, *startError) {
	if req.GetTty() {
		var master, slave *os.File
		var err error
		s.files.do(func() { master, slave, err = output.OpenTerminal(uid, req.GetRows(), req.GetColumns()) })
		if err != nil {
			return nil, noTerminal(err)
		}
		return &streams{out: s.output.Terminal(w, master, slave), input: newInput(master, true), stdin: slave}, nil
	}
	out, err := s.output.Pipes(w)
	if err != nil {
		return nil, noPipes(err)
	}
	st := &streams{out: out, stdin: s.devNull}
	if req.GetStdin() {
		in, child, err := stdinPipe()
		if err != nil {
			st.close()
			return nil, noPipes(err)
		}
		st.input, st.stdin, st.pipe = in, child, true
	}
	return st, nil
}

func noTerminal(err error) *startError {
	if errors.Is(err, unix.ENOSPC) {
		return other("All terminals of the sandbox are in use: end some commands that run on one and try again.")
	}
	return other("The sandbox has no terminals (%v): use an image and engine settings that leave /dev/ptmx and a devpts file system at /dev/pts in place, or run the command without a terminal.", err)
}

func noPipes(err error) *startError {
	return other("The pipes of the command cannot be made (%v): end some commands in the sandbox and try again.", err)
}

// descriptors are the descriptors that the process gets.
func (st *streams) descriptors() []uintptr {
	return []uintptr{st.stdin.Fd(), st.out.Stdout.Fd(), st.out.Stderr.Fd()}
}

// started closes what only the process needs.
func (st *streams) started() {
	st.out.Started()
	st.closeStdin()
}

func (st *streams) closeStdin() {
	if st.pipe {
		_ = st.stdin.Close()
	}
}

// close closes all streams of an exec whose process did not start.
func (st *streams) close() {
	st.closeStdin()
	st.input.shut()
	st.out.Discard()
}
