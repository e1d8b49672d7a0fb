package reconcile

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

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
