package reconcile

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/daemon/guests/guesttest"
	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/daemon/machine"
	"github.com/agbox/agbox/runtime"
	"github.com/agbox/agbox/runtime/runtimetest"
)

// idleAgents are agents whose programs do not start.
type idleAgents struct{ Agents }

func (idleAgents) Describe(context.Context, ledger.Agent) error { return nil }

func (idleAgents) LostHolder(ledger.Agent) (string, time.Time) { return "", time.Time{} }

func (idleAgents) RemoveLeft(ledger.Agent) (int, error) { return 0, nil }

func (idleAgents) Exec(context.Context, ledger.Agent) (*agboxv1.ExecStatus, error) {
	return nil, errdefs.ErrNotFound
}

func (idleAgents) Start(context.Context, ledger.Agent) (*agboxv1.AgentEvent, error) {
	return nil, errdefs.ErrUnavailable
}

// TestADerivedSandboxHasTheImageOfItsParentsContainer: the name of the image means another one by
// now, a service has a third one, and nothing is pulled. It has the memory of the install at most.
func TestADerivedSandboxHasTheImageOfItsParentsContainer(t *testing.T) {
	engine := runtimetest.NewFake()
	first := engine.AddImage(runtimetest.FakeImage, runtime.Image{ID: "sha256:" + strings.Repeat("1", 64)})
	engine.AddImage("untagged", first)
	engine.AddImage("other", runtime.Image{ID: "sha256:" + strings.Repeat("3", 64)})
	l := begin(t, engine, t.TempDir(), func(o *Options) { o.MemoryDefault, o.Agents = MemoryDefault{Percent: 50}, idleAgents{} })
	l.createSpec("box", &agboxv1.CreateSpec{Services: []*agboxv1.ServiceSpec{{Name: "db", Image: "other"}}})
	l.await("box", machine.Ready)
	if _, err := l.ledger.SpawnAgent(t.Context(), ledger.NewAgent{ID: "parent", SandboxID: "box", Spec: &agboxv1.AgentSpec{Command: []string{"x"}}}); err != nil {
		t.Fatal(err)
	}
	engine.AddImage(runtimetest.FakeImage, runtime.Image{ID: "sha256:" + strings.Repeat("2", 64)})
	derived := &agboxv1.CreateSpec{MemoryLimit: "100g", PullPolicy: agboxv1.PullPolicy_PULL_POLICY_ALWAYS, Derived: &agboxv1.DerivedSpec{Parent: "parent", Tree: "parent"}}
	l.createSpec("child", derived)
	l.await("child", machine.Ready)
	made, _ := engine.Spec(runtime.PrimaryName("child"))
	if made.ImageID != first.ID || made.Limits.Memory != 4<<30 {
		t.Errorf("the child has %s and %d bytes; want %s and 4 GiB", made.ImageID, made.Limits.Memory, first.ID)
	}
	l.want(l.ledger.RequestDelete, "box")
	l.until("the sandbox of the parent is gone", func() bool { _, there := l.ledger.Sandbox("box"); return !there })
	l.createSpec("late", derived)
	if r := l.await("late", machine.Failed); !strings.Contains(r.ErrorMessage, "whose sandbox is removed") {
		t.Errorf("without a parent: %s", r.ErrorMessage)
	}
	if left := l.objects().Containers; slices.ContainsFunc(left, func(c runtime.Container) bool { return c.SandboxID == "late" }) {
		t.Errorf("left is %v", left)
	}
}

// TestADerivedSandboxOutlivesTheRecordOfItsParent: that has ended, and is removed, while others use
// its sandbox. A child whose container is lost then gets another one.
func TestADerivedSandboxOutlivesTheRecordOfItsParent(t *testing.T) {
	l := begin(t, runtimetest.NewFake(), t.TempDir(), func(o *Options) { o.Agents = idleAgents{} })
	l.create("box", runtimetest.FakeImage)
	l.await("box", machine.Ready)
	derived := func(where string) *agboxv1.CreateSpec {
		return &agboxv1.CreateSpec{Derived: &agboxv1.DerivedSpec{Parent: "removed", ParentSandbox: where, Tree: "removed", Workspace: "/work"}}
	}
	l.createSpec("again", derived("box"))
	l.await("again", machine.Ready)
	again, _ := l.ledger.Sandbox("again")
	copies, err := l.loop.copiesOf(again)
	if err != nil || len(copies) != 1 || copies[0].From != "box" {
		t.Errorf("copied is %+v, %v", copies, err)
	}
	for id, where := range map[string]string{"older": "", "late": "other"} {
		l.createSpec(id, derived(where))
		if r := l.await(id, machine.Failed); !strings.Contains(r.ErrorMessage, "whose sandbox is removed") {
			t.Errorf("%s: %s", id, r.ErrorMessage)
		}
	}
}

// strays has sandboxes whose processes live, whatever the engine says.
type strays struct {
	Links
	live map[string]bool
}

func (s strays) Lives(id string) bool { return s.live[id] }

// TestASandboxWaitsForAParentsContainerThatComesBackOnly: the parent waits for the answer to its
// request meanwhile.
func TestASandboxWaitsForAParentsContainerThatComesBackOnly(t *testing.T) {
	b, live := guesttest.New(t), map[string]bool{}
	l := &Loop{ledger: b.Ledger, links: strays{live: live}, engine: runtimetest.NewFake(), log: b.Log, opts: Options{InstallID: "i"}}
	from := &agboxv1.DerivedSpec{Parent: "parent"}
	want := func(what string, is func(error) bool) {
		t.Helper()
		if _, err := l.imageOfParent(t.Context(), from, runtime.ImageRequest{}); !is(err) {
			t.Errorf("%s: %v", what, err)
		}
	}
	emit := func(r machine.Record, ev *agboxv1.SandboxEvent) {
		t.Helper()
		if _, err := b.Ledger.Emit(t.Context(), r, ev); err != nil {
			t.Fatal(err)
		}
	}
	event := func(a ledger.Agent, ev *agboxv1.AgentEvent) ledger.Agent {
		t.Helper()
		after, err := b.Ledger.EmitAgent(t.Context(), a.Record, ev)
		if err != nil || after.LastSequence == a.LastSequence {
			t.Fatalf("%v is not recorded: %v", ev, err)
		}
		return after
	}
	spec := &agboxv1.AgentSpec{Command: []string{"x"}}
	owner, err := b.Ledger.SpawnAgent(t.Context(), ledger.NewAgent{ID: "owner", SandboxID: "box", Own: new(agboxv1.CreateSpec), Spec: spec})
	if err == nil {
		_, err = b.Ledger.SpawnAgent(t.Context(), ledger.NewAgent{ID: "parent", SandboxID: "box", Spec: spec})
	}
	if err != nil {
		t.Fatal(err)
	}
	owner = event(owner, &agboxv1.AgentEvent{Type: agboxv1.AgentEventType_AGENT_BEGUN, Incarnation: 1,
		Details: &agboxv1.AgentEvent_Begun{Begun: &agboxv1.AgentBegun{SandboxId: "box", ExecId: "x"}}})
	event(owner, &agboxv1.AgentEvent{Type: agboxv1.AgentEventType_AGENT_INCARNATION_ENDED, Incarnation: 1,
		Details: &agboxv1.AgentEvent_End{End: &agboxv1.IncarnationEnd{Kind: agboxv1.IncarnationEndKind_INCARNATION_END_KIND_NEVER_STARTED, ExecId: "x"}}})
	want("it may be started at this moment", errdefs.IsUnavailable)
	live["box"] = true
	want("its supervisor has begun a moment ago", errdefs.IsUnavailable)
	sb, _ := b.Ledger.Sandbox("box")
	emit(sb.Record, &agboxv1.SandboxEvent{EventType: agboxv1.EventType_SANDBOX_READY})
	want("the engine has lost it, and its processes live", errdefs.IsFailedPrecondition)
	delete(live, "box")
	want("nobody has noticed the loss yet", errdefs.IsUnavailable)
	sb, _ = b.Ledger.Sandbox("box")
	emit(sb.Record, machine.Failure(agboxv1.ErrorReason_PRIMARY_MISSING, "It is gone."))
	want("its owner moves soon, and takes it along", errdefs.IsUnavailable)
	if _, err = b.Ledger.RequestKill(t.Context(), "owner", new(agboxv1.AgentKill)); err != nil {
		t.Fatal(err)
	}
	want("it stays without a container", errdefs.IsFailedPrecondition)
	if _, err := b.Ledger.RequestDelete(t.Context(), "box"); err != nil {
		t.Fatal(err)
	}
	want("its owner may have moved at this moment, and takes it along", errdefs.IsUnavailable)
	parent, _ := b.Ledger.Agent("parent")
	event(parent, agents.Reaped("test"))
	want("it has ended", errdefs.IsFailedPrecondition)
}
