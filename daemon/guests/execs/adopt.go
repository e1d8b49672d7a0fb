package execs

import (
	"cmp"
	"context"
	"errors"
	"os"
	"slices"
	"time"

	"buf.build/go/protovalidate"
	"google.golang.org/protobuf/types/known/durationpb"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"

	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/internal/ids"
	"github.com/agbox/agbox/internal/paths"
	"github.com/agbox/agbox/logs"
)

// Limits of an adoption, per sandbox. A container can make any number of status files.
const (
	maxListed         = 1 << 16
	maxAdoptedEnded   = 5000
	maxAdoptedRunning = 4096 // far below rpc.MaxWatched
)

// AdoptAll reads the status files of a sandbox whose record is lost. The container wrote
// these files: what they say is a claim, which is bounded and checked. running tells
// whether the primary runs; if not, the execs that ran are lost. now replaces times that
// are in the future.
func AdoptAll(ctx context.Context, install paths.Install, sandboxID string, running bool, now time.Time) (ledger.AdoptedExecs, error) {
	dir, err := logs.OpenDir(install.SandboxLogs(sandboxID))
	if errors.Is(err, logs.ErrNotExist) {
		return ledger.AdoptedExecs{}, nil
	}
	if err != nil {
		return ledger.AdoptedExecs{}, err
	}
	defer func() { _ = dir.Close() }()
	a := adopter{sandboxID: sandboxID, running: running, now: now, boot: bootConfig(install.GuestBoot(sandboxID))}
	list, more, err := dir.ExecIDs(ctx, maxListed)
	if err != nil {
		return ledger.AdoptedExecs{}, err
	}
	for _, id := range list {
		if err := ctx.Err(); err != nil {
			return ledger.AdoptedExecs{}, err
		}
		a.take(dir, id)
	}
	found := a.found()
	found.More = more
	return found, nil
}

// bootConfig reads what the daemon gave the supervisor; empty if that cannot be read.
func bootConfig(path string) *guestv1.BootConfig {
	boot := new(guestv1.BootConfig)
	if raw, err := os.ReadFile(path); err != nil || boot.UnmarshalVT(raw) != nil {
		return new(guestv1.BootConfig)
	}
	return boot
}

// adopter collects the execs of one sandbox.
type adopter struct {
	sandboxID string
	running   bool
	now       time.Time
	boot      *guestv1.BootConfig

	ended, live      []ledger.AdoptedExec
	refused, omitted int
}

// take reads one status file.
func (a *adopter) take(dir *logs.Dir, execID string) {
	rec, err := ReadStatus(dir, execID)
	switch {
	case errors.Is(err, logs.ErrNotExist): // a supervisor removed it just now
		return
	case err != nil, rec.GetPhase() == guestv1.ExecPhase_EXEC_PHASE_UNKNOWN,
		ids.MayBeMain(execID) && !ids.IsMain(a.sandboxID, execID):
		a.refused++
		return
	}
	e := a.exec(rec)
	if e.End == nil {
		if len(a.live) == maxAdoptedRunning {
			a.omitted++
			return
		}
		a.live = append(a.live, e)
		return
	}
	if a.ended = append(a.ended, e); len(a.ended) >= 2*maxAdoptedEnded {
		a.keepNewest()
	}
}

// keepNewest orders the ended execs by their ends and leaves out what is too much.
func (a *adopter) keepNewest() {
	slices.SortFunc(a.ended, func(x, y ledger.AdoptedExec) int {
		return cmp.Or(x.End.GetFinishedAt().AsTime().Compare(y.End.GetFinishedAt().AsTime()), byID(x, y))
	})
	over := max(0, len(a.ended)-maxAdoptedEnded)
	a.omitted += over
	a.ended = slices.Delete(a.ended, 0, over)
}

func byID(x, y ledger.AdoptedExec) int {
	return cmp.Compare(x.Request.GetExecId(), y.Request.GetExecId())
}

// found returns the execs in the order that ledger.Adopted asks for. Of running execs
// with the same name only one keeps it: the main command, else the oldest.
func (a *adopter) found() ledger.AdoptedExecs {
	a.keepNewest()
	slices.SortFunc(a.live, func(x, y ledger.AdoptedExec) int {
		return cmp.Or(x.StartedAt.AsTime().Compare(y.StartedAt.AsTime()), byID(x, y))
	})
	taken := make(map[string]bool)
	for _, e := range a.live {
		taken[ledger.MainName] = taken[ledger.MainName] || e.Main
	}
	for _, e := range a.live {
		if e.Main {
			continue
		}
		if taken[e.Request.GetName()] {
			e.Request.Name = ""
		}
		taken[e.Request.GetName()] = true
	}
	return ledger.AdoptedExecs{Execs: slices.Concat(a.ended, a.live), Refused: a.refused, Omitted: a.omitted}
}

// exec turns the record of a status file into an exec to adopt.
func (a *adopter) exec(rec *guestv1.ExecRecord) ledger.AdoptedExec {
	rec.StartedAt, rec.FinishedAt = a.past(rec.GetStartedAt()), a.past(rec.GetFinishedAt())
	e := ledger.AdoptedExec{Main: ids.IsMain(a.sandboxID, rec.GetExecId()), StartedAt: onHost(rec.GetStartedAt())}
	if e.Main {
		e.Request = mainRequest(a.sandboxID, rec.GetExecId(), a.boot)
	} else {
		e.Request = a.request(rec)
	}
	switch {
	case rec.GetPhase() != guestv1.ExecPhase_EXEC_PHASE_RUNNING:
		e.End = ledger.Ended(details(rec), a.now)
		if timedOut(e.End) {
			e.End.ErrorMessage = timeoutSentence(e.End.GetErrorCode(), e.Request)
		}
	case !a.running:
		e.End = ledger.Ended(lostExec(rec.GetExecId(), "The container of the sandbox was not running when the sandbox was adopted"), a.now)
		e.End.StartedAt = onHost(rec.GetStartedAt())
	}
	return e
}

// past replaces a time that is missing or in the future with the present.
func (a *adopter) past(t *guestv1.Timestamp) *guestv1.Timestamp {
	if t == nil || t.AsTime().After(a.now) {
		return guestv1.New(a.now)
	}
	return t
}

// request returns the request of an exec as far as its status file keeps it. A
// supervisor before RecordedRequest keeps nothing of it.
func (a *adopter) request(rec *guestv1.ExecRecord) *agboxv1.CreateExecRequest {
	bare := &agboxv1.CreateExecRequest{SandboxId: a.sandboxID, ExecId: rec.GetExecId()}
	kept := rec.GetRequest()
	if kept == nil {
		return bare
	}
	req := &agboxv1.CreateExecRequest{
		SandboxId: a.sandboxID, ExecId: rec.GetExecId(), Command: kept.GetCommand(), Name: kept.GetName(),
		Tty: kept.GetTty(), Stdin: kept.GetStdin(), MaxLogBytes: kept.GetMaxLogBytes(),
		Timeout: fromMilliseconds(kept.GetTimeoutMs()), IdleTimeout: fromMilliseconds(kept.GetIdleTimeoutMs()),
	}
	if kept.GetCwd() != execDir(a.boot) {
		req.Cwd = kept.GetCwd()
	}
	if kept.GetUser() != a.boot.GetUser() {
		req.User = kept.GetUser()
	}
	if protovalidate.Validate(req) != nil {
		return bare // no caller's request was like that: the file is forged
	}
	return req
}

// fromMilliseconds is nil for a limit that there is not.
func fromMilliseconds(ms uint64) *durationpb.Duration {
	if ms == 0 {
		return nil
	}
	return durationpb.New(time.Duration(min(ms, maxMilliseconds)) * time.Millisecond)
}

const maxMilliseconds = uint64(1<<63-1) / uint64(time.Millisecond)
