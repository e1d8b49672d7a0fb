package supervisor

import (
	"io"
	"os"

	"github.com/agbox/agbox/logs"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"
)

// outlet moves output of an exec into its log.
type outlet interface {
	// run returns when there will be no more output.
	run()
	// drain returns when everything that was written before the call is in the log.
	drain()
}

// streams are the standard streams of an exec.
type streams struct {
	// child holds what the process gets as its descriptors 0, 1 and 2.
	child [3]*os.File
	// made are the files of child that are the exec's own.
	made []io.Closer
	// held stays open here as long as the process lives; nil if nothing has to.
	held    *os.File
	outlets []outlet
	// ends are the supervisor's ends of the output.
	ends []io.Closer
	// input is nil where the process reads an end of file at once.
	input *input
}

// openStreams makes the streams that a request asks for.
func (s *Supervisor) openStreams(req *guestv1.StartRequest, uid int, w *logs.Writer) (*streams, *startError) {
	if req.GetTty() {
		var master, slave *os.File
		var fail *startError
		s.files.do(func() { master, slave, fail = openTerminal(req, uid) })
		if fail != nil {
			return nil, fail
		}
		return &streams{
			child: [3]*os.File{slave, slave, slave},
			// A master that nobody has the other end of has come to its end, and the
			// process may open its terminal again.
			held:    slave,
			outlets: []outlet{newTerminal(master, w, s.disk)},
			ends:    []io.Closer{master},
			input:   newInput(master, true),
		}, nil
	}
	st, err := s.openPipes(w)
	if err != nil {
		return nil, noPipes(err)
	}
	if req.GetStdin() {
		in, child, err := stdinPipe()
		if err != nil {
			st.close()
			return nil, noPipes(err)
		}
		st.input, st.child[0] = in, child
		st.made = append(st.made, child)
	}
	return st, nil
}

// openPipes makes the outputs of an exec without a terminal, and reads its input
// from nothing. Where the order of writes cannot be had, it is that of reading.
func (s *Supervisor) openPipes(w *logs.Writer) (*streams, error) {
	if s.sequencer != nil {
		x, err := s.sequencer.open(w, s.disk)
		if err != nil {
			return nil, err
		}
		return &streams{
			child:   [3]*os.File{s.devNull, x.child[0], x.child[1]},
			made:    []io.Closer{x.child[0], x.child[1]},
			outlets: []outlet{x},
			ends:    []io.Closer{x},
		}, nil
	}
	stdout, stderr, err := newPumps(w, s.disk)
	if err != nil {
		return nil, err
	}
	return &streams{
		child:   [3]*os.File{s.devNull, stdout.child, stderr.child},
		made:    []io.Closer{stdout.child, stderr.child},
		outlets: []outlet{stdout, stderr},
		ends:    []io.Closer{stdout.pipe, stderr.pipe},
	}, nil
}

func noPipes(err error) *startError {
	return other("The pipes of the command cannot be made (%v): end some commands in the sandbox and try again.", err)
}

// descriptors are what the process gets.
func (st *streams) descriptors() []uintptr {
	return []uintptr{st.child[0].Fd(), st.child[1].Fd(), st.child[2].Fd()}
}

// started closes what only the process needs.
func (st *streams) started() { closeAll(st.made) }

// ended closes what was held for the process.
func (st *streams) ended() {
	if st.held != nil {
		_ = st.held.Close()
	}
}

// close closes everything of an exec whose process was not started.
func (st *streams) close() {
	closeAll(st.made)
	st.ended()
	st.input.shut()
	st.closeEnds()
}

func (st *streams) closeEnds() { closeAll(st.ends) }

func closeAll(all []io.Closer) {
	for _, c := range all {
		_ = c.Close() // pipes and terminals hold nothing that a close could lose
	}
}
