package machine

import (
	"fmt"
	"maps"
	"strings"
	"time"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// Legal reports whether an event of this type may follow the record. A sandbox never ends
// while one of its execs is recorded as running. README.md has the same table; a
// test compares the two.
func Legal(r Record, typ agboxv1.EventType) bool {
	if !r.Exists() {
		return typ == agboxv1.EventType_SANDBOX_ACCEPTED
	}
	switch typ {
	case agboxv1.EventType_SANDBOX_ACCEPTED: // somebody takes what was made ahead
		return r.Pool != "" && r.State == Ready && r.Want == WantRunning && len(r.Execs) == 0
	case agboxv1.EventType_SANDBOX_PREPARING, agboxv1.EventType_SANDBOX_FILES_COPIED, agboxv1.EventType_SANDBOX_READY:
		return r.State == Pending
	case agboxv1.EventType_SANDBOX_FAILED:
		return (r.State == Pending || r.State == Ready) && len(r.Execs) == 0
	case agboxv1.EventType_SANDBOX_STOP_REQUESTED:
		return r.State == Pending || r.State == Ready || r.State == Stopped && r.Restart
	case agboxv1.EventType_SANDBOX_STOPPED:
		return r.Want == WantStopped && (r.State == Pending || r.State == Ready) && len(r.Execs) == 0
	case agboxv1.EventType_SANDBOX_RESUME_REQUESTED:
		return r.State == Stopped || r.State == Failed
	case agboxv1.EventType_SANDBOX_DELETE_REQUESTED:
		return r.State != Deleted
	case agboxv1.EventType_SANDBOX_RENAMED:
		return r.State != Deleting && r.State != Deleted
	case agboxv1.EventType_SANDBOX_ENDED:
		return r.State == Deleting && len(r.Execs) == 0 && !r.Ended
	case agboxv1.EventType_SANDBOX_DELETED:
		return r.State == Deleting && len(r.Execs) == 0
	case agboxv1.EventType_EXEC_STARTED:
		// Before READY only hooks may run; the ledger enforces that.
		return (r.State == Pending || r.State == Ready) && r.Want == WantRunning
	case agboxv1.EventType_EXEC_FOUND:
		return (r.State == Pending || r.State == Ready) && r.Want == WantRunning && len(r.Lost) > 0
	case agboxv1.EventType_EXEC_FINISHED, agboxv1.EventType_EXEC_FAILED, agboxv1.EventType_EXEC_CANCELLED:
		return (r.State == Pending || r.State == Ready || r.State == Deleting) && len(r.Execs) > 0
	case agboxv1.EventType_SANDBOX_REVIVED:
		return r.State == Ready && r.Want == WantRunning && len(r.Execs) == 0
	case agboxv1.EventType_SANDBOX_SERVICE_STARTED, agboxv1.EventType_SANDBOX_SERVICE_READY, agboxv1.EventType_SANDBOX_SERVICE_FAILED:
		return r.State == Pending || r.State == Ready
	}
	return false
}

// Fold returns the record after one more event. It ignores an event that is not newer
// than the record, so folding a stream twice has the same result as folding it once.
func Fold(r Record, ev *agboxv1.SandboxEvent) Record { return fold(r, ev, false) }

// Folding folds a history from its first event. Fold copies the running execs for each event
// about one, because others read the record before. A Folding changes its own, so that its
// work is linear.
type Folding struct{ record Record }

// Add folds one more event.
func (f *Folding) Add(ev *agboxv1.SandboxEvent) { f.record = fold(f.record, ev, true) }

// Record returns the record after the events so far. No event may be added after it.
func (f *Folding) Record() Record { return f.record }

// fold is Fold. own means that nobody else has the map of execs.
func fold(r Record, ev *agboxv1.SandboxEvent, own bool) Record {
	if ev.GetSequence() <= r.LastSequence {
		return r
	}
	r.LastSequence = ev.GetSequence()
	before := r.State
	at := ev.GetOccurredAt().AsTime()
	phase := ev.GetSandboxPhase()
	switch ev.GetEventType() {
	case agboxv1.EventType_SANDBOX_ACCEPTED:
		if r.Pool != "" { // nothing of its time in the pool is left but what the engine has
			r = Record{Nonce: r.Nonce, Services: r.Services, Prepare: r.Prepare, LastSequence: r.LastSequence, Taken: true}
		} else {
			r.Nonce = phase.GetNonce()
		}
		r.ID, r.Name, r.Pool, r.Accepted = ev.GetSandboxId(), phase.GetName(), phase.GetPool(), r.LastSequence
		r.CreatedAt = at
		r.State, r.Want, r.PendingSequence = Pending, WantRunning, r.LastSequence
	case agboxv1.EventType_SANDBOX_FILES_COPIED:
		r.Copied, r.Furnished = true, true
	case agboxv1.EventType_SANDBOX_READY:
		r.State, r.WasReady, r.LastUse, r.ReadyAt, r.FailedSince = Ready, true, at, at, time.Time{}
		r.Lost = nil // the supervisor of now was asked for them
	case agboxv1.EventType_SANDBOX_FAILED:
		r.State = Failed
		r.ErrorReason, r.ErrorMessage = phase.GetErrorCode(), phase.GetErrorMessage()
		if r.FailedSince.IsZero() || at.Before(r.FailedSince) { // else the clock was ahead
			r.FailedSince = at
		}
	case agboxv1.EventType_SANDBOX_STOP_REQUESTED:
		r.Want, r.IdleStop, r.StopRequestedAt = WantStopped, phase.GetReason() == idleReason, at
		r.StopReason, r.StopMessage = phase.GetErrorCode(), phase.GetErrorMessage()
		r.Now, r.Restart, r.Reason = phase.GetNow(), phase.GetRestart(), phase.GetReason()
	case agboxv1.EventType_SANDBOX_STOPPED:
		r.State = Stopped
	case agboxv1.EventType_SANDBOX_RESUME_REQUESTED:
		r.State, r.Want, r.PendingSequence = Pending, WantRunning, r.LastSequence
		r.StopReason, r.StopMessage, r.Restart = "", "", false
		r.Revivals = 0
		r = servicesAnew(r)
	case agboxv1.EventType_SANDBOX_REVIVED:
		r.State, r.PendingSequence = Pending, r.LastSequence
		if at.Sub(r.ReadyAt) >= reviveStable {
			r.Revivals = 0
		}
		r.Revivals++
		r = downAnew(r)
	case agboxv1.EventType_SANDBOX_DELETE_REQUESTED:
		r.Now = phase.GetNow() || r.Now && r.Want == WantDeleted
		r.RemoveLogs = r.RemoveLogs || phase.GetRemoveLogs()
		r.State, r.Want, r.Restart, r.Reason = Deleting, WantDeleted, false, phase.GetReason()
	case agboxv1.EventType_SANDBOX_ENDED:
		r.Ended = true
	case agboxv1.EventType_SANDBOX_DELETED:
		r.State, r.Ended = Deleted, false
	case agboxv1.EventType_SANDBOX_RENAMED:
		r.Name = phase.GetName()
	case agboxv1.EventType_EXEC_STARTED:
		r.Furnished = r.Furnished || !r.WasReady
		r = withExec(r, startedExec(ev), own)
	case agboxv1.EventType_EXEC_FOUND:
		r = foundExec(r, ev, own)
	case agboxv1.EventType_EXEC_FINISHED, agboxv1.EventType_EXEC_FAILED, agboxv1.EventType_EXEC_CANCELLED:
		r = withoutExec(r, ev, own)
	case agboxv1.EventType_SANDBOX_SERVICE_STARTED, agboxv1.EventType_SANDBOX_SERVICE_READY, agboxv1.EventType_SANDBOX_SERVICE_FAILED:
		r = foldService(r, ev)
	}
	if r.State != before {
		r.StateChangedAt = at
	}
	if r.State != Failed {
		r.ErrorReason, r.ErrorMessage = "", ""
	}
	return r
}

func withExec(r Record, exec Exec, own bool) Record {
	r.Execs = with(r.Execs, exec, own)
	return r
}

// with returns the execs with one more.
func with(execs map[string]Exec, exec Exec, own bool) map[string]Exec {
	if execs == nil || !own {
		before := execs
		execs = make(map[string]Exec, len(before)+1)
		maps.Copy(execs, before)
	}
	execs[exec.ID] = exec
	return execs
}

// without returns the execs without one.
func without(execs map[string]Exec, id string, own bool) map[string]Exec {
	if !own {
		execs = maps.Clone(execs)
	}
	delete(execs, id)
	return execs
}

func startedExec(ev *agboxv1.SandboxEvent) Exec {
	d := ev.GetExec()
	return Exec{
		ID:        d.GetExecId(),
		Name:      d.GetName(),
		StartedAt: ev.GetOccurredAt().AsTime(),
		BootID:    d.GetSupervisorBootId(),
		Sequence:  ev.GetSequence(),
		Hook:      hookOf(d.GetHook()),
		Main:      d.GetMain(),
	}
}

// foundExec takes back that an exec was lost. The result of a hook is not taken back: it counts
// as failed, and may have run again.
func foundExec(r Record, ev *agboxv1.SandboxEvent, own bool) Record {
	exec, lost := r.Lost[ev.GetExec().GetExecId()]
	if !lost || !exec.MayReturn {
		return r
	}
	r.Lost = without(r.Lost, exec.ID, own)
	exec.Hook, exec.MayReturn, exec.Found = nil, false, true
	return withExec(r, exec, own)
}

// mayLive reports whether an exec may live although the event says that it has ended. Before
// may_return, EXEC_LOST did not tell whether the container was missing or had ended.
func mayLive(ev *agboxv1.SandboxEvent) bool {
	return ev.GetExec().GetMayReturn() || ev.GetExec().GetErrorCode() == agboxv1.ErrorReason_EXEC_LOST.String()
}

func withoutExec(r Record, ev *agboxv1.SandboxEvent, own bool) Record {
	id := ev.GetExec().GetExecId()
	exec, running := r.Execs[id]
	if !running {
		return r
	}
	if exec.Hook != nil {
		r = foldHookEnd(r, *exec.Hook, ev)
	}
	r.Execs = without(r.Execs, id, own)
	if mayLive(ev) {
		exec.MayReturn = ev.GetExec().GetMayReturn()
		r.Lost = with(r.Lost, exec, own)
	}
	if at := ev.GetOccurredAt().AsTime(); !exec.Main && at.After(r.LastUse) {
		r.LastUse = at
	}
	return r
}

// hookOf reads the hook from an event. It returns nil if the exec is not a hook.
func hookOf(ref *agboxv1.HookRef) *Hook {
	if ref == nil {
		return nil
	}
	return &Hook{Service: ref.GetService(), Start: ref.GetStart(), Index: ref.GetIndex(), Prepare: ref.GetPrepare()}
}

// foldService applies a SANDBOX_SERVICE_* event.
func foldService(r Record, ev *agboxv1.SandboxEvent) Record {
	d := ev.GetService()
	s := Service{At: ev.GetOccurredAt().AsTime(), Start: d.GetStart(), Failures: d.GetFailures(), Hooks: d.GetHooksDone()}
	switch ev.GetEventType() {
	case agboxv1.EventType_SANDBOX_SERVICE_STARTED:
		s.Phase = Starting
	case agboxv1.EventType_SANDBOX_SERVICE_READY:
		s.Phase = Up
	case agboxv1.EventType_SANDBOX_SERVICE_FAILED:
		s.Phase = Down
		s.Reason, s.Message, s.ExecID = d.GetErrorCode(), d.GetErrorMessage(), d.GetExecId()
	}
	return withService(r, d.GetName(), s)
}

func withService(r Record, name string, s Service) Record {
	services := make(map[string]Service, len(r.Services)+1)
	maps.Copy(services, r.Services)
	services[name] = s
	r.Services = services
	return r
}

// servicesAnew resets the services, because a request starts the sandbox. The numbers of
// starts continue, because the exec ids of hooks depend on them.
func servicesAnew(r Record) Record {
	if len(r.Services) == 0 {
		return r
	}
	services := make(map[string]Service, len(r.Services))
	for name, s := range r.Services {
		services[name] = Service{Start: s.Start}
	}
	r.Services = services
	return r
}

// downAnew resets the services that are Down, because a revived sandbox starts them
// again.
func downAnew(r Record) Record {
	for name, s := range r.Services {
		if s.Phase == Down {
			r = withService(r, name, Service{Start: s.Start})
		}
	}
	return r
}

// foldHookEnd records the result of a hook. It ignores one of an earlier start.
func foldHookEnd(r Record, h Hook, ev *agboxv1.SandboxEvent) Record {
	d := ev.GetExec()
	var failure *HookFailure
	if ev.GetEventType() != agboxv1.EventType_EXEC_FINISHED || d.GetExitCode() != 0 {
		failure = &HookFailure{ExecID: d.GetExecId(), Index: h.Index, Cause: hookCause(ev)}
	}
	if h.Service != "" {
		return foldServiceHookEnd(r, h, failure)
	}
	list := &r.PostCreate
	if h.Prepare {
		list = &r.Prepare
	}
	switch {
	case failure == nil:
		list.Done = h.Index + 1
	case r.Want == WantStopped:
		list.Stops++
		failure = nil
	}
	list.Failure = failure
	return r
}

func foldServiceHookEnd(r Record, h Hook, failure *HookFailure) Record {
	s, known := r.Services[h.Service]
	if !known || s.Start != h.Start || s.Phase != Starting {
		return r
	}
	if failure == nil {
		s.Hooks = h.Index + 1
	}
	s.HookFailure = failure
	return withService(r, h.Service, s)
}

func hookCause(ev *agboxv1.SandboxEvent) string {
	d := ev.GetExec()
	switch {
	case d.GetErrorCode() == agboxv1.ErrorReason_COMMAND_NOT_FOUND.String():
		return "could not be run, because the image of the primary has no shell (sh)"
	case ev.GetEventType() == agboxv1.EventType_EXEC_FINISHED:
		return fmt.Sprintf("failed with exit code %d", d.GetExitCode())
	case d.GetErrorMessage() != "":
		return "failed: " + strings.TrimSuffix(d.GetErrorMessage(), ".")
	}
	return "failed"
}
