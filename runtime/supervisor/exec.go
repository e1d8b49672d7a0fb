package supervisor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/agbox/agbox/logs"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"
	"github.com/agbox/agbox/runtime/guest/wire"
)

// start starts an exec, or returns the record of the one that has its id.
func (s *Supervisor) start(ctx context.Context, req *guestv1.StartRequest) (*guestv1.ExecRecord, error) {
	e, mine := s.registry.claim(req.GetExecId(), &s.work)
	if e == nil {
		// Nothing is written down: whoever misses the answer asks again and gets the same.
		if found := s.readStatus(req.GetExecId()); found != nil {
			return found, nil
		}
		return s.failureRecord(req.GetExecId(), tooLate()), nil
	}
	if mine {
		// Not bound to ctx: a claimed id must come to a decision, whoever still listens.
		s.begin(context.WithoutCancel(ctx), e, req)
	}
	select {
	case <-e.decided:
		return s.registry.recordOf(e), nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// begin decides what becomes of a claimed exec. It ends the claim's count in
// s.work, or hands it to the goroutine that supervises the process.
func (s *Supervisor) begin(ctx context.Context, e *execution, req *guestv1.StartRequest) {
	supervised := false
	defer func() {
		if !supervised {
			s.refillSpares()
			s.work.Done()
		} else if s.logs.Spares() < spareFiles/2 {
			s.refillSpares() // many that last; otherwise it is done when one ends
		}
	}()
	if found := s.readStatus(e.id); found != nil {
		s.registry.finish(e, found)
		return
	}
	writer, fail := s.createLogs(ctx, req)
	if fail != nil {
		s.failed(e, fail)
		return
	}
	fail = s.launch(e, req, writer, &supervised)
	if fail != nil {
		s.disk.do(func() { _ = writer.Close() })
		s.failed(e, fail)
	}
}

// removeTimeout bounds the removal of files that a container may have made many.
const removeTimeout = 5 * time.Second

// createLogs makes the log files. Files of that id without a status file are
// from a supervisor that died before it journalled the start: nothing ran, and
// they are empty.
func (s *Supervisor) createLogs(ctx context.Context, req *guestv1.StartRequest) (w *logs.Writer, fail *startError) {
	id := req.GetExecId()
	ctx, cancel := context.WithTimeout(ctx, removeTimeout)
	defer cancel()
	s.disk.do(func() {
		opt := logs.WriterOptions{
			MaxBytes: cmp.Or(req.GetMaxLogBytes(), s.cfg.Boot.GetMaxLogBytes()),
			Quota:    s.quota,
			Owner:    s.owner(),
		}
		var err error
		if w, err = s.logs.Create(id, opt); errors.Is(err, errdefs.ErrAlreadyExists) {
			if err = s.logs.Remove(ctx, id); err == nil {
				w, err = s.logs.Create(id, opt)
			}
		}
		if err != nil {
			fail = other("The log files of the command cannot be made (%v): see that the daemon's log directory is on a file system that is writable and not full.", err)
		}
	})
	return w, fail
}

// owner is who gets the files that the supervisor writes for the host.
func (s *Supervisor) owner() logs.Owner {
	return logs.Owner{UID: int(s.cfg.Boot.GetOwnerUid()), GID: int(s.cfg.Boot.GetOwnerGid())}
}

// launch journals the exec and starts its process.
func (s *Supervisor) launch(e *execution, req *guestv1.StartRequest, writer *logs.Writer, supervised *bool) *startError {
	var p *plan
	var fail *startError
	s.files.do(func() { p, fail = s.plan(req) })
	if fail != nil {
		return fail
	}
	record := &guestv1.ExecRecord{
		ExecId:    e.id,
		Phase:     guestv1.ExecPhase_EXEC_PHASE_RUNNING,
		StartedAt: timestamppb.Now(),
		BootId:    s.bootID,
	}
	if err := s.journal(record); err != nil {
		return other("The start of the command cannot be written down (%v), and without that it could run twice: see that the daemon's log directory is on a file system that is writable and not full.", err)
	}
	st, fail := s.openStreams(req, p.uid, writer)
	if fail != nil {
		return fail
	}
	oom := s.oom.begin()
	ch, err := s.children.start(p.path, p.argv, &syscall.ProcAttr{
		Dir:   p.dir,
		Env:   p.env,
		Files: st.descriptors(),
		// Of a terminal, standard input is the one that controls the session.
		Sys: &syscall.SysProcAttr{Setsid: true, Setctty: req.GetTty(), Credential: p.credential},
	})
	if err != nil {
		st.close()
		s.oom.end(oom, false, 0)
		return p.explain(err)
	}
	preferForOOM(ch.pid)
	st.started()
	record = proto.CloneOf(record)
	record.Pid = int32(ch.pid)
	*supervised = true
	s.registry.running(e, ch, st.input, record)
	go s.supervise(&run{
		exec: e, child: ch, record: record, writer: writer, streams: st, oom: oom,
		limits: s.limit(e, req, writer), sampler: s.sample(ch),
	})
	return nil
}

// run is an exec whose process was started.
type run struct {
	exec    *execution
	child   *child
	record  *guestv1.ExecRecord
	writer  *logs.Writer
	streams *streams
	oom     oomMark
	limits  *limits
	sampler *sampler
}

// supervise pumps the output of a process into its log files until its end, writes
// down how it ended, and goes on with the output as long as anybody has it open.
func (s *Supervisor) supervise(r *run) {
	defer s.work.Done()
	var pumps sync.WaitGroup
	pumps.Go(r.streams.out.Run)
	end := <-r.child.exited
	r.limits.stop()
	r.sampler.stop()
	r.streams.input.shut()
	r.streams.out.Drain()
	record := s.exitRecord(r, end)
	// Names of empty files need no sync of their own: the status is one commit of
	// the file system away from them.
	if record.GetStdoutBytes()+record.GetStderrBytes()+record.GetStdoutDroppedBytes()+record.GetStderrDroppedBytes() > 0 {
		// Who hears of the exit may count on the log. A failed sync is seen by whoever
		// reads it after a host crash; the exit counts all the same.
		s.disk.do(func() { _ = r.writer.Sync() })
	}
	s.writeStatus(record, logs.StatusOptions{Owner: s.owner(), NoSync: true})
	<-r.exec.decided // finish after running, however short the process was
	s.registry.finish(r.exec, record)
	// The sync of the status comes after the report: a daemon that got the report
	// makes the exit durable itself, and for one that did not, an exit that the
	// host's crash took with it was never acknowledged to anybody.
	s.writeStatus(record, logs.StatusOptions{Owner: s.owner()})
	s.refillSpares()

	unless := context.AfterFunc(s.patience, r.streams.out.Close)
	pumps.Wait()
	unless()
	r.streams.out.Close() // a terminal's; those of pipes are closed
	r.limits.wait()
	r.sampler.wait()
	s.disk.do(func() { _ = r.writer.Close() })
}

// exitRecord is the final record of a process.
func (s *Supervisor) exitRecord(of *run, end exit) *guestv1.ExecRecord {
	r, n := proto.CloneOf(of.record), of.writer.Counts()
	r.Phase = guestv1.ExecPhase_EXEC_PHASE_EXITED
	r.FinishedAt = timestamppb.New(end.at)
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
	// Where the supervisor itself may have sent SIGKILL, it says nothing.
	killed := (end.killed || r.ExitCode == killedCode) && !r.Cancelled
	if s.oom.end(of.oom, killed, used.peak) {
		r.OomKilled, r.FailureMessage = true, oomMessage
	}
	r.StdoutBytes, r.StderrBytes = n.Stdout, n.Stderr
	r.StdoutDroppedBytes, r.StderrDroppedBytes = n.StdoutDropped, n.StderrDropped
	return r
}

// failed ends an exec that got no process.
func (s *Supervisor) failed(e *execution, fail *startError) {
	record := s.failureRecord(e.id, fail)
	s.writeStatus(record, logs.StatusOptions{Owner: s.owner()})
	s.registry.finish(e, record)
}

// failureRecord is the final record of an exec that got no process.
func (s *Supervisor) failureRecord(id string, fail *startError) *guestv1.ExecRecord {
	now := timestamppb.Now()
	return &guestv1.ExecRecord{
		ExecId:         id,
		Phase:          guestv1.ExecPhase_EXEC_PHASE_FAILED,
		StartedAt:      now,
		FinishedAt:     now,
		ExitCode:       fail.exitCode(),
		Failure:        fail.kind,
		FailureMessage: strings.ToValidUTF8(cut(fail.message, wire.MaxFailureMessage), "?"),
		BootId:         s.bootID,
		EndCause:       fail.cause,
		Cancelled:      fail.cause != guestv1.EndCause_END_CAUSE_NONE,
	}
}

// journal writes down that a process is about to be started. It is not synced:
// it has to outlive the supervisor, not the host. When the host crashes the
// container ends with it, and the daemon counts every exec accepted before that
// as lost without asking.
func (s *Supervisor) journal(record *guestv1.ExecRecord) error {
	raw, err := proto.Marshal(record)
	if err != nil {
		return err
	}
	s.disk.do(func() {
		err = s.logs.WriteStatus(record.GetExecId(), raw, logs.StatusOptions{Owner: s.owner(), NoSync: true})
	})
	return err
}

// writeStatus writes the final record. Where even the reserved space fails it
// stays in memory, and the daemon gets it from there.
func (s *Supervisor) writeStatus(record *guestv1.ExecRecord, opt logs.StatusOptions) {
	raw, err := proto.Marshal(record)
	if err != nil {
		return // cannot be: the strings are valid UTF-8
	}
	s.disk.do(func() { _ = s.logs.WriteStatus(record.GetExecId(), raw, opt) })
}

// readStatus returns the record in a status file; nil if there is none. What
// cannot be read stands for an exec whose fate cannot be known: running, but not
// under this supervisor.
func (s *Supervisor) readStatus(id string) *guestv1.ExecRecord {
	var raw []byte
	var err error
	s.disk.do(func() { raw, err = s.logs.ReadStatus(id) })
	if errors.Is(err, logs.ErrNotExist) {
		return nil
	}
	record := new(guestv1.ExecRecord)
	if err == nil {
		err = proto.Unmarshal(raw, record)
	}
	if err == nil && record.GetExecId() != id {
		err = fmt.Errorf("it is of exec %q", record.GetExecId())
	}
	if err != nil {
		return &guestv1.ExecRecord{
			ExecId:         id,
			Phase:          guestv1.ExecPhase_EXEC_PHASE_RUNNING,
			FailureMessage: strings.ToValidUTF8(cut(fmt.Sprintf("The status file cannot be read: %v.", err), wire.MaxFailureMessage), "?"),
		}
	}
	return record
}
