package supervisor

import (
	"cmp"
	"context"
	"errors"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/agbox/agbox/internal/ids"
	"github.com/agbox/agbox/logs"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"
	"github.com/agbox/agbox/runtime/guest/rpc"
	"github.com/agbox/agbox/runtime/supervisor/agentsocket"
	"github.com/agbox/agbox/runtime/supervisor/output"
	"github.com/agbox/agbox/runtime/supervisor/probes"
)

// start starts an exec, or returns the record of an existing exec with its id.
func (s *Supervisor) start(ctx context.Context, req *guestv1.StartRequest) (*guestv1.ExecRecord, error) {
	e, mine := s.registry.claim(req.GetExecId(), &s.work)
	if e == nil {
		// Nothing is stored: a caller that misses the answer asks again and gets the same
		// one.
		if found := s.readStatus(req.GetExecId()); found != nil {
			return found, nil
		}
		return s.failureRecord(req.GetExecId(), tooLate()), nil
	}
	if mine {
		// Not bound to ctx: a claimed id must be decided even if the caller is gone.
		s.begin(context.WithoutCancel(ctx), e, req)
	}
	select {
	case <-e.decided:
		return s.registry.recordOf(e), nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// begin decides a claimed exec. It either ends the claim's count in s.work, or passes the
// count to the goroutine that supervises the process.
func (s *Supervisor) begin(ctx context.Context, e *execution, req *guestv1.StartRequest) {
	supervised := false
	defer s.memory.work()
	defer func() {
		if !supervised {
			s.refillSpares()
			s.work.Done()
		} else if s.logs.Spares() < spareFiles/2 {
			s.refillSpares() // for an exec that runs long; otherwise spares are made when it ends
		}
	}()
	if found := s.readStatus(e.id); found != nil {
		s.registry.finish(e, found)
		return
	}
	asked := recordedRequest(req)
	writer, fail := s.createLogs(ctx, req)
	if fail != nil {
		s.failed(e, asked, fail)
		return
	}
	fail = s.launch(e, req, asked, writer, &supervised)
	if fail != nil {
		s.disk.do(func() { _ = writer.Close() })
		s.failed(e, asked, fail)
	}
}

// removeTimeout bounds the removal of files, because a container may have made many.
const removeTimeout = 5 * time.Second

// createLogs makes the log files. Files of that id without a status file were left by a
// supervisor that died before it recorded the start. Nothing ran then, and they are
// empty.
func (s *Supervisor) createLogs(ctx context.Context, req *guestv1.StartRequest) (w *logs.Writer, fail *startError) {
	id, redactor := req.GetExecId(), s.redactorOf(req)
	ctx, cancel := context.WithTimeout(ctx, removeTimeout)
	defer cancel()
	s.disk.do(func() {
		opt := logs.WriterOptions{
			MaxBytes: cmp.Or(req.GetMaxLogBytes(), s.boot().GetMaxLogBytes()),
			Quota:    s.quota,
			Owner:    s.owner(),
			Redactor: redactor,
			Gate:     s.disk.do,
		}
		var err error
		if w, err = s.logs.Create(id, opt); errors.Is(err, errdefs.ErrAlreadyExists) {
			if err = s.logs.Remove(ctx, id); err == nil {
				w, err = s.logs.Create(id, opt)
			}
		}
		switch {
		case err == nil:
		case s.logs.Deleted():
			fail = other("The log folder of the sandbox was removed on the host while the sandbox ran: stop and start the sandbox, which makes the folder again.")
		default:
			fail = unrecorded("The log files of the command cannot be made (%v): see that the daemon's log directory is on a file system that is writable and not full.", err)
		}
	})
	return w, fail
}

// launch records the exec in the journal and starts its process.
func (s *Supervisor) launch(e *execution, req *guestv1.StartRequest, asked *guestv1.RecordedRequest, writer *logs.Writer, supervised *bool) *startError {
	var p *plan
	access, fail := s.admit(req)
	if fail != nil {
		return fail
	}
	s.files.do(func() { p, fail = s.plan(req, access) })
	if fail != nil {
		return fail
	}
	record := &guestv1.ExecRecord{
		ExecId:    e.id,
		Phase:     guestv1.ExecPhase_EXEC_PHASE_RUNNING,
		StartedAt: guestv1.Now(),
		BootId:    s.bootID,
	}
	if err := s.journal(record, asked); err != nil {
		return unrecorded("The start of the command cannot be written down (%v), and without that it could run twice: see that the daemon's log directory is on a file system that is writable and not full.", err)
	}
	st, fail := s.openStreams(req, p.uid, writer)
	if fail != nil {
		return fail
	}
	oom := s.oom.begin()
	ch, err := s.children.start(e.id, p.path, p.argv, &syscall.ProcAttr{
		Dir:   p.dir,
		Env:   p.env,
		Files: st.descriptors(),
		// If stdin is a terminal, it becomes the controlling terminal of the session.
		Sys: &syscall.SysProcAttr{Setsid: true, Setctty: req.GetTty(), Credential: p.credential},
	})
	if err != nil {
		st.close()
		s.oom.end(oom, false, 0)
		return p.explain(err)
	}
	preferForOOM(ch.pid)
	st.started()
	record = record.CloneVT()
	record.Pid = int32(ch.pid)
	*supervised = true
	s.registry.running(e, ch, st.input, record)
	go s.supervise(&run{
		exec: e, child: ch, record: record, asked: asked, writer: writer, streams: st, oom: oom,
		limits: s.limit(e, req, writer), sampler: s.sample(ch), probes: s.probe(e, req, access),
	})
	return nil
}

// admit makes the agent socket available to an incarnation of an agent. For any other exec
// it returns no access.
func (s *Supervisor) admit(req *guestv1.StartRequest) (*agentsocket.Access, *startError) {
	if req.GetAgent() == nil {
		return nil, nil
	}
	var access *agentsocket.Access
	var err error
	hostname := cmp.Or(variable(req.GetEnv(), "HOSTNAME"), variable(s.settings.Load().env, "HOSTNAME"))
	s.files.do(func() { access, err = s.agents.Begin(s.agentBoot(req, hostname)) })
	if err != nil {
		return nil, other("The agent socket cannot be made (%v): see that %s in the sandbox is writable, or make the sandbox anew.", err, s.cfg.RunDir)
	}
	return access, nil
}

// run is an exec whose process was started.
type run struct {
	exec   *execution
	child  *child
	record *guestv1.ExecRecord
	// asked is what the status file keeps of the request.
	asked   *guestv1.RecordedRequest
	writer  *logs.Writer
	streams *streams
	oom     oomMark
	limits  *limits
	sampler *sampler
	probes  *probes.Prober
}

// supervise copies the output of a process into its log files until the process ends,
// records how it ended, and continues with the output as long as any process holds it
// open.
func (s *Supervisor) supervise(r *run) {
	defer s.work.Done()
	var pumps sync.WaitGroup
	pumps.Go(r.streams.out.Run)
	end := <-r.child.exited
	r.limits.stop()
	r.sampler.stop()
	r.probes.Stop()
	r.streams.input.shut()
	r.streams.out.Drain()
	s.disk.do(r.writer.Flush)
	s.agents.End(r.exec.id) // what is reported later could miss the daemon
	record := s.exitRecord(r, end)
	// The names of empty files need no sync of their own: they are in the same file
	// system commit as the status.
	if record.GetStdoutBytes()+record.GetStderrBytes()+record.GetStdoutDroppedBytes()+record.GetStderrDroppedBytes() > 0 {
		// Sync the log before reporting the exit. A failed sync shows up when the log is
		// read after a host crash; the exit is valid anyway.
		s.disk.do(func() { _ = r.writer.Sync() })
	}
	s.writeStatus(record, r.asked, logs.StatusOptions{Owner: s.owner(), NoSync: true})
	<-r.exec.decided // report the end after the start, however short the process was
	s.registry.finish(r.exec, record)
	// Sync the status after the report. A daemon that got the report stores the exit
	// itself. An exit that was not reported and that a host crash lost was never
	// acknowledged.
	s.writeStatus(record, r.asked, logs.StatusOptions{Owner: s.owner()})
	s.refillSpares()
	s.memory.work()

	unless := context.AfterFunc(s.collecting, r.streams.out.Close)
	pumps.Wait()
	unless()
	r.streams.out.Close() // only a terminal is still open here; pipes are closed
	r.limits.wait()
	r.sampler.wait()
	r.probes.Wait()
	s.disk.do(func() { _ = r.writer.Close() })
}

// exitRecord returns the final record of a process.
func (s *Supervisor) exitRecord(of *run, end exit) *guestv1.ExecRecord {
	r, n := of.record.CloneVT(), of.writer.Counts()
	r.Phase = guestv1.ExecPhase_EXEC_PHASE_EXITED
	r.FinishedAt = guestv1.New(end.at)
	r.ExitCode = int32(end.status.ExitStatus())
	if end.status.Signaled() {
		r.Signal = int32(end.status.Signal())
		r.ExitCode = signalBase + r.Signal
	}
	r.EndCause, r.Cancelled = end.cause, end.cause != guestv1.EndCause_END_CAUSE_NONE
	used := end.usage
	used.peak = max(used.peak, of.sampler.peak())
	r.UserUs, r.SystemUs = uint64(used.user.Microseconds()), uint64(used.system.Microseconds())
	r.PeakMemoryBytes = used.peak
	// If the supervisor itself may have sent SIGKILL, the signal proves nothing.
	killed := (end.killed || r.ExitCode == killedCode) && !r.Cancelled
	if s.oom.end(of.oom, killed, used.peak) {
		r.OomKilled, r.FailureMessage = true, oomMessage
	}
	r.StdoutBytes, r.StderrBytes = n.Stdout, n.Stderr
	r.StdoutDroppedBytes, r.StderrDroppedBytes = n.StdoutDropped, n.StderrDropped
	return r
}

// failed ends an exec whose process did not start.
func (s *Supervisor) failed(e *execution, asked *guestv1.RecordedRequest, fail *startError) {
	s.agents.End(e.id)
	record := s.failureRecord(e.id, fail)
	s.writeStatus(record, asked, logs.StatusOptions{Owner: s.owner()})
	s.registry.finish(e, record)
}

// failureRecord returns the final record of an exec whose process did not start.
func (s *Supervisor) failureRecord(id string, fail *startError) *guestv1.ExecRecord {
	now := guestv1.Now()
	return &guestv1.ExecRecord{
		ExecId:         id,
		Phase:          guestv1.ExecPhase_EXEC_PHASE_FAILED,
		StartedAt:      now,
		FinishedAt:     now,
		ExitCode:       fail.exitCode(),
		Failure:        fail.kind,
		FailureMessage: strings.ToValidUTF8(cut(fail.message, rpc.MaxFailureMessage), "?"),
		BootId:         s.bootID,
		EndCause:       fail.cause,
		Cancelled:      fail.cause != guestv1.EndCause_END_CAUSE_NONE,
	}
}

// mainExec is the exec id of the container's own command if the daemon does not set
// another one.
const mainExec = "main"

// release starts the container's own command, once, and returns its exec id. The id is
// empty if there is no command. Every returned id gets a status. So after the stop has
// begun, release returns an empty id for a command that was held back until then.
func (s *Supervisor) release(ctx context.Context) (id string, err error) {
	if len(s.boot().GetCommand()) == 0 {
		return "", nil
	}
	s.mainOnce.Do(func() { s.startMain(ctx) })
	if id = s.mainExecID(); id == "" {
		return "", rpc.Errorf(rpc.Unavailable, "the supervisor is stopping and starts nothing any more")
	}
	return id, nil
}

// startMain claims the id of the container's own command and starts it in the background,
// like any other exec, counted in work.
func (s *Supervisor) startMain(ctx context.Context) {
	e := s.claimMain()
	if e == nil {
		return
	}
	s.mainID.Store(&e.id)
	// A failure becomes a record that the daemon asks for.
	go s.begin(context.WithoutCancel(ctx), e, &guestv1.StartRequest{
		ExecId:  e.id,
		Command: s.boot().GetCommand(),
		User:    s.boot().GetUser(),
		Cwd:     s.boot().GetCwd(),
	})
}

// claimMain claims an exec id for the container's own command. It returns nil once the
// supervisor stops. An exec id is never reused: when the container is started again, its
// command runs as ID-2, ID-3 and so on, and the earlier logs stay. The daemon says which
// ids it has recorded, because status files of earlier runs may have been removed.
func (s *Supervisor) claimMain() *execution {
	first := s.boot().GetMainExecId()
	if !ids.Valid(first) {
		first = mainExec
	}
	for run := max(1, s.boot().GetMainRun()); ; run++ {
		id := ids.MainRun(first, run)
		if s.readStatus(id) == nil {
			if e, mine := s.registry.claim(id, &s.work); mine || e == nil {
				return e
			}
		}
	}
}

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
