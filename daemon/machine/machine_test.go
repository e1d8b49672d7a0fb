package machine

import (
	"fmt"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"
	"pgregory.net/rapid"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/runtime"
)

var t0 = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// event makes the n-th event of a stream, n seconds after t0.
func event(n uint64, typ agboxv1.EventType, execID string) *agboxv1.SandboxEvent {
	ev := &agboxv1.SandboxEvent{
		SandboxId: "sb", Sequence: n, EventType: typ,
		OccurredAt: timestamppb.New(t0.Add(time.Duration(n) * time.Second)),
	}
	if execID != "" {
		ev.Details = &agboxv1.SandboxEvent_Exec{Exec: &agboxv1.ExecEventDetails{ExecId: execID}}
	}
	return ev
}

// stream folds events of the given types.
func stream(types ...agboxv1.EventType) Record {
	var r Record
	for i, typ := range types {
		r = Fold(r, event(uint64(i+1), typ, ""))
	}
	return r
}

const (
	accepted  = agboxv1.EventType_SANDBOX_ACCEPTED
	preparing = agboxv1.EventType_SANDBOX_PREPARING
	ready     = agboxv1.EventType_SANDBOX_READY
	failed    = agboxv1.EventType_SANDBOX_FAILED
	stopReq   = agboxv1.EventType_SANDBOX_STOP_REQUESTED
	stopped   = agboxv1.EventType_SANDBOX_STOPPED
	resume    = agboxv1.EventType_SANDBOX_RESUME_REQUESTED
	delReq    = agboxv1.EventType_SANDBOX_DELETE_REQUESTED
	wiped     = agboxv1.EventType_SANDBOX_ENDED
	deleted   = agboxv1.EventType_SANDBOX_DELETED
	started   = agboxv1.EventType_EXEC_STARTED
	finished  = agboxv1.EventType_EXEC_FINISHED
	revived   = agboxv1.EventType_SANDBOX_REVIVED

	serviceStarted = agboxv1.EventType_SANDBOX_SERVICE_STARTED
	copied         = agboxv1.EventType_SANDBOX_FILES_COPIED
	serviceReady   = agboxv1.EventType_SANDBOX_SERVICE_READY
	serviceFailed  = agboxv1.EventType_SANDBOX_SERVICE_FAILED
)

func primary(state runtime.ContainerState) *runtime.Container {
	return &runtime.Container{ID: "c", State: state, ExitCode: 3}
}

// taken is a sandbox that was made ahead, and that somebody has taken.
func taken() Record {
	return Fold(Fold(Fold(Record{}, ahead(1)), event(2, ready, "")), event(3, accepted, ""))
}

// ahead is the n-th event of a stream, of a sandbox that is made for a pool.
func ahead(n uint64) *agboxv1.SandboxEvent {
	ev := event(n, accepted, "")
	ev.Details = &agboxv1.SandboxEvent_SandboxPhase{SandboxPhase: &agboxv1.SandboxPhaseDetails{Pool: "p"}}
	return ev
}

// postCreated is a new sandbox whose first command of post_create has ended.
func postCreated(code int32) Record {
	begun := event(2, started, "hook")
	begun.GetExec().Hook = new(agboxv1.HookRef)
	ended := event(3, finished, "hook")
	ended.GetExec().ExitCode = code
	return Fold(Fold(stream(accepted), begun), ended)
}

// prepared is a sandbox that was made ahead, with what its one command of prepare has done, and that
// somebody has taken.
func prepared() Record {
	begun := event(2, started, "hook")
	begun.GetExec().Hook = &agboxv1.HookRef{Prepare: true}
	r := Fold(Fold(Fold(Record{}, ahead(1)), begun), event(3, finished, "hook"))
	return Fold(Fold(r, event(4, ready, "")), event(5, accepted, ""))
}

// serviceHooked is a new sandbox in whose primary a hook of a service has ended.
func serviceHooked() Record {
	begun := event(3, started, "hook")
	begun.GetExec().Hook = &agboxv1.HookRef{Service: "db", Start: 1}
	return Fold(Fold(Fold(stream(accepted), dbEvent(2, serviceStarted, 1)), begun), event(4, finished, "hook"))
}

// dbEvent makes the n-th event of a stream, about a start of service db.
func dbEvent(n uint64, typ agboxv1.EventType, start uint32) *agboxv1.SandboxEvent {
	ev := event(n, typ, "")
	ev.Details = &agboxv1.SandboxEvent_Service{Service: &agboxv1.ServiceEventDetails{Name: "db", Start: start}}
	return ev
}

var rules = Rules{ReadyWithin: time.Minute, Retry: time.Second}

func TestNextFollowsTheRecoveryTable(t *testing.T) {
	up := Observation{Looked: true, Leftovers: true, Primary: primary(runtime.StateRunning), Connected: true}
	down := Observation{Looked: true, Leftovers: true, Primary: primary(runtime.StateExited), ConnectFailed: true}
	gone := Observation{Looked: true, ConnectFailed: true}
	stray := Observation{Looked: true, Leftovers: true, Stray: true, Primary: primary(runtime.StateRunning), Connected: true, Unfenced: []string{"br"}}
	lost := event(3, failed, "")
	lost.Details = &agboxv1.SandboxEvent_SandboxPhase{SandboxPhase: &agboxv1.SandboxPhaseDetails{ErrorCode: agboxv1.ErrorReason_PRIMARY_MISSING.String()}}
	missing := Fold(stream(accepted, ready), lost)
	neverReady, backAgain := Fold(stream(accepted), lost), Fold(missing, event(4, resume, ""))
	lostDue, lostGone := up, gone
	lostDue.LostDue, lostGone.LostDue = true, true
	lostLate, lostAt, lostEnded := lostDue, lostDue, down
	lostDue.StartedAt, lostLate.StartedAt, lostEnded.StartedAt = t0, t0.Add(-time.Hour), t0.Add(-time.Hour)
	lostAt.StartedAt, lostAt.Connected = t0, false
	lostEnded.LostDue = true
	configured := func(o Observation) Observation { o.Configured = true; return o }
	since := func(o Observation, at time.Time) Observation { o.StartedAt = at; return o }
	inherited := func(o Observation) Observation { o.Inherited = true; return o }
	draining := func(o Observation) Observation { o.DrainUntil = t0.Add(time.Hour); return o }
	overdue := func(o Observation) Observation { o.DrainUntil = t0; return o }
	now := func(r Record) Record { r.Now = true; return r }
	withoutLogs := func(r Record) Record { r.RemoveLogs = true; return r }
	restarting := func(r Record) Record { r.Restart = true; return r }
	because := func(r Record) Record { r.StopReason = "HOST_FOLDERS_FULL"; return r }

	for _, tc := range []struct {
		name   string
		record Record
		seen   Observation
		do     Verb
		event  agboxv1.EventType
		reason agboxv1.ErrorReason
	}{
		{"a new sandbox is made without a look", stream(accepted), Observation{}, Prepare, 0, 0},
		{"one that somebody has taken is looked at", taken(), Observation{}, Look, 0, 0},
		{"the supervisor of one that somebody has taken is told", taken(), since(up, t0), Configure, 0, 0},
		{"it fails if its supervisor cannot be told in time", taken(), since(up, t0.Add(-time.Hour)), Emit, failed, agboxv1.ErrorReason_SUPERVISOR_UNREACHABLE},
		{"one that somebody has taken is ready", taken(), configured(up), Emit, ready, 0},
		{"one that somebody has taken, and whose primary is gone, is made", taken(), gone, Prepare, 0, 0},
		{"a made one is started", stream(accepted), Observation{Looked: true, Primary: primary(runtime.StateCreated)}, Start, 0, 0},
		{"a started one is connected", stream(accepted), Observation{Looked: true, Primary: primary(runtime.StateRunning), StartedAt: t0}, Connect, 0, 0},
		{"a connected one is ready", stream(accepted), Observation{Looked: true, Primary: primary(runtime.StateRunning), StartedAt: t0, Connected: true}, Emit, ready, 0},
		{"one whose supervisor stays silent fails", stream(accepted), Observation{Looked: true, Primary: primary(runtime.StateRunning), StartedAt: t0.Add(-time.Hour)}, Emit, failed, agboxv1.ErrorReason_SUPERVISOR_UNREACHABLE},
		{"one that exits while starting fails", stream(accepted), Observation{Looked: true, Primary: primary(runtime.StateExited), StartedAt: t0}, Emit, failed, agboxv1.ErrorReason_PRIMARY_EXITED},

		{"PENDING and missing after a restart is made", stream(accepted), inherited(Observation{Looked: true}), Prepare, 0, 0},
		{"PENDING after a restart is looked at first", stream(accepted), inherited(Observation{}), Look, 0, 0},
		{"PENDING and missing after a hook of a service fails", serviceHooked(), gone, Emit, failed, agboxv1.ErrorReason_PRIMARY_MISSING},
		{"PENDING and missing after the service of a hook was started again fails", Fold(serviceHooked(), dbEvent(5, serviceStarted, 2)), inherited(gone), Emit, failed, agboxv1.ErrorReason_PRIMARY_MISSING},
		{"PENDING and missing after its files were copied fails", stream(accepted, copied), gone, Emit, failed, agboxv1.ErrorReason_PRIMARY_MISSING},
		{"PENDING and missing after a command of post_create fails", postCreated(0), gone, Emit, failed, agboxv1.ErrorReason_PRIMARY_MISSING},
		{"PENDING, prepared and missing fails, also if somebody else has seen that", prepared(), gone, Emit, failed, agboxv1.ErrorReason_PRIMARY_MISSING},
		{"PENDING and missing after one that failed says so", postCreated(1), gone, Emit, failed, agboxv1.ErrorReason_HOOK_FAILED},
		{"PENDING and missing after an upgrade is made", stream(accepted), Observation{Looked: true, Inherited: true, HandedOver: true}, Prepare, 0, 0},
		{"PENDING after an upgrade is looked at first", stream(accepted), Observation{Inherited: true, HandedOver: true}, Look, 0, 0},
		{"PENDING and created after a restart goes on", stream(accepted), inherited(Observation{Looked: true, Primary: primary(runtime.StateCreated)}), Start, 0, 0},
		{"READY and running rests", stream(accepted, ready), up, Rest, 0, 0},
		{"READY with a second network has it removed", stream(accepted, ready), Observation{Looked: true, Leftovers: true, Spares: true, Primary: primary(runtime.StateRunning), Connected: true}, RemoveSpares, 0, 0},
		{"PENDING gets its rules against the host before it is started", stream(accepted), Observation{Looked: true, Primary: primary(runtime.StateCreated), Unfenced: []string{"br"}}, Fence, 0, 0},
		{"READY gets missing rules again", stream(accepted, ready), Observation{Looked: true, Primary: primary(runtime.StateRunning), Connected: true, Unfenced: []string{"br"}}, Fence, 0, 0},
		{"READY and exited gets no rules", stream(accepted, ready), Observation{Looked: true, Primary: primary(runtime.StateExited), ConnectFailed: true, Unfenced: []string{"br"}}, Emit, failed, agboxv1.ErrorReason_PRIMARY_EXITED},
		{"READY is connected before anything is looked at", stream(accepted, ready), Observation{}, Connect, 0, 0},
		{"READY and unreachable is looked at", stream(accepted, ready), Observation{ConnectFailed: true}, Look, 0, 0},
		{"READY and exited fails", stream(accepted, ready), down, Emit, failed, agboxv1.ErrorReason_PRIMARY_EXITED},
		{"READY and ended with the engine fails with that reason", stream(accepted, ready), Observation{Looked: true, Primary: primary(runtime.StateExited), ConnectFailed: true, EngineRestarted: true}, Emit, failed, agboxv1.ErrorReason_ENGINE_RESTARTED},
		{"READY and missing fails", stream(accepted, ready), gone, Emit, failed, agboxv1.ErrorReason_PRIMARY_MISSING},
		{"READY without its container rests while its processes live", stream(accepted, ready), stray, Rest, 0, 0},
		{"it is stopped if that is wanted", stream(accepted, ready, stopReq), stray, Stop, 0, 0},
		{"it ends before it is made again", stream(accepted, ready, stopReq, stopped, resume), stray, Stop, 0, 0},
		{"a sandbox goes on whose primary was missing and is back", missing, up, Emit, resume, 0},
		{"it waits while the primary is paused", missing, Observation{Looked: true, Primary: primary(runtime.StatePaused)}, Rest, 0, 0},
		{"processes that the engine still does not have end", missing, stray, Stop, 0, 0},
		{"a primary that was never READY ends when it is back", neverReady, up, Stop, 0, 0},
		{"lost execs are looked for before READY", backAgain, lostDue, FindExecs, 0, 0},
		{"after a link", backAgain, lostAt, Connect, 0, 0},
		{"if that does not succeed in time, they end with the primary", backAgain, lostLate, Stop, 0, 0},
		{"and the sandbox fails", backAgain, lostEnded, Emit, failed, agboxv1.ErrorReason_SUPERVISOR_UNREACHABLE},
		{"and then it is READY", backAgain, up, Emit, ready, 0},
		{"lost execs are looked for although the sandbox did not fail", stream(accepted, ready), lostDue, FindExecs, 0, 0},
		{"but not without the container", stream(accepted, ready), lostGone, Emit, failed, 0},
		{"one that was missing is looked for", missing, Observation{}, Look, 0, 0},
		{"one that is still missing rests", missing, gone, Rest, 0, 0},
		{"READY and paused rests", stream(accepted, ready), Observation{Looked: true, Primary: primary(runtime.StatePaused), ConnectFailed: true}, Rest, 0, 0},
		{"STOPPED rests", stream(accepted, ready, stopReq, stopped), Observation{}, Rest, 0, 0},
		{"STOPPED for a restart is started", restarting(stream(accepted, ready, stopReq, stopped)), Observation{}, Emit, resume, 0},
		{"a restart stops first", restarting(stream(accepted, ready, stopReq)), up, Stop, 0, 0},
		{"a request to stop survives a crash", stream(accepted, ready, stopReq), Observation{}, Look, 0, 0},
		{"a request to stop stops", stream(accepted, ready, stopReq), up, Stop, 0, 0},
		{"a stop waits for agents", stream(accepted, ready, stopReq), draining(up), Rest, 0, 0},
		{"a stop links to agents first", stream(accepted, ready, stopReq), draining(Observation{Looked: true, Primary: up.Primary}), Connect, 0, 0},
		{"a stop does not wait for agents that nobody can ask", stream(accepted, ready, stopReq), draining(Observation{Looked: true, Primary: up.Primary, ConnectFailed: true}), Stop, 0, 0},
		{"a stop does not wait for agents in a paused container", stream(accepted, ready, stopReq), draining(Observation{Looked: true, Primary: primary(runtime.StatePaused), Connected: true}), Stop, 0, 0},
		{"a stop waits for agents for a while only", stream(accepted, ready, stopReq), overdue(up), Stop, 0, 0},
		{"a stop at once waits for no agents", now(stream(accepted, ready, stopReq)), draining(up), Stop, 0, 0},
		{"a stop because of a full disk waits for no agents", because(stream(accepted, ready, stopReq)), draining(up), Stop, 0, 0},
		{"a removal waits for agents", stream(accepted, ready, delReq), draining(up), Rest, 0, 0},
		{"a removal at once waits for no agents", now(stream(accepted, ready, delReq)), draining(up), Kill, 0, 0},
		{"what is down is stopped", stream(accepted, ready, stopReq), down, Emit, stopped, 0},
		{"a request to delete survives a crash", stream(accepted, ready, delReq), Observation{}, Look, 0, 0},
		{"a request to delete ends all processes", stream(accepted, ready, delReq), up, Kill, 0, 0},
		{"a request to delete says when all have ended", stream(accepted, ready, delReq), down, Emit, wiped, 0},
		{"what has ended is removed", stream(accepted, ready, delReq, wiped), down, Remove, 0, 0},
		{"what runs again is ended again", stream(accepted, ready, delReq, wiped), up, Kill, 0, 0},
		{"what is gone is deleted", stream(accepted, ready, delReq), gone, Emit, deleted, 0},
		{"logs go when the ends of all commands are known", withoutLogs(stream(accepted, ready, delReq)), gone, RemoveLogs, 0, 0},
		{"logs go before a removal seems to be over", withoutLogs(stream(accepted, ready, delReq)), down, RemoveLogs, 0, 0},
		{"what is gone, with its logs, is deleted", withoutLogs(stream(accepted, ready, delReq)), Observation{Looked: true, LogsRemoved: true}, Emit, deleted, 0},
		{"DELETED rests", stream(accepted, delReq, deleted), Observation{}, Rest, 0, 0},
		{"FAILED before it was ready leaves nothing", stream(accepted, failed), down, Remove, 0, 0},
		{"FAILED after it was ready is kept", stream(accepted, ready, failed), down, Rest, 0, 0},
		{"FAILED and resumed is looked at", stream(accepted, ready, failed, resume), Observation{}, Look, 0, 0},
		{"resumed and down is started", stream(accepted, ready, failed, resume), Observation{Looked: true, Primary: primary(runtime.StateExited)}, Start, 0, 0},
		{"stopped with its files and resumed is looked at", stream(accepted, copied, stopReq, stopped, resume), Observation{}, Look, 0, 0},
		{"stopped with its files and resumed is started", stream(accepted, copied, stopReq, stopped, resume), Observation{Looked: true, Primary: primary(runtime.StateExited)}, Start, 0, 0},
		{"stopped between two commands of post_create and resumed is looked at", Fold(Fold(Fold(postCreated(0), event(4, stopReq, "")), event(5, stopped, "")), event(6, resume, "")), Observation{}, Look, 0, 0},
		{"resumed and missing fails", stream(accepted, ready, failed, resume), gone, Emit, failed, agboxv1.ErrorReason_PRIMARY_MISSING},
	} {
		t.Run(tc.name, func(t *testing.T) {
			step := Next(tc.record, tc.seen, rules, t0.Add(time.Second))
			if step.Do != tc.do {
				t.Fatalf("Next says %s, want %s", step.Do, tc.do)
			}
			if got := step.Event.GetEventType(); got != tc.event {
				t.Errorf("Next emits %s, want %s", got, tc.event)
			}
			if want := tc.reason; want != 0 && step.Event.GetSandboxPhase().GetErrorCode() != want.String() {
				t.Errorf("reason is %q, want %s", step.Event.GetSandboxPhase().GetErrorCode(), want)
			}
		})
	}
}

func TestThePendingRecoveryDecidesAboutWhatACrashLeftWithoutAPrimary(t *testing.T) {
	up := Observation{Looked: true, Primary: primary(runtime.StateCreated), Inherited: true}
	crashed := Observation{Looked: true, Inherited: true}
	upgraded := Observation{Looked: true, Inherited: true, HandedOver: true}
	for _, tc := range []struct {
		name     string
		recovery PendingRecovery
		seen     Observation
		do       Verb
	}{
		{"resume, a crash", PendingResume, crashed, Prepare},
		{"resume, an upgrade", PendingResume, upgraded, Prepare},
		{"resume, a primary", PendingResume, up, Start},
		{"fail, a crash", PendingFail, crashed, Emit},
		{"fail, an upgrade", PendingFail, upgraded, Prepare},
		{"fail, a primary", PendingFail, up, Start},
		{"fail, no restart", PendingFail, Observation{Looked: true}, Prepare},
	} {
		rules := rules
		rules.PendingRecovery = tc.recovery
		step := Next(stream(accepted), tc.seen, rules, t0)
		if step.Do != tc.do {
			t.Errorf("%s: Next says %s, want %s", tc.name, step.Do, tc.do)
		}
		if reason := step.Event.GetSandboxPhase().GetErrorCode(); tc.do == Emit && reason != agboxv1.ErrorReason_PRIMARY_MISSING.String() {
			t.Errorf("%s: the reason is %q", tc.name, reason)
		}
	}
}

func TestExecsEndBeforeTheirSandbox(t *testing.T) {
	withExec := func(types ...agboxv1.EventType) Record {
		r := Fold(stream(accepted, ready), event(3, started, "x"))
		for i, typ := range types {
			r = Fold(r, event(uint64(4+i), typ, ""))
		}
		return r
	}
	down := Observation{Looked: true, Leftovers: true, Primary: primary(runtime.StateExited), ConnectFailed: true}
	for name, r := range map[string]Record{"failing": withExec(), "stopping": withExec(stopReq)} {
		if step := Next(r, down, rules, t0); step.Do != EndExecs {
			t.Errorf("%s: Next says %s, want %s", name, step.Do, EndExecs)
		}
	}
	gone := Observation{Looked: true}
	withoutLogs := func(r Record) Record { r.RemoveLogs = true; return r }
	if step := Next(withoutLogs(withExec(delReq)), gone, rules, t0); step.Do != EndExecs {
		t.Errorf("deleting: Next says %s, want %s", step.Do, EndExecs)
	}
}

func TestRevivalPolicyDecidesAboutAnExitedPrimary(t *testing.T) {
	down := Observation{Looked: true, Leftovers: true, Primary: primary(runtime.StateExited), ConnectFailed: true}
	gone := Observation{Looked: true, ConnectFailed: true}
	r := stream(accepted, ready)
	for policy, want := range map[agboxv1.RevivalPolicy][2]agboxv1.EventType{
		agboxv1.RevivalPolicy_REVIVAL_POLICY_UNSPECIFIED: {failed, failed},
		agboxv1.RevivalPolicy_REVIVAL_POLICY_FAIL:        {failed, failed},
		agboxv1.RevivalPolicy_REVIVAL_POLICY_REVIVE:      {revived, failed},
		agboxv1.RevivalPolicy_REVIVAL_POLICY_REAP:        {delReq, delReq},
	} {
		for i, seen := range []Observation{down, gone} {
			if got := Next(r, seen, Rules{Revival: policy}, t0).Event.GetEventType(); got != want[i] {
				t.Errorf("%s, case %d: %s, want %s", policy, i, got, want[i])
			}
		}
	}
}

func TestWhatDiesAgainAndAgainIsNotRevivedForEver(t *testing.T) {
	down := Observation{Looked: true, Leftovers: true, Primary: primary(runtime.StateExited), ConnectFailed: true}
	revive := Rules{Revival: agboxv1.RevivalPolicy_REVIVAL_POLICY_REVIVE}
	r := stream(accepted, ready)
	for n := 1; ; n++ {
		if n > maxRevivals+1 {
			t.Fatalf("revived %d times", n)
		}
		step := Next(r, down, revive, r.ReadyAt.Add(time.Second))
		if step.Event.GetEventType() == failed {
			break
		}
		r = Fold(r, event(r.LastSequence+1, revived, ""))
		if again := Next(r, down, revive, t0); again.Do != Start {
			t.Fatalf("after the revival Next says %s", again.Do)
		}
		r = Fold(r, event(r.LastSequence+1, ready, ""))
	}
	if step := Next(r, down, revive, r.ReadyAt.Add(reviveStable)); step.Event.GetEventType() != revived {
		t.Errorf("after a stable time: %s, want another revival", step.Event.GetEventType())
	}
}

func TestACommandThatAStopHasEndedRunsOnceMore(t *testing.T) {
	for _, prepare := range []bool{false, true} {
		rules := rules
		rules.PostCreate = 1
		if prepare {
			rules.Prepare = 1
		}
		up := Observation{Looked: true, Primary: primary(runtime.StateRunning), StartedAt: t0, Connected: true}
		begun := event(2, started, "hook")
		begun.GetExec().Hook = &agboxv1.HookRef{Prepare: prepare}
		r := Fold(Fold(stream(accepted), begun), event(3, stopReq, ""))
		r = Fold(r, event(4, agboxv1.EventType_EXEC_CANCELLED, "hook"))
		r = Fold(Fold(r, event(5, stopped, "")), event(6, resume, ""))
		step := Next(r, up, rules, t0)
		if step.Do != RunHook || *step.Hook != (Hook{Start: 1, Prepare: prepare}) {
			t.Errorf("Next says %s of %+v, want the first command under another id", step.Do, step.Hook)
		}
		if gone := (Observation{Looked: true}); Next(r, gone, rules, t0).Event.GetEventType() != failed {
			t.Error("a primary in which a command has begun is made anew")
		}
	}
}

// What was prepared ahead is not done again for who gets it; what was not comes before all else.
func TestWhatIsPreparedComesFirstAndOnce(t *testing.T) {
	rules := rules
	rules.Prepare, rules.PostCreate, rules.Copies = 1, 1, true
	up := Observation{Looked: true, Primary: primary(runtime.StateRunning), StartedAt: t0, Connected: true}
	if step := Next(prepared(), up, rules, t0); step.Do != Configure {
		t.Errorf("of one that was prepared ahead Next says %s of %+v", step.Do, step.Hook)
	}
	if step := Next(taken(), up, rules, t0); step.Do != RunHook || !step.Hook.Prepare {
		t.Errorf("of one that was not Next says %s", step.Do)
	}
	begun := event(2, started, "hook")
	begun.GetExec().Hook = &agboxv1.HookRef{Prepare: true}
	runs := Fold(stream(accepted), begun)
	if step := Next(runs, up, rules, t0); step.Do != Rest {
		t.Errorf("while it runs Next says %s", step.Do)
	}
	if step := Next(Fold(runs, event(3, finished, "hook")), up, rules, t0); step.Do != CopyIn {
		t.Errorf("after it Next says %s", step.Do)
	}
	rules.Services = []ServiceRule{{Name: "db", Required: true, Hooks: 1}}
	if step := Next(Fold(stream(accepted), dbEvent(2, serviceStarted, 1)), seenDB(runtime.StateRunning, runtime.HealthStarting), rules, t0); step.Do != Rest {
		t.Errorf("before the services are well Next says %s", step.Do)
	}
	if step := Next(Fold(stream(accepted), dbEvent(2, serviceStarted, 1)), seenDB(runtime.StateRunning, runtime.Healthy), rules, t0); step.Do != RunHook || !step.Hook.Prepare {
		t.Errorf("when the services are well Next says %s of %+v", step.Do, step.Hook)
	}
	rules.Services = nil
	ended := event(3, finished, "hook")
	ended.GetExec().ExitCode = 1
	if step := Next(Fold(runs, ended), up, rules, t0); !strings.Contains(step.Event.GetSandboxPhase().GetErrorMessage(), "Command 1 of prepare failed with exit code 1") {
		t.Errorf("after one that has failed Next says %s: %v", step.Do, step.Event)
	}
}

func TestStoppedSandboxIsDeletedOnceItsCleanupTimeIsUp(t *testing.T) {
	r := stream(accepted, ready, stopReq, stopped)
	due := r.StateChangedAt.Add(time.Hour)
	rules := Rules{CleanupTTL: time.Hour}
	if step := Next(r, Observation{}, rules, due.Add(-time.Second)); step.Do != Rest || !step.Wake.Equal(due) {
		t.Errorf("before: %s, wake %s; want rest until %s", step.Do, step.Wake, due)
	}
	step := Next(r, Observation{}, rules, due)
	if step.Event.GetEventType() != delReq || step.Event.GetSandboxPhase().GetReason() != "cleanup_ttl" {
		t.Errorf("when due: %s %v, want a delete request", step.Do, step.Event)
	}
	for name, other := range map[string]Record{"READY": stream(accepted, ready), "FAILED": stream(accepted, failed)} {
		if step := Next(other, Observation{Looked: true, Primary: primary(runtime.StateRunning), Connected: true}, rules, due.Add(time.Hour)); step.Event.GetEventType() == delReq {
			t.Errorf("one that is %s is deleted", name)
		}
	}
	if step := Next(r, Observation{}, Rules{}, due.Add(1e6*time.Hour)); step.Do != Rest || !step.Wake.IsZero() {
		t.Errorf("without a cleanup_ttl: %s, wake %s; want rest", step.Do, step.Wake)
	}
}

func TestIdleSandboxIsStoppedOnceItsTimeIsUp(t *testing.T) {
	up := Observation{Looked: true, Leftovers: true, Primary: primary(runtime.StateRunning), Connected: true}
	idle := Rules{IdleTTL: time.Minute}
	r := stream(accepted, ready) // ready at t0+2s
	due := t0.Add(2*time.Second + time.Minute)
	if step := Next(r, up, idle, due.Add(-time.Second)); step.Do != Rest || !step.Wake.Equal(due) {
		t.Errorf("before: %s, wake %s; want rest until %s", step.Do, step.Wake, due)
	}
	if step := Next(r, up, idle, due); step.Event.GetEventType() != stopReq || step.Event.GetSandboxPhase().GetReason() != "idle_ttl" {
		t.Errorf("when due: %s %v, want a stop request", step.Do, step.Event)
	}
	remove := idle
	remove.IdleRemove = true
	if step := Next(r, up, remove, due); step.Event.GetEventType() != delReq {
		t.Errorf("when due to be removed: %s %s, want a delete request", step.Do, step.Event.GetEventType())
	}
	busy := Fold(r, event(3, started, "x"))
	later := due.Add(time.Hour)
	if step := Next(busy, up, idle, later); step.Do != Rest || !step.Wake.Equal(later.Add(time.Minute)) {
		t.Errorf("with an exec running: %s, wake %s; want rest, and a look when it may be due", step.Do, step.Wake)
	}
	if step := Next(busy, up, Rules{IdleTTL: time.Millisecond}, later); !step.Wake.Equal(later.Add(inUseLook)) {
		t.Errorf("with an exec running and a short time: wake %s, want one that keeps nobody busy", step.Wake)
	}
	if step := Next(r, up, Rules{}, later); step.Do != Rest || !step.Wake.IsZero() {
		t.Errorf("without a time: %s, wake %s; want rest for ever", step.Do, step.Wake)
	}
	used := Fold(busy, event(100, finished, "x")) // ended at t0+100s
	if step := Next(used, up, idle, due.Add(time.Second)); step.Do != Rest {
		t.Errorf("after an exec ended the time starts anew, but Next says %s", step.Do)
	}
}

// legalStream draws a legal stream of events.
func legalStream(t *rapid.T) []*agboxv1.SandboxEvent {
	var events []*agboxv1.SandboxEvent
	var r Record
	for n := uint64(1); n <= uint64(rapid.IntRange(1, 40).Draw(t, "length")); n++ {
		var fits []agboxv1.EventType
		for number := range agboxv1.EventType_name {
			if typ := agboxv1.EventType(number); Legal(r, typ) {
				fits = append(fits, typ)
			}
		}
		if len(fits) == 0 {
			break
		}
		sortTypes(fits)
		ev := event(n, rapid.SampledFrom(fits).Draw(t, "type"), fmt.Sprintf("x%d", n)) // an id is never used twice
		switch ev.GetEventType() {
		case accepted: // a second one is of who takes what was made ahead
			if !r.Exists() && rapid.Bool().Draw(t, "ahead") {
				ev = ahead(n)
			}
		case serviceStarted, serviceReady, serviceFailed:
			d := &agboxv1.ServiceEventDetails{Name: rapid.SampledFrom([]string{"db", "app", "extra"}).Draw(t, "service")}
			s := r.Services[d.GetName()]
			d.Start, d.Failures, d.HooksDone = s.Start, s.Failures, s.Hooks
			if ev.GetEventType() == serviceStarted {
				d.Start, d.HooksDone = d.GetStart()+1, 0
			}
			ev.Details = &agboxv1.SandboxEvent_Service{Service: d}
		case finished, agboxv1.EventType_EXEC_FAILED, agboxv1.EventType_EXEC_CANCELLED:
			ev.GetExec().ExecId = rapid.SampledFrom(slices.Sorted(maps.Keys(r.Execs))).Draw(t, "ends")
			ev.GetExec().MayReturn = ev.GetEventType() == agboxv1.EventType_EXEC_FAILED && rapid.Bool().Draw(t, "lost")
		case agboxv1.EventType_EXEC_FOUND:
			ev.GetExec().ExecId = rapid.SampledFrom(slices.Sorted(maps.Keys(r.Lost))).Draw(t, "found")
		case started:
			switch rapid.IntRange(0, 2).Draw(t, "hook") {
			case 1:
				s := r.Services["db"]
				ev.GetExec().Hook = &agboxv1.HookRef{Service: "db", Start: s.Start, Index: s.Hooks}
			case 2:
				ev.GetExec().Hook = &agboxv1.HookRef{Prepare: true, Start: r.Prepare.Stops, Index: r.Prepare.Done}
			}
		}
		events = append(events, ev)
		r = Fold(r, ev)
	}
	return events
}

func sortTypes(types []agboxv1.EventType) {
	for i := range types { // map order must not decide what rapid draws
		for j := i + 1; j < len(types); j++ {
			if types[j] < types[i] {
				types[i], types[j] = types[j], types[i]
			}
		}
	}
}

func TestFoldingInTwoPartsIsFoldingOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		events := legalStream(t)
		cut := rapid.IntRange(0, len(events)).Draw(t, "cut")
		whole, parts := foldAll(events), foldAll(events[:cut])
		// The second part overlaps with the first, as after a reconnect.
		for _, ev := range events[rapid.IntRange(0, cut).Draw(t, "overlap"):] {
			parts = Fold(parts, ev)
		}
		if !equal(whole, parts) {
			t.Fatalf("in one go: %+v\nin parts: %+v", whole, parts)
		}
	})
}

func equal(a, b Record) bool {
	if len(a.Execs) != len(b.Execs) {
		return false
	}
	for id, e := range a.Execs {
		if !reflect.DeepEqual(b.Execs[id], e) {
			return false
		}
	}
	if len(a.Lost) != len(b.Lost) || len(a.Lost) > 0 && !reflect.DeepEqual(a.Lost, b.Lost) {
		return false
	}
	if !reflect.DeepEqual(a.Services, b.Services) || !reflect.DeepEqual(a.PostCreate, b.PostCreate) || !reflect.DeepEqual(a.Prepare, b.Prepare) {
		return false
	}
	a.Execs, b.Execs = nil, nil
	return a.State == b.State && a.Want == b.Want && a.LastSequence == b.LastSequence && a.StateChangedAt.Equal(b.StateChangedAt) &&
		a.LastUse.Equal(b.LastUse) && a.ErrorReason == b.ErrorReason && a.PendingSequence == b.PendingSequence && a.WasReady == b.WasReady
}

func TestFoldNeverChangesTheRecordItWasGiven(t *testing.T) {
	before := Fold(stream(accepted, ready), event(3, started, "x"))
	Fold(before, event(4, started, "y"))
	Fold(before, event(4, finished, "x"))
	if _, kept := before.Execs["x"]; !kept || len(before.Execs) != 1 {
		t.Errorf("folding changed the execs of the record before: %v", before.Execs)
	}
}

// TestNextBringsEverySandboxToRest runs the rules against a small simulated engine. From
// any legal stream and any condition of the engine, crashes included, Next comes to rest.
// At rest the request is fulfilled or the sandbox is FAILED.
func TestNextBringsEverySandboxToRest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := foldAll(legalStream(t))
		if !r.Exists() {
			return
		}
		w := world{
			container: rapid.SampledFrom([]runtime.ContainerState{"", runtime.StateCreated, runtime.StateRunning, runtime.StateExited}).Draw(t, "container"),
			network:   rapid.Bool().Draw(t, "network"),
			fenced:    rapid.Bool().Draw(t, "fenced"),
			inherited: rapid.Bool().Draw(t, "inherited"),
		}
		w.now, w.ran = t0.Add(time.Hour), new(map[string]bool)
		rules := rules
		rules.Revival = agboxv1.RevivalPolicy(rapid.IntRange(0, 3).Draw(t, "policy"))
		for i := range w.services {
			w.services[i].state = rapid.SampledFrom([]runtime.ContainerState{"", runtime.StateCreated, runtime.StateRunning, runtime.StateExited}).Draw(t, "service")
			w.services[i].health = rapid.SampledFrom([]string{"", runtime.Healthy, runtime.Unhealthy, runtime.HealthStarting}).Draw(t, "health")
		}
		if rapid.Bool().Draw(t, "services") {
			rules.Services, rules.PostCreate, w.served = someServices, 2, true
		}
		for range 256 {
			step := Next(r, w.observe(), rules, w.now)
			if step.Do == Rest {
				if w.pass(t, &r, step) {
					continue
				}
				w.check(t, r, rules)
				return
			}
			r = w.apply(t, r, step)
			if rapid.IntRange(0, 9).Draw(t, "crash") == 0 {
				w.crash()
			}
		}
		t.Fatalf("no rest after 256 steps; record %+v, world %+v", r, w)
	})
}

// someServices are two required services, of which the second depends on the health of
// the first, and an optional one.
var someServices = []ServiceRule{
	{Name: "db", Required: true, Hooks: 2},
	{Name: "app", Required: true, After: []Dependency{{Name: "db", Healthy: true}}, Hooks: 1},
	{Name: "extra", After: []Dependency{{Name: "app"}}},
}

// world is an engine with one sandbox, and what the current daemon knows about it.
type world struct {
	now            time.Time
	container      runtime.ContainerState
	network, spare bool
	// fenced: the network has the rules against access to the host.
	fenced                   bool
	inherited                bool
	looked, connected, tried bool
	startedAt                time.Time
	services                 [3]worldService // as in someServices
	// strict: everything was made by the rules, so nothing may be left over.
	strict bool
	// served: the rules include someServices.
	served bool
	// copies: the rules include a copy into the primary. files: the container has the
	// copy. copied: it was copied in this round.
	copies, files, copied bool
	// prepares is how many commands of prepare the rules have.
	prepares uint32
	// told: the supervisor knows who has taken the sandbox. configured: it was told in this round.
	told, configured bool
	// ran are the execs of all hooks ever started; the ledger never forgets an id.
	ran *map[string]bool
}

type worldService struct {
	state   runtime.ContainerState
	health  string
	started uint32
}

// crash ends the daemon, whose knowledge is lost.
func (w *world) crash() {
	*w = world{now: w.now, container: w.container, network: w.network, spare: w.spare, fenced: w.fenced, inherited: true, services: w.services, strict: w.strict, served: w.served, ran: w.ran, copies: w.copies, prepares: w.prepares, files: w.files, told: w.told}
	for i := range w.services {
		w.services[i].started = 0
	}
}

func (w *world) observe() Observation {
	o := Observation{Inherited: w.inherited, Connected: w.connected, ConnectFailed: w.tried && !w.connected, StartedAt: w.startedAt, Looked: w.looked, Copied: w.copied, Configured: w.configured}
	if w.looked {
		o.Leftovers = w.container != "" || w.network || w.spare
		o.Spares = w.container != "" && w.spare
		if w.network && !w.fenced {
			o.Unfenced = []string{"br"}
		}
		if w.container != "" {
			o.Primary = primary(w.container)
		}
		o.Services = make(map[string]ServiceSeen)
		for i, s := range w.services {
			seen := ServiceSeen{Started: s.started}
			if s.state != "" {
				o.Leftovers = true
				seen.Container = &runtime.Container{ID: someServices[i].Name, State: s.state, ExitCode: 1}
				if s.state == runtime.StateRunning {
					seen.Container.Health = s.health
				}
			}
			o.Services[someServices[i].Name] = seen
		}
	}
	return o
}

func (w *world) service(name string) *worldService {
	i := slices.IndexFunc(someServices, func(rule ServiceRule) bool { return rule.Name == name })
	return &w.services[i]
}

// pass lets time pass at a rest: healthchecks pass and hooks end. If none of that is in
// progress, the time advances to Next's Wake. It returns false if nothing will happen.
func (w *world) pass(t *rapid.T, r *Record, step Step) bool {
	going := false
	for i := range w.services {
		if s := &w.services[i]; s.state == runtime.StateRunning && s.health == runtime.HealthStarting {
			s.health, going = runtime.Healthy, true
		}
	}
	for id, e := range r.Execs {
		if e.Hook != nil && w.container == runtime.StateRunning {
			ev := event(r.LastSequence+1, finished, id)
			ev.GetExec().ExitCode = int32(rapid.SampledFrom([]int{0, 0, 0, 1}).Draw(t, "exit"))
			*r, going = Fold(*r, ev), true
		}
	}
	if !going && !step.Wake.IsZero() && step.Wake.After(w.now) {
		w.now, going = step.Wake, true
	}
	if going {
		w.looked, w.tried, w.copied, w.configured = false, false, false, false
	}
	return going
}

func (w *world) apply(t *rapid.T, r Record, step Step) Record {
	switch step.Do {
	case Look:
		w.looked = true
	case Prepare:
		w.looked, w.network, w.fenced = true, true, w.fenced && w.network
		if w.container == "" {
			w.container, w.spare, w.files, w.copied = runtime.StateCreated, false, false, false
		}
		w.make(step.Services)
	case MakeServices:
		w.make(step.Services)
	case Fence:
		w.fenced = true
	case StartServices:
		w.mayStart(t)
		for _, name := range step.Services {
			s := w.service(name)
			if s.state != runtime.StateRunning {
				s.state, s.health = runtime.StateRunning, runtime.HealthStarting
			}
			s.started = r.Services[name].Start
		}
		w.looked = true
	case StopServices:
		for _, name := range step.Services {
			w.service(name).state = runtime.StateExited
		}
		w.looked = true
	case Configure:
		if w.container != runtime.StateRunning || !w.connected || r.WasReady || r.Furnished {
			t.Fatalf("the supervisor is configured with %+v; record %+v", w, r)
		}
		w.told, w.configured = true, true
	case CopyIn:
		w.mayFurnish(t, r)
		if w.container != runtime.StateRunning || !w.connected || r.WasReady {
			t.Fatalf("something is copied in with %+v", w)
		}
		w.files, w.copied = true, true
	case RunHook:
		w.mayFurnish(t, r)
		if step.Hook.Prepare && (r.Copied || r.PostCreate.Done > 0) {
			t.Fatalf("it is prepared after its files are there; record %+v", r)
		}
		if w.copies && !r.Copied && !r.WasReady && !step.Hook.Prepare {
			t.Fatalf("a hook is run before its files are there; record %+v", r)
		}
		r = w.hook(t, r, *step.Hook)
	case Start:
		w.mayStart(t)
		w.container, w.startedAt = runtime.StateRunning, w.now
	case Connect:
		w.tried, w.connected = true, w.container == runtime.StateRunning
	case Stop:
		w.container, w.connected = runtime.StateExited, false
	case Kill:
		if w.container == runtime.StateRunning {
			w.container = runtime.StateExited
		}
		for i := range w.services {
			if w.services[i].state == runtime.StateRunning {
				w.services[i].state = runtime.StateExited
			}
		}
		w.connected = false
	case Remove:
		if w.container == runtime.StateRunning && r.State == Deleting || r.State == Deleting && !r.Ended {
			t.Fatalf("it is removed before it has ended; record %+v, world %+v", r, w)
		}
		w.container, w.network, w.spare, w.connected, w.looked, w.fenced, w.told = "", false, false, false, true, false, false
		w.services = [3]worldService{}
	case RemoveSpares:
		w.spare = false
	case EndExecs:
		for id := range r.Execs {
			ev := event(r.LastSequence+1, finished, id)
			ev.GetExec().ExitCode = 255
			r = Fold(r, ev)
		}
	case Emit:
		if !Legal(r, step.Event.GetEventType()) {
			t.Fatalf("Next emits %s, which is not legal after %+v", step.Event.GetEventType(), r)
		}
		if step.Event.GetEventType() == ready {
			w.mayFurnish(t, r)
			w.mayBeReady(t, r)
		}
		ev := step.Event
		ev.Sequence, ev.SandboxId, ev.OccurredAt = r.LastSequence+1, "sb", timestamppb.New(w.now)
		r = Fold(r, ev)
	}
	return r
}

// mayFurnish fails if the supervisor does not know yet who has taken the sandbox.
func (w *world) mayFurnish(t *rapid.T, r Record) {
	if r.Taken && !r.WasReady && !r.Furnished && !w.told {
		t.Fatalf("something of its owner begins, and the supervisor does not know of them; record %+v, world %+v", r, w)
	}
}

func (w *world) make(names []string) {
	for _, name := range names {
		if s := w.service(name); s.state == "" {
			*s = worldService{state: runtime.StateCreated}
		}
	}
}

// hook starts a hook as the ledger does: a used id is ignored.
func (w *world) hook(t *rapid.T, r Record, h Hook) Record {
	if w.container != runtime.StateRunning || !w.connected {
		t.Fatalf("hook %+v is run without a primary", h)
	}
	id := fmt.Sprint(h)
	if (*w.ran)[id] {
		if _, running := r.Execs[id]; !running {
			t.Fatalf("hook %+v is run twice; record %+v", h, r)
		}
		return r
	}
	if *w.ran == nil {
		*w.ran = make(map[string]bool)
	}
	(*w.ran)[id] = true
	ev := event(r.LastSequence+1, started, id)
	ev.GetExec().Hook = &agboxv1.HookRef{Service: h.Service, Start: h.Start, Index: h.Index, Prepare: h.Prepare}
	return Fold(r, ev)
}

// mayStart checks that a container starts in a network with rules against access to the
// host.
func (w *world) mayStart(t *rapid.T) {
	if w.network && !w.fenced {
		t.Fatalf("a container starts without rules against access to the host: %+v", w)
	}
}

// mayBeReady checks the guarantees of READY when it is emitted.
func (w *world) mayBeReady(t *rapid.T, r Record) {
	if r.Prepare.Done < w.prepares {
		t.Fatalf("READY and not prepared; record %+v", r)
	}
	if w.copies && w.strict && !w.files {
		t.Fatalf("READY without its files; record %+v, world %+v", r, w)
	}
	for _, rule := range someServices {
		if !rule.Required || !w.served {
			continue
		}
		name, s := rule.Name, r.Services[rule.Name]
		seen, forgiven := w.service(name), r.WasReady && s.Phase == Down && s.Reason == hookFailed
		if seen.state != runtime.StateRunning || seen.health == runtime.HealthStarting || seen.health == runtime.Unhealthy ||
			!forgiven && (s.Phase != Up || w.strict && s.Hooks != rule.Hooks) {
			t.Fatalf("READY with service %s at %+v, in the engine %+v", name, s, *seen)
		}
	}
	if w.container != runtime.StateRunning || !w.connected {
		t.Fatalf("READY with %+v", w)
	}
}

var hookFailed = agboxv1.ErrorReason_HOOK_FAILED.String()

func (w *world) check(t *rapid.T, r Record, rules Rules) {
	switch r.State {
	case Ready:
		if w.container != runtime.StateRunning || !w.connected {
			t.Fatalf("rests READY with %+v", w)
		}
		if w.spare {
			t.Fatalf("rests READY with a second network: %+v", w)
		}
		for _, rule := range rules.Services {
			s, seen := r.Services[rule.Name], w.service(rule.Name)
			well := s.Phase == Up && seen.state == runtime.StateRunning && seen.health != runtime.Unhealthy
			waits := s.Phase == Waiting && !dependenciesMet(r, rule, w.observe())
			if given := s.Phase == Down && (s.Reason == hookFailed || s.exhausted()); !well && !given && !waits && dependenciesMet(r, rule, w.observe()) {
				t.Fatalf("rests READY with service %s at %+v, in the engine %+v", rule.Name, s, *seen)
			}
			if rule.Required && !well && ServiceTrouble(r, rules.Services) == "" && s.Phase != Waiting {
				t.Fatalf("nothing is said of service %s, which is at %+v", rule.Name, s)
			}
		}
	case Deleted:
		if len(r.Execs) > 0 {
			t.Fatalf("DELETED with running execs %v", r.Execs)
		}
		if w.strict {
			w.checkNothingLeft(t)
		}
	case Failed:
		if !r.WasReady {
			w.checkNothingLeft(t)
		}
		w.checkNoService(t, rules)
	case Stopped:
		w.checkNoService(t, rules)
	default:
		t.Fatalf("rests in %s with %+v; record %+v", r.State, w, r)
	}
}

func (w *world) checkNothingLeft(t *rapid.T) {
	some := slices.ContainsFunc(w.services[:], func(s worldService) bool { return s.state != "" })
	if w.container != "" || w.network || w.spare || some {
		t.Fatalf("%+v is left behind", w)
	}
}

// checkNoService checks that no service runs.
func (w *world) checkNoService(t *rapid.T, rules Rules) {
	for i, s := range w.services {
		if s.state == runtime.StateRunning && len(rules.Services) > 0 && w.strict {
			t.Fatalf("service %s runs without its sandbox", someServices[i].Name)
		}
	}
}

// transitions formats the table of README.md from the rules. Events with the same
// effect share a row.
func transitions() string {
	states := []agboxv1.SandboxState{0, Pending, Ready, Failed, Stopped, Deleting, Deleted}
	word := func(s agboxv1.SandboxState) string {
		if s == 0 {
			return "(none)"
		}
		return strings.TrimPrefix(s.String(), "SANDBOX_STATE_")
	}
	var out strings.Builder
	out.WriteString("| event |")
	for _, s := range states {
		fmt.Fprintf(&out, " %s |", word(s))
	}
	out.WriteString("\n|---|" + strings.Repeat("---|", len(states)) + "\n")
	var rows []string // the cells of events, without repetition
	events := make(map[string][]string)
	for number := int32(1); number < 100; number++ {
		typ := agboxv1.EventType(number)
		if _, known := agboxv1.EventType_name[number]; !known {
			continue
		}
		cells := ""
		for _, s := range states {
			cells += " " + cell(s, typ, word) + " |"
		}
		if events[cells] == nil {
			rows = append(rows, cells)
		}
		events[cells] = append(events[cells], "`"+typ.String()+"`")
	}
	for _, cells := range rows {
		fmt.Fprintf(&out, "| %s |%s\n", strings.Join(events[cells], ", "), cells)
	}
	return out.String()
}

// cell formats the effect of an event in a state, over all wants, with and without execs that run
// and were lost, made ahead or not. It is empty if the event is never legal there.
func cell(s agboxv1.SandboxState, typ agboxv1.EventType, word func(agboxv1.SandboxState) string) string {
	for _, want := range []Want{WantRunning, WantStopped, WantDeleted} {
		for _, execs := range []map[string]Exec{nil, {"x": {ID: "x"}}} {
			for _, pool := range []string{"", "p"} {
				r := Record{State: s, Want: want, Execs: execs, Lost: execs, Pool: pool}
				if s != 0 {
					r.LastSequence = 1
				}
				if Legal(r, typ) {
					return word(Fold(r, event(2, typ, "x")).State)
				}
			}
		}
	}
	return ""
}

func TestTransitionTableInTheDocumentIsTrue(t *testing.T) {
	raw, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(raw), "<!-- transitions: begin -->\n")
	table, _, found := strings.Cut(rest, "<!-- transitions: end -->")
	if want := transitions(); !found || table != want {
		t.Errorf("the table in README.md does not match the rules; it should be:\n%s", want)
	}
}

// foldAll folds a whole stream.
func foldAll(events []*agboxv1.SandboxEvent) Record {
	var r Record
	for _, ev := range events {
		r = Fold(r, ev)
	}
	return r
}
