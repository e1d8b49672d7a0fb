package supervisor

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/agbox/agbox/logs"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"
	"github.com/agbox/agbox/runtime/guest/rpc"
)

// journal records that a process is about to be started. It does not sync: the record
// must outlive the supervisor, not the host. A host crash also ends the container, and
// the daemon then counts every exec accepted before as lost without asking.
func (s *Supervisor) journal(record *guestv1.ExecRecord, asked *guestv1.RecordedRequest) error {
	raw, err := encodeStatus(record, asked)
	if err != nil {
		return err
	}
	s.disk.do(func() {
		err = s.logs.WriteStatus(record.GetExecId(), raw, logs.StatusOptions{Owner: s.owner(), NoSync: true})
	})
	return err
}

// writeStatus writes the final record. If even the reserved space cannot be written, the
// record stays in memory, and the daemon gets it from there.
func (s *Supervisor) writeStatus(record *guestv1.ExecRecord, asked *guestv1.RecordedRequest, opt logs.StatusOptions) {
	raw, err := encodeStatus(record, asked)
	if err != nil {
		return // cannot happen: the strings are valid UTF-8
	}
	s.disk.do(func() { _ = s.logs.WriteStatus(record.GetExecId(), raw, opt) })
}

// readStatus returns the record in a status file, or nil if there is none. For an
// unreadable file it returns a record that is running but not under this supervisor,
// because the result of the exec is unknown.
func (s *Supervisor) readStatus(id string) *guestv1.ExecRecord {
	var raw []byte
	var err error
	s.disk.do(func() { raw, err = s.logs.ReadStatus(id) })
	if errors.Is(err, logs.ErrNotExist) {
		return nil
	}
	record := new(guestv1.ExecRecord)
	if err == nil {
		err = record.UnmarshalVT(raw)
	}
	if err == nil && record.GetExecId() != id {
		err = fmt.Errorf("it is of exec %q", record.GetExecId())
	}
	if err != nil {
		return &guestv1.ExecRecord{
			ExecId:         id,
			Phase:          guestv1.ExecPhase_EXEC_PHASE_RUNNING,
			FailureMessage: strings.ToValidUTF8(cut(fmt.Sprintf("The status file cannot be read: %v.", err), rpc.MaxFailureMessage), "?"),
		}
	}
	record.Request = nil // kept for a daemon that lost its database; no other needs it
	return record
}

// encodeStatus makes the content of a status file. The request is only in the file: the
// records in memory are many, and each is sent to every watcher.
func encodeStatus(record *guestv1.ExecRecord, asked *guestv1.RecordedRequest) ([]byte, error) {
	raw, err := record.MarshalVT()
	if err != nil || asked == nil {
		return raw, err
	}
	// An encoded message that is appended to another is merged with it.
	more, err := (&guestv1.ExecRecord{Request: asked}).MarshalVT()
	return append(raw, more...), err
}

// recordedRequest returns what the status file of an exec keeps of its request, within
// the limits that the daemon checks.
func recordedRequest(req *guestv1.StartRequest) *guestv1.RecordedRequest {
	return &guestv1.RecordedRequest{
		Command: recordedCommand(req.GetCommand()),
		Name:    recordedText(req.GetName()), Cwd: recordedText(req.GetCwd()), User: recordedText(req.GetUser()),
		Tty: req.GetTty(), Stdin: req.GetStdin(),
		TimeoutMs: req.GetTimeoutMs(), IdleTimeoutMs: req.GetIdleTimeoutMs(), MaxLogBytes: req.GetMaxLogBytes(),
	}
}

// recordedText leaves out a text that is too long.
func recordedText(s string) string {
	if len(s) > rpc.MaxRecordedText {
		return ""
	}
	return s
}

// recordedCommand returns as much of a command as a status file keeps.
func recordedCommand(command []string) []string {
	left := rpc.MaxRecordedCommand
	for i, word := range command {
		if left -= len(word) + rpc.RecordedWord; left >= 0 {
			continue
		}
		const cutMark = "…"
		room := left + len(word) - len(cutMark)
		if room < 0 {
			return slices.Clone(command[:i])
		}
		for room > 0 && !utf8.RuneStart(word[room]) {
			room--
		}
		return append(command[:i:i], strings.Clone(word[:room])+cutMark)
	}
	return command
}

const (
	// execFiles is the number of files of an exec: two outputs, index, status.
	execFiles = 4
	// spareFiles is how many files are kept ready. It suffices for a few concurrent
	// starts.
	spareFiles = 4 * execFiles
)

// keepSpares keeps files ready for future execs until the supervisor stops. After a
// failure it tries again after the next exec.
func (s *Supervisor) keepSpares() {
	for {
		// One at a time, so an exec never waits for more than one in the gate.
		for more := true; more; {
			s.disk.do(func() { more, _ = s.logs.AddSpare() })
		}
		select {
		case <-s.refill:
		case <-s.stopping:
			return
		}
	}
}

// refillSpares wakes keepSpares. It is called when an exec ends and not when it takes the
// files, because the processors are less busy then.
func (s *Supervisor) refillSpares() {
	select {
	case s.refill <- struct{}{}:
	default: // it is going to run anyway
	}
}

// redactorOf returns what takes the values of secret variables out of the log of an exec; nil
// if there are none. The daemon tells only names: no file inside has a value because of it.
func (s *Supervisor) redactorOf(req *guestv1.StartRequest) *logs.Redactor {
	switch {
	case req.GetShowSecrets():
		return nil
	case len(req.GetSecretEnvs()) == 0:
		return s.settings.Load().redactor // commands without secrets of their own share one
	}
	return logs.NewRedactor(append(s.settings.Load().secrets(), valuesOf(req.GetEnv(), req.GetSecretEnvs())...))
}
