package server

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/agbox/agbox/daemon/admission"
	"github.com/agbox/agbox/daemon/guests/execs"
	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/internal/ids"
	"github.com/agbox/agbox/internal/paths"
	"github.com/agbox/agbox/logs"
	"github.com/agbox/agbox/logs/notify"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"
)

// execCalls implements the calls about execs, their output and their input.
type execCalls struct {
	ledger *ledger.Ledger
	execs  Execs
	paths  paths.Install
	// logs wakes followers of log files.
	logs *notify.Notifier
	// slowReader is how long a client may read nothing. 0 means the default.
	slowReader time.Duration
	life       *lifetime
	// typing knows who may type.
	typing typing
}

// CreateExec accepts a command and waits until it has been started.
func (s *execCalls) CreateExec(ctx context.Context, req *agboxv1.CreateExecRequest) (*agboxv1.CreateExecResponse, error) {
	resolved, started, err := s.createExec(ctx, req)
	if err != nil {
		return nil, err
	}
	select {
	case <-started:
	case <-s.life.stopping:
		// It is committed. If it has not been started, the next daemon starts it.
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	return s.created(resolved), nil
}

func (s *execCalls) created(req *agboxv1.CreateExecRequest) *agboxv1.CreateExecResponse {
	stdout, stderr := s.logPaths(req.GetSandboxId(), req.GetExecId())
	return &agboxv1.CreateExecResponse{ExecId: req.GetExecId(), StdoutLogPath: stdout, StderrLogPath: stderr}
}

// createExec commits a command and starts sending it to its supervisor. It returns the
// request with its ids.
func (s *execCalls) createExec(ctx context.Context, req *agboxv1.CreateExecRequest) (*agboxv1.CreateExecRequest, <-chan struct{}, error) {
	if err := admission.CheckCommand(req); err != nil {
		return nil, nil, err
	}
	sandboxID, err := s.sandboxOf(ctx, req)
	if err != nil {
		return nil, nil, err
	}
	resolved, err := admission.IdentifyExec(ctx, req, sandboxID)
	if err != nil {
		return nil, nil, err
	}
	started, err := s.execs.Create(ctx, resolved)
	return resolved, started, err
}

// sandboxOf returns the id of the sandbox that a command is for. If it was given by its name, a
// repeated request gets that of the first one.
func (s *execCalls) sandboxOf(ctx context.Context, req *agboxv1.CreateExecRequest) (string, error) {
	name, key := req.GetSandboxName(), req.GetRequestKey()
	switch {
	case name == "":
		sb, err := s.ledger.FindSandbox(ctx, req.GetSandboxId())
		return sb.ID, err
	case key != "":
		of, err := s.ledger.SandboxOfRepeated(ctx, key, cmp.Or(req.GetExecId(), ids.OfKey(key)))
		if of != "" || err != nil {
			return of, err
		}
	}
	return s.ledger.SandboxNamed(ctx, name)
}

// CancelExec ends a running exec.
func (s *execCalls) CancelExec(ctx context.Context, req *agboxv1.CancelExecRequest) (*agboxv1.AcceptedResponse, error) {
	grace := execs.DefaultGrace
	if req.GetGrace() != nil {
		grace = req.GetGrace().AsDuration()
	}
	return s.onRunning(ctx, req.GetExecId(), func(sandboxID, execID string) error {
		return s.execs.Cancel(ctx, sandboxID, execID, grace)
	})
}

// SignalExec sends a signal to a running exec.
func (s *execCalls) SignalExec(ctx context.Context, req *agboxv1.SignalExecRequest) (*agboxv1.AcceptedResponse, error) {
	return s.onRunning(ctx, req.GetExecId(), func(sandboxID, execID string) error {
		return s.execs.Signal(ctx, sandboxID, execID, req.GetSignal())
	})
}

func (s *execCalls) onRunning(ctx context.Context, execID string, do func(sandboxID, execID string) error) (*agboxv1.AcceptedResponse, error) {
	sandboxID, err := s.ledger.FindExec(ctx, execID)
	if err != nil {
		return nil, err
	}
	select {
	case <-s.ledger.ExecDone(execID):
		return nil, execs.NotRunning(execID)
	default:
	}
	if err := do(sandboxID, execID); err != nil {
		return nil, err
	}
	return &agboxv1.AcceptedResponse{Accepted: true}, nil
}

// GetExec returns one exec.
func (s *execCalls) GetExec(ctx context.Context, req *agboxv1.GetExecRequest) (*agboxv1.GetExecResponse, error) {
	sandboxID, err := s.ledger.FindExec(ctx, req.GetExecId())
	if err != nil {
		return nil, err
	}
	status, err := s.execStatus(ctx, sandboxID, req.GetExecId())
	return &agboxv1.GetExecResponse{Exec: status}, err
}

// ListActiveExecs returns the running execs of one sandbox or of all.
func (s *execCalls) ListActiveExecs(ctx context.Context, req *agboxv1.ListActiveExecsRequest) (*agboxv1.ListActiveExecsResponse, error) {
	sandboxes := s.ledger.Owned()
	if req.SandboxId != nil {
		sb, err := s.ledger.FindSandbox(ctx, req.GetSandboxId())
		if err != nil {
			return nil, err
		}
		sandboxes = append(sandboxes[:0], sb)
	}
	resp := new(agboxv1.ListActiveExecsResponse)
	for _, sb := range sandboxes {
		for id, e := range sb.Execs {
			if e.Main && !req.GetIncludeMain() {
				continue
			}
			status, err := s.execStatus(ctx, sb.ID, id)
			if err != nil {
				return nil, err
			}
			if status.GetState() == agboxv1.ExecState_EXEC_STATE_RUNNING {
				resp.Execs = append(resp.Execs, status)
			}
		}
	}
	newestFirst(resp.GetExecs(), (*agboxv1.ExecStatus).GetStartedAt, (*agboxv1.ExecStatus).GetExecId)
	return resp, nil
}

// Page sizes of ListExecs.
const (
	defaultPage = 100
	maxPage     = 1000
	// maxPageBytes ends a page early, in bytes: the command of one exec may have 2 MiB.
	maxPageBytes = 1 << 20
)

// ListExecs pages through the execs of a sandbox.
func (s *execCalls) ListExecs(ctx context.Context, req *agboxv1.ListExecsRequest) (*agboxv1.ListExecsResponse, error) {
	sb, err := s.ledger.FindSandbox(ctx, req.GetSandboxId())
	if err != nil {
		return nil, err
	}
	size := defaultPage
	if n := int(req.GetPageSize()); n > 0 {
		size = min(n, maxPage)
	}
	page, err := s.ledger.Execs(ctx, sb.ID, req.GetPageToken(), size+1)
	if err != nil {
		return nil, err
	}
	resp := new(agboxv1.ListExecsResponse)
	if fits := fitting(page, maxPageBytes); fits < size {
		size = fits
	}
	if len(page) > size { // there is one more than requested, so there is a next page
		page = page[:size]
		resp.NextPageToken = page[size-1].GetExecId()
	}
	for _, status := range page {
		status.StdoutLogPath, status.StderrLogPath = s.logPaths(sb.ID, status.GetExecId())
	}
	resp.Execs = page
	return resp, nil
}

func (s *execCalls) execStatus(ctx context.Context, sandboxID, execID string) (*agboxv1.ExecStatus, error) {
	status, err := s.ledger.Exec(ctx, sandboxID, execID)
	if err != nil {
		return nil, err
	}
	status.StdoutLogPath, status.StderrLogPath = s.logPaths(sandboxID, execID)
	if status.GetErrorCode() == agboxv1.ErrorReason_EXEC_LOST.String() {
		status.Error += s.leftBehind(sandboxID, execID)
	}
	return status, nil
}

// leftBehind says what the status file of a lost exec tells of its end, if its container ran on. It
// is recorded when the container is linked again.
func (s *execCalls) leftBehind(sandboxID, execID string) string {
	dir, err := logs.OpenDir(s.paths.SandboxLogs(sandboxID))
	if err != nil {
		return ""
	}
	defer func() { _ = dir.Close() }()
	rec, err := execs.ReadStatus(dir, execID)
	if err != nil || rec.GetPhase() != guestv1.ExecPhase_EXEC_PHASE_EXITED {
		return ""
	}
	return fmt.Sprintf(" Its status file says that it ended with exit code %d.", rec.GetExitCode())
}

func (s *execCalls) logPaths(sandboxID, execID string) (stdout, stderr string) {
	dir := s.paths.SandboxLogs(sandboxID)
	return filepath.Join(dir, logs.StdoutName(execID)), filepath.Join(dir, logs.StderrName(execID))
}

// newestFirst sorts a list by time, and elements with the same time by id.
func newestFirst[T any](all []T, at func(T) *timestamppb.Timestamp, id func(T) string) {
	slices.SortFunc(all, func(a, b T) int {
		return cmp.Or(at(b).AsTime().Compare(at(a).AsTime()), cmp.Compare(id(a), id(b)))
	})
}

// fitting returns how many of the first execs have at most max bytes together, at least 1.
func fitting(list []*agboxv1.ExecStatus, max int) int {
	size := 0
	for i, status := range list {
		if size += proto.Size(status); size > max && i > 0 {
			return i
		}
	}
	return len(list)
}

// ListProcesses lists the processes in the primary of a sandbox.
func (s *execCalls) ListProcesses(ctx context.Context, req *agboxv1.ListProcessesRequest) (*agboxv1.ListProcessesResponse, error) {
	sb, err := s.ledger.FindSandbox(ctx, req.GetSandboxId())
	if err != nil {
		return nil, err
	}
	list, err := s.execs.Processes(ctx, sb.ID)
	if err != nil {
		return nil, err
	}
	sb, _ = s.ledger.Sandbox(sb.ID) // with the execs that were accepted meanwhile
	for _, p := range list.GetProcesses() {
		p.ExecName = sb.Execs[p.GetExecId()].Name
	}
	return list, nil
}
