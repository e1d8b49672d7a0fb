package supervisor

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"github.com/agbox/agbox/logs"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"
	"github.com/agbox/agbox/runtime/supervisor/output"
)

// defaultTerm is what TERM is set to where nobody says what the terminal is.
const defaultTerm = "xterm"

// streams are the standard streams of an exec.
type streams struct {
	out *output.Output
	// input is nil where the process reads an end of file at once.
	input *input
	// stdin is what the process gets as its descriptor 0.
	stdin *os.File
	// pipe is true when stdin is the end of a pipe that is the exec's own.
	pipe bool
}

// openStreams makes the streams that a request asks for.
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

// descriptors are what the process gets.
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

// close closes everything of an exec whose process was not started.
func (st *streams) close() {
	st.closeStdin()
	st.input.shut()
	st.out.Discard()
}
