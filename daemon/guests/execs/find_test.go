package execs

import (
	"context"
	"slices"
	"testing"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"

	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/daemon/machine/agent"
)

// finder is a supervisor that remembers what it was asked to end.
type finder struct {
	supervisor
	ended []string
}

func (f *finder) Cancel(_ context.Context, req *guestv1.CancelRequest) (*guestv1.CancelResponse, error) {
	f.ended = append(f.ended, req.GetExecId())
	return &guestv1.CancelResponse{Running: true}, nil
}

// lose accepts an exec and records it as lost, although the supervisor of boot1 has it.
func (b *bench) lose(execID string) {
	b.t.Helper()
	_, err := b.ledger.AcceptExec(b.t.Context(), &agboxv1.CreateExecRequest{SandboxId: "a", ExecId: execID, Command: []string{"true"}}, "boot1")
	if err == nil {
		err = b.runner.EndAll(b.t.Context(), "a")
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

// find looks for what was lost over a link to a supervisor of that life.
func (b *bench) find(boot string) *finder {
	b.t.Helper()
	f := &finder{supervisor: supervisor{boot: boot, exits: make(chan *guestv1.ExecRecord, 1)}}
	f.cut, _ = b.Serve(f, nil)
	b.connect()
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
	running := func(boot string) *guestv1.ExecRecord {
		return &guestv1.ExecRecord{ExecId: "x", Phase: guestv1.ExecPhase_EXEC_PHASE_RUNNING, BootId: boot}
	}
	otherLife := exited(4)
	otherLife.BootId = "boot2"
	for name, tc := range map[string]struct {
		left *guestv1.ExecRecord
		boot string // of the supervisor
		want bool
	}{
		"it runs":                               {left: running("boot1"), boot: "boot1", want: true},
		"it has ended":                          {left: exited(4), boot: "boot1", want: true},
		"it has ended, in the life before":      {left: exited(4), boot: "boot2", want: true},
		"its container was started again":       {left: running("boot1"), boot: "boot2"},
		"another life claims to have it":        {left: running("boot2"), boot: "boot2"},
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
			if found := b.status("x").GetState() == agboxv1.ExecState_EXEC_STATE_RUNNING; found != tc.want {
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
	b.leave(&guestv1.ExecRecord{ExecId: "x", Phase: guestv1.ExecPhase_EXEC_PHASE_RUNNING, BootId: "boot1"})
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

// TestWhatMayHaveBeenReplacedIsEnded: an incarnation whose loss its agent knows of. An incarnation whose agent has not heard of the loss goes on.
func TestWhatMayHaveBeenReplacedIsEnded(t *testing.T) {
	b := newBench(t)
	emit := func(id string, ev *agboxv1.AgentEvent) {
		t.Helper()
		a, _ := b.ledger.Agent(id)
		if _, err := b.ledger.EmitAgent(t.Context(), a.Record, ev); err != nil {
			t.Fatal(err)
		}
	}
	for _, id := range []string{"told", "untold"} {
		if _, err := b.ledger.SpawnAgent(t.Context(), ledger.NewAgent{ID: id, SandboxID: "a", Spec: &agboxv1.AgentSpec{Command: []string{"true"}}}); err != nil {
			t.Fatal(err)
		}
		emit(id, &agboxv1.AgentEvent{
			Type: agboxv1.AgentEventType_AGENT_BEGUN, Incarnation: 1,
			Details: &agboxv1.AgentEvent_Begun{Begun: &agboxv1.AgentBegun{ExecId: agent.ExecID(id, 1), SandboxId: "a", Attempt: 1}},
		})
		b.lose(agent.ExecID(id, 1))
		b.leaveFor(agent.ExecID(id, 1), &guestv1.ExecRecord{ExecId: agent.ExecID(id, 1), Phase: guestv1.ExecPhase_EXEC_PHASE_RUNNING, BootId: "boot1"})
	}
	emit("told", &agboxv1.AgentEvent{Type: agboxv1.AgentEventType_AGENT_INCARNATION_ENDED, Incarnation: 1, Details: &agboxv1.AgentEvent_End{End: &agboxv1.IncarnationEnd{
		Kind: agboxv1.IncarnationEndKind_INCARNATION_END_KIND_LOST,
	}}})
	f := b.find("boot1")
	if want := []string{agent.ExecID("told", 1)}; !slices.Equal(f.ended, want) {
		t.Errorf("ended were %q, want %q", f.ended, want)
	}
	for _, id := range []string{"told", "untold"} {
		if st := b.status(agent.ExecID(id, 1)); st.GetState() != agboxv1.ExecState_EXEC_STATE_RUNNING {
			t.Errorf("the exec of %s is %v; until its end it runs", id, st)
		}
	}
}
