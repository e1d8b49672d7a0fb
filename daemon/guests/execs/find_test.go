package execs

import (
	"context"
	"io/fs"
	"slices"
	"syscall"
	"testing"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"
	"github.com/agbox/agbox/runtime/guest/rpc"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/daemon/machine"
)

// finder is a supervisor that remembers what it was asked to end, once for each time that it said
// that it runs.
type finder struct {
	supervisor
	ended []string
	// lives has execs that run until they were asked so often to end. atEnd is called then.
	lives map[string]int
	atEnd func(execID string)
}

func (f *finder) Cancel(_ context.Context, req *guestv1.CancelRequest) (*guestv1.CancelResponse, error) {
	id := req.GetExecId()
	f.ended = append(f.ended, id)
	f.lives[id]--
	if f.lives[id] == 0 && f.atEnd != nil {
		f.atEnd(id)
	}
	return &guestv1.CancelResponse{Running: f.lives[id] >= 0}, nil
}

// running is the record of an exec that runs, in that life of the supervisor.
func running(execID, boot string) *guestv1.ExecRecord {
	return &guestv1.ExecRecord{ExecId: execID, Phase: guestv1.ExecPhase_EXEC_PHASE_RUNNING, BootId: boot}
}

// lose accepts an exec and records it as lost, although the supervisor of boot1 has it.
func (b *bench) lose(execID string) {
	b.t.Helper()
	_, err := b.ledger.AcceptExec(b.t.Context(), &agboxv1.CreateExecRequest{SandboxId: "a", ExecId: execID, Command: []string{"true"}}, "boot1")
	if err == nil {
		err = b.endAll(true)
	}
	if err != nil {
		b.t.Fatal(err)
	}
	if st := b.status(execID); st.GetErrorCode() != agboxv1.ErrorReason_EXEC_LOST.String() {
		b.t.Fatalf("its status is %v, want it lost", st)
	}
}

func (b *bench) status(execID string) *agboxv1.ExecStatus {
	b.t.Helper()
	st, err := b.ledger.Exec(b.t.Context(), "a", execID)
	if err != nil {
		b.t.Fatal(err)
	}
	return st
}

// linkTo links a supervisor of that life, which knows the execs whose status files it has written.
func (b *bench) linkTo(boot string) *finder {
	b.t.Helper()
	f := &finder{supervisor: supervisor{boot: boot, exits: make(chan *guestv1.ExecRecord, 1)}, lives: make(map[string]int)}
	f.known = make(map[string]*guestv1.ExecRecord)
	for id, rec := range b.left {
		if rec.GetBootId() == boot {
			f.known[id] = rec.CloneVT()
		}
	}
	methods := f.methods()
	methods["guest.v1.Supervisor/Cancel"] = rpc.Unary(f.Cancel)
	f.cut, _ = b.Serve(methods)
	b.connect()
	return f
}

// find looks for what was lost over a link to a supervisor of that life.
func (b *bench) find(boot string) *finder {
	b.t.Helper()
	f := b.linkTo(boot)
	if !b.runner.LostDue("a") {
		b.t.Fatal("nothing is to be looked for")
	}
	for range 2 { // if something is found, the next link is asked for the rest
		if err := b.runner.FindExecs(b.t.Context(), "a"); err != nil {
			b.t.Fatal(err)
		}
		if !b.Links.Connected("a") {
			b.connect()
		}
	}
	if b.runner.LostDue("a") {
		b.t.Error("more is to be looked for over the same link")
	}
	return f
}

func TestExecsThatWereLostAreFound(t *testing.T) {
	otherLife := exited(4)
	otherLife.BootId = "boot2"
	for name, tc := range map[string]struct {
		left *guestv1.ExecRecord
		boot string // of the supervisor
		want bool
	}{
		"it runs":                               {left: running("x", "boot1"), boot: "boot1", want: true},
		"it has ended":                          {left: exited(4), boot: "boot1", want: true},
		"it has ended, in the life before":      {left: exited(4), boot: "boot2"},
		"its container was started again":       {left: running("x", "boot1"), boot: "boot2"},
		"another life claims to have it":        {left: running("x", "boot2"), boot: "boot2"},
		"another life claims that it has ended": {left: otherLife, boot: "boot1"},
		"it was never started":                  {boot: "boot1"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.lose("x")
			if tc.left != nil {
				b.leave(tc.left)
			}
			f := b.find(tc.boot)
			if found := b.status("x").GetErrorCode() != agboxv1.ErrorReason_EXEC_LOST.String(); found != tc.want {
				t.Errorf("found: %t, want %t", found, tc.want)
			}
			if want := !tc.want; slices.Contains(f.ended, "x") != want {
				t.Errorf("ended were %q; want it ended: %t", f.ended, want)
			}
			if n := f.started(); n != 0 {
				t.Errorf("it was started %d times", n)
			}
		})
	}
}

// TestAFoundExecEndsOnce: who asked before was told of the loss, and who asks later of the true end.
func TestAFoundExecEndsOnce(t *testing.T) {
	b := newBench(t)
	b.lose("x")
	<-b.ledger.ExecDone("x")
	b.leave(running("x", "boot1"))
	f := b.find("boot1")
	select {
	case <-b.ledger.ExecDone("x"):
		t.Fatal("the exec that was found does not run")
	default:
	}
	f.exits <- exited(7)
	if st := b.ended(); st.GetExitCode() != 7 || st.GetState() != agboxv1.ExecState_EXEC_STATE_FINISHED || st.GetErrorCode() != "" || st.GetError() != "" {
		t.Errorf("its status is %v", st)
	}
}

// loseAgent spawns an agent whose first incarnation is lost, and runs.
func (b *bench) loseAgent(id string) (execID string) {
	b.t.Helper()
	if _, err := b.ledger.SpawnAgent(b.t.Context(), ledger.NewAgent{ID: id, SandboxID: "a", Spec: &agboxv1.AgentSpec{Command: []string{"true"}}}); err != nil {
		b.t.Fatal(err)
	}
	execID = agents.ExecID(id, 1)
	b.emitAgent(id, &agboxv1.AgentEvent{
		Type: agboxv1.AgentEventType_AGENT_BEGUN, Incarnation: 1,
		Details: &agboxv1.AgentEvent_Begun{Begun: &agboxv1.AgentBegun{ExecId: execID, SandboxId: "a", Attempt: 1}},
	})
	b.lose(execID)
	b.leaveFor(execID, running(execID, "boot1"))
	return execID
}

// tell has the agent know of the loss.
func (b *bench) tell(id string) {
	b.t.Helper()
	b.emitAgent(id, &agboxv1.AgentEvent{Type: agboxv1.AgentEventType_AGENT_INCARNATION_ENDED, Incarnation: 1, Details: &agboxv1.AgentEvent_End{
		End: &agboxv1.IncarnationEnd{Kind: agboxv1.IncarnationEndKind_INCARNATION_END_KIND_LOST},
	}})
}

func (b *bench) emitAgent(id string, ev *agboxv1.AgentEvent) {
	b.t.Helper()
	a, _ := b.ledger.Agent(id)
	if _, err := b.ledger.EmitAgent(b.t.Context(), a.Record, ev); err != nil {
		b.t.Fatal(err)
	}
}

// TestWhatMayHaveBeenReplacedEndsFirst: an incarnation whose loss its agent knows of, that of an
// agent that was removed, and a hook. Their ends are recorded. An incarnation whose agent has not
// heard of the loss goes on.
func TestWhatMayHaveBeenReplacedEndsFirst(t *testing.T) {
	b := newBench(t)
	told, removed, untold := b.loseAgent("told"), b.loseAgent("removed"), b.loseAgent("untold")
	b.tell("told")
	b.tell("removed")
	b.emitAgent("removed", agents.Reaped("It is removed."))
	if _, err := b.ledger.DeleteAgent(t.Context(), "removed"); err != nil {
		t.Fatal(err)
	}
	hook := &agboxv1.CreateExecRequest{SandboxId: "a", ExecId: "hook", Command: []string{"true"}}
	if _, err := b.ledger.AcceptHook(t.Context(), hook, "boot1", machine.Hook{Service: "db"}); err != nil {
		t.Fatal(err)
	}
	if err := b.endAll(true); err != nil {
		t.Fatal(err)
	}
	b.leaveFor("hook", running("hook", "boot1"))
	f := b.linkTo("boot1")
	f.atEnd = func(id string) {
		rec := exited(143)
		rec.ExecId = id
		b.leaveFor(id, rec)
	}
	replaced := []string{told, removed, "hook"}
	slices.Sort(replaced)
	for _, id := range replaced {
		f.lives[id] = 2
	}
	if err := b.runner.FindExecs(t.Context(), "a"); err == nil || !b.runner.LostDue("a") {
		t.Errorf("while they run: %v, to be called again: %t", err, b.runner.LostDue("a"))
	}
	for id := range f.lives {
		if st := b.status(id); st.GetErrorCode() != agboxv1.ErrorReason_EXEC_LOST.String() {
			t.Errorf("%s is %v before all have ended", id, st)
		}
	}
	for range 2 {
		if err := b.runner.FindExecs(t.Context(), "a"); err == nil {
			break
		}
	}
	slices.Sort(f.ended)
	if got := slices.Compact(f.ended); !slices.Equal(got, replaced) {
		t.Errorf("ended were %q, want %q", got, replaced)
	}
	for _, id := range append(replaced, untold) {
		if st := b.status(id); st.GetState() != agboxv1.ExecState_EXEC_STATE_RUNNING {
			t.Errorf("%s is %v, want it found", id, st)
		}
	}
}

// TestWhatMayNotReturnEnds: nobody looks for more before it has.
func TestWhatMayNotReturnEnds(t *testing.T) {
	for name, tc := range map[string]struct {
		status bool // it says that the exec runs
		seen   bool // its container was seen to have ended
	}{
		"without a status":              {},
		"its container was seen to end": {status: true, seen: true},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			if _, err := b.ledger.AcceptExec(t.Context(), &agboxv1.CreateExecRequest{SandboxId: "a", ExecId: "x", Command: []string{"true"}}, "boot1"); err != nil {
				t.Fatal(err)
			}
			if err := b.endAll(!tc.seen); err != nil {
				t.Fatal(err)
			}
			if tc.status {
				b.leave(running("x", "boot1"))
			}
			f := b.linkTo("boot1")
			f.lives["x"] = 1
			if err := b.runner.FindExecs(t.Context(), "a"); err == nil || !b.runner.LostDue("a") {
				t.Errorf("while it runs: %v, to be called again: %t", err, b.runner.LostDue("a"))
			}
			if err := b.runner.FindExecs(t.Context(), "a"); err != nil || b.runner.LostDue("a") {
				t.Errorf("after its end: %v, to be called again: %t", err, b.runner.LostDue("a"))
			}
			if st := b.status("x"); st.GetErrorCode() != agboxv1.ErrorReason_EXEC_LOST.String() {
				t.Errorf("its status is %v, want it lost", st)
			}
		})
	}
}

// TestAnExecThatOnlyItsStatusKnowsIsNotStarted: root in the sandbox can write that.
func TestAnExecThatOnlyItsStatusKnowsIsNotStarted(t *testing.T) {
	for _, claim := range []*guestv1.ExecRecord{running("x", "boot1"), exited(0)} {
		b := newBench(t)
		b.lose("x")
		f := b.linkTo("boot1")
		b.leave(claim)
		if err := b.runner.FindExecs(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		b.connect()
		if st := b.ended(); st.GetErrorCode() != agboxv1.ErrorReason_EXEC_LOST.String() || f.started() != 0 {
			t.Errorf("it was started %d times, and is %v", f.started(), st)
		}
		if err := b.runner.FindExecs(t.Context(), "a"); err != nil || b.runner.LostDue("a") {
			t.Errorf("its status is read again: %v", err)
		}
	}
}

// TestOnlyWhatNobodySawEndMayReturn: the status of another one can be written in a later life.
func TestOnlyWhatNobodySawEndMayReturn(t *testing.T) {
	for _, missing := range []bool{true, false} {
		b := newBench(t)
		if _, err := b.ledger.AcceptExec(t.Context(), &agboxv1.CreateExecRequest{SandboxId: "a", ExecId: "x", Command: []string{"true"}}, "boot1"); err != nil {
			t.Fatal(err)
		}
		if err := b.endAll(missing); err != nil {
			t.Fatal(err)
		}
		sb, _ := b.ledger.Sandbox("a")
		if exec, lost := sb.Lost["x"]; !lost || exec.MayReturn != missing {
			t.Errorf("missing: %t: lost: %t, may return: %t", missing, lost, exec.MayReturn)
		}
		b.leave(exited(0))
		b.find("boot1")
		if found := b.status("x").GetErrorCode() != agboxv1.ErrorReason_EXEC_LOST.String(); found != missing {
			t.Errorf("missing: %t: found: %t", missing, found)
		}
	}
}

// TestAStatusThatMayNotBeReadIsNone: a container can take the rights on it from a daemon that is
// not root.
func TestAStatusThatMayNotBeReadIsNone(t *testing.T) {
	for _, no := range []error{syscall.EACCES, syscall.EPERM} {
		if !noStatus(&fs.PathError{Op: "open", Path: "x", Err: no}) {
			t.Errorf("%v keeps a sandbox from going on", no)
		}
	}
	if noStatus(syscall.EMFILE) {
		t.Error("an error of the host counts as none")
	}
}

// TestALinkThatOutlastsTheContainerIsAskedAgain: the engine did not have it twice.
func TestALinkThatOutlastsTheContainerIsAskedAgain(t *testing.T) {
	b := newBench(t)
	b.lose("x")
	if !b.runner.LostDue("a") {
		t.Error("without a link, nothing is to be looked for")
	}
	b.find("boot1")
	b.lose("y")
	if !b.runner.LostDue("a") {
		t.Error("what was lost later is not looked for")
	}
}
