package incarnations

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/internal/fault"
)

// TestAStackGetsASandboxOfItsOwn: the border of a stack protects unless the parent says
// otherwise, and the answer says which of both it is.
func TestAStackGetsASandboxOfItsOwn(t *testing.T) {
	r := asking(t, &agboxv1.AgentSpec{
		Budget: &agboxv1.AgentBudget{CostUsd: "0"}, MaySpawn: &agboxv1.AgentMaySpawn{Depth: 2}, User: "1000",
		Retry: &agboxv1.AgentRetry{Reduced: &agboxv1.AgentReduced{WithoutServices: []string{"db"}}},
	})
	for _, row := range []struct {
		fields, sandbox, border string
		notice                  bool
	}{
		{``, "shared", "", false},
		{`,"sandbox":"shared"`, "shared", "", false},
		{`,"sandbox":"new"`, "new", "", false},
		{`,"stack":{"name":"s"}`, "new", "protects", false},
		{`,"stack":{"name":"s"},"sandbox":"new"`, "new", "protects", false},
		{`,"stack":{"name":"s"},"sandbox":"shared"`, "shared", "orders", true},
	} {
		for range 2 { // repeated by the same key
			got, code := r.make("spawn", `{"command":["x"],"key":"`+fmt.Sprintf("%x", row.fields)+`"`+row.fields+`}`)
			r.want(row.fields, code, "")
			a := r.child(got["agent_id"].(string))
			border, _ := got["border"].(string)
			if own := row.sandbox == "new"; got["sandbox"] != row.sandbox || border != row.border || (got["notice"] != nil) != row.notice || a.Owned != own || got["sandbox_id"] != a.SandboxID {
				t.Errorf("%s: %v, owned %v in %s", row.fields, got, a.Owned, a.SandboxID)
			}
			if a.Owned {
				sb, _ := r.Ledger.Sandbox(a.SandboxID)
				if d := sb.Spec.GetDerived(); d.GetParent() != "x" || d.GetParentSandbox() != "a" || d.GetTree() != "x" || d.GetUser() != "1000" || a.Tree != "x" {
					t.Errorf("its sandbox is derived as %v, its tree is %s", d, a.Tree)
				}
				if a.Spec.GetRetry().GetReduced().GetWithoutServices() != nil {
					t.Error("it is to stop services that its sandbox does not have")
				}
			}
		}
	}
	if len(r.sandboxes) != 3 {
		t.Errorf("scheduled were %v", r.sandboxes)
	}
}

func TestWhatAParentMayNotSayAboutASandbox(t *testing.T) {
	r := asking(t, &agboxv1.AgentSpec{MaySpawn: &agboxv1.AgentMaySpawn{}})
	for _, row := range []struct{ fields, code string }{
		{`"sandbox":"b"`, "INVALID_REQUEST"},
		{`"workspace":"copy"`, "INVALID_REQUEST"},
		{`"sandbox":"shared","limits":{"cpu":"1"}`, "INVALID_REQUEST"},
		{`"sandbox":"new","workspace":"/etc"`, "INVALID_REQUEST"},
		{`"sandbox":"new","workspace":"branch","name":"a..b"`, "INVALID_REQUEST"},
		{`"sandbox":"new","limits":{"disk":"1"}`, "INVALID_REQUEST"},
		{`"sandbox":"new","share_mounts":[{"target":"/etc","source":"/etc"}]`, "INVALID_REQUEST"},
		{`"sandbox":"new","share_mounts":[{"target":"/etc"}]`, "SPAWN_NOT_ALLOWED"},
		{`"sandbox":"new","share_tools":["ssh-agent"]`, "SPAWN_NOT_ALLOWED"},
		{`"sandbox":"new","allow_host":true`, "SPAWN_NOT_ALLOWED"},
		{`"sandbox":"new","workspace":"shared"`, "SPAWN_NOT_ALLOWED"},
		{`"sandbox":"new","limits":{"pids":5000}`, "SPAWN_NOT_ALLOWED"},
		{`"sandbox":"new","image":"x"`, "SPAWN_NOT_ALLOWED"},
		{`"sandbox":"new","mounts":[{"source":"/","target":"/h"}]`, "SPAWN_NOT_ALLOWED"},
		{`"sandbox":"new","ports":[1]`, "SPAWN_NOT_ALLOWED"},
		{`"sandbox":"new","security":{"privileged":true}`, "SPAWN_NOT_ALLOWED"},
		{`"sandbox":"new","derived":{"parent":"y"}`, "SPAWN_NOT_ALLOWED"},
		{`"sandbox":"new","services":[{}]`, "SPAWN_NOT_ALLOWED"},
	} {
		_, code := r.make("spawn", `{"command":["x"],`+row.fields+`}`)
		r.want(row.fields, code, row.code)
	}
	r.refused = fault.New(errdefs.ErrInvalidArgument, agboxv1.ErrorReason_INVALID_REQUEST, "The policy forbids it.")
	_, code := r.make("spawn", `{"command":["x"],"sandbox":"new"}`)
	r.want("what the operator forbids by now", code, "INVALID_REQUEST")
	if len(r.Ledger.Children("x")) != 0 || len(r.Ledger.Sandboxes()) != 1 || len(r.sandboxes) != 0 {
		t.Error("something was made")
	}
	none := asking(t, &agboxv1.AgentSpec{MaySpawn: &agboxv1.AgentMaySpawn{Sandboxes: proto.Uint32(0)}})
	_, code = none.make("spawn", `{"command":["x"],"stack":{"name":"s"}}`)
	none.want("a sandbox where there may be none", code, "SPAWN_NOT_ALLOWED")
	_, code = none.make("spawn", `{"command":["x"],"stack":{"name":"s"},"sandbox":"shared"}`)
	none.want("the remedy", code, "")
}

// TestAKeyStandsForOneSandbox: the same key with other fields of the sandbox is another request.
func TestAKeyStandsForOneSandbox(t *testing.T) {
	r := asking(t, &agboxv1.AgentSpec{MaySpawn: &agboxv1.AgentMaySpawn{}})
	_, code := r.make("spawn", `{"command":["x"],"key":"k","sandbox":"new","limits":{"pids":10}}`)
	r.want("a child", code, "")
	for _, fields := range []string{`,"sandbox":"new","limits":{"pids":11}`, `,"sandbox":"new"`, `,"sandbox":"shared"`, ``} {
		_, code := r.make("spawn", `{"command":["x"],"key":"k"`+fields+`}`)
		r.want("another: "+fields, code, "REQUEST_KEY_REUSED")
	}
	if n := len(r.Ledger.Sandboxes()); n != 2 {
		t.Errorf("there are %d sandboxes", n)
	}
}

// TestAKeyStandsForItsChildAfterAnAdoption: the database was lost, and the spec of the sandbox is
// made of its container. What a request does not say may also have been written otherwise by an
// older daemon. Other fields of the agent are still another request.
func TestAKeyStandsForItsChildAfterAnAdoption(t *testing.T) {
	const spawn = `{"command":["x"],"key":"k","sandbox":"new","limits":{"pids":10}`
	lost := asking(t, &agboxv1.AgentSpec{MaySpawn: &agboxv1.AgentMaySpawn{}})
	got, code := lost.make("spawn", spawn+`}`)
	lost.want("a child", code, "")
	known := lost.child(got["agent_id"].(string))
	sb, _ := lost.Ledger.Sandbox(known.SandboxID)
	older := proto.CloneOf(sb.Spec)
	older.Derived.Tree = "older"
	for name, spec := range map[string]*agboxv1.CreateSpec{"adopted": {Image: "sha256:1"}, "of an older daemon": older} {
		r := asking(t, &agboxv1.AgentSpec{MaySpawn: &agboxv1.AgentMaySpawn{}})
		if _, err := r.Ledger.Create(t.Context(), known.SandboxID, spec); err != nil {
			t.Fatal(err)
		}
		if _, err := r.Ledger.AdoptAgent(t.Context(), ledger.AdoptedAgent{
			ID: known.ID, Parent: "x", Depth: known.Depth, Tree: known.Tree, Spec: known.Spec, SandboxID: known.SandboxID, Owned: true,
		}); err != nil {
			t.Fatal(err)
		}
		got, code = r.make("spawn", spawn+`}`)
		if r.want(name+": the same request", code, ""); got["agent_id"] != known.ID {
			t.Errorf("%s: it is answered with %v", name, got)
		}
		_, code = r.make("spawn", spawn+`,"title":"another"}`)
		r.want(name+": another agent", code, "REQUEST_KEY_REUSED")
	}
}

// TestAKeyStandsForItsSandboxAfterAMove: the parent, whose sandbox was lost, asks again from another.
func TestAKeyStandsForItsSandboxAfterAMove(t *testing.T) {
	r := asking(t, &agboxv1.AgentSpec{MaySpawn: &agboxv1.AgentMaySpawn{}})
	got, code := r.make("spawn", `{"command":["x"],"key":"k","sandbox":"new"}`)
	r.want("a child", code, "")
	made := r.child(got["agent_id"].(string))
	sb, _ := r.Ledger.Sandbox(made.SandboxID)
	n := ledger.NewAgent{Own: proto.CloneOf(sb.Spec)}
	n.Own.Derived.ParentSandbox = "remade-2-x"
	if r.ownDiffers(made, n) || n.Own.GetDerived().GetParentSandbox() != "remade-2-x" {
		t.Errorf("after the move it is another request, of %v", n.Own.GetDerived())
	}
	if n.Own.PidsLimit++; !r.ownDiffers(made, n) {
		t.Error("another request counts as the same")
	}
}

// TestATreeHasABoundedNumberOfSandboxes: those of all agents of the tree count, also when those
// above have ended and init has adopted them, until the sandboxes are removed.
func TestATreeHasABoundedNumberOfSandboxes(t *testing.T) {
	r := asking(t, &agboxv1.AgentSpec{Budget: &agboxv1.AgentBudget{CostUsd: "0"}, MaySpawn: &agboxv1.AgentMaySpawn{Children: 100, Depth: 3, Sandboxes: proto.Uint32(3)}})
	var made []ledger.Agent
	for i := range 10 {
		got, code := r.make("spawn", fmt.Sprintf(`{"command":["x"],"sandbox":"new","key":"%d"}`, i))
		want := ""
		if i >= 3 {
			want = "AGENT_LIMIT"
		}
		r.want(fmt.Sprint("number ", i), code, want)
		if code == "" {
			made = append(made, r.child(got["agent_id"].(string)))
		}
	}
	first := made[0]
	if m := first.Spec.GetMaySpawn(); m.GetSandboxes() != 3 || m.GetDepth() != 2 {
		t.Errorf("a child may spawn %v", m)
	}
	below := func(key, parent string) error {
		p := r.child(parent)
		own := &agboxv1.CreateSpec{Image: "x", Derived: &agboxv1.DerivedSpec{Parent: parent, Tree: r.Ledger.TreeOf(p)}}
		_, err := r.Ledger.SpawnAgent(t.Context(), ledger.NewAgent{ID: key, Parent: parent, SandboxID: "agent-" + key, Own: own, MaxSandboxes: 3, Spec: new(agboxv1.AgentSpec)})
		return err
	}
	if err := below("deep", first.ID); fault.ReasonOf(err) != agboxv1.ErrorReason_AGENT_LIMIT {
		t.Errorf("a grandchild: %v", err)
	}
	// What a user spawns counts for nobody, and an agent that has ended counts while its sandbox is there.
	if _, err := r.Ledger.SpawnAgent(t.Context(), ledger.NewAgent{ID: "other", SandboxID: "agent-other", Own: &agboxv1.CreateSpec{Image: "x"}, Spec: new(agboxv1.AgentSpec)}); err != nil {
		t.Error(err)
	}
	r.end(made[1].ID)
	_, code := r.make("spawn", `{"command":["x"],"sandbox":"new"}`)
	r.want("while the sandbox of one that has ended is there", code, "AGENT_LIMIT")
	r.remove(made[1].SandboxID)
	r.emit(r.agent(), &agboxv1.AgentEvent{
		Type: agboxv1.AgentEventType_AGENT_INCARNATION_ENDED, Incarnation: 1, Details: &agboxv1.AgentEvent_End{End: &agboxv1.IncarnationEnd{}},
	})
	r.end("x")
	if err := below("after", first.ID); err != nil {
		t.Errorf("after one was removed: %v", err)
	}
	if err := below("after-2", first.ID); fault.ReasonOf(err) != agboxv1.ErrorReason_AGENT_LIMIT {
		t.Errorf("one too many below an adopted agent: %v", err)
	}
}

// remove records the removal of a sandbox.
func (r *requests) remove(id string) {
	r.t.Helper()
	if _, err := r.Ledger.RequestDelete(r.t.Context(), id); err != nil {
		r.t.Fatal(err)
	}
	sb, _ := r.Ledger.Sandbox(id)
	if _, err := r.Ledger.Emit(r.t.Context(), sb.Record, &agboxv1.SandboxEvent{EventType: agboxv1.EventType_SANDBOX_DELETED}); err != nil {
		r.t.Fatal(err)
	}
}

// TestSpawnsOfOneBatchAreCounted: all are decided before the first is committed.
func TestSpawnsOfOneBatchAreCounted(t *testing.T) {
	r := asking(t, new(agboxv1.AgentSpec))
	errs := make(chan error)
	for i := range 40 {
		go func() {
			id := fmt.Sprint("c", i)
			own := &agboxv1.CreateSpec{Image: "x", Derived: &agboxv1.DerivedSpec{Parent: "x", Tree: "x"}}
			_, err := r.Ledger.SpawnAgent(t.Context(), ledger.NewAgent{ID: id, Parent: "x", SandboxID: "agent-" + id, Own: own, MaxSandboxes: 5, Spec: new(agboxv1.AgentSpec)})
			errs <- err
		}()
	}
	accepted := 0
	for range 40 {
		switch err := <-errs; {
		case err == nil:
			accepted++
		case fault.ReasonOf(err) != agboxv1.ErrorReason_AGENT_LIMIT && fault.ReasonOf(err) != agboxv1.ErrorReason_BUDGET_EXHAUSTED:
			t.Error(err)
		}
	}
	if accepted != 5 {
		t.Errorf("%d were accepted", accepted)
	}
}

// TestASpawnIsAnsweredWhenTheWorkspaceIsCopied: what the parent changes after the answer is its
// own. A sandbox that fails or goes keeps nobody waiting.
func TestASpawnIsAnsweredWhenTheWorkspaceIsCopied(t *testing.T) {
	for name, event := range map[string]*agboxv1.SandboxEvent{
		"copied": {EventType: agboxv1.EventType_SANDBOX_FILES_COPIED},
		"failed": {EventType: agboxv1.EventType_SANDBOX_FAILED},
		"to go":  {EventType: agboxv1.EventType_SANDBOX_DELETE_REQUESTED},
	} {
		r := asking(t, new(agboxv1.AgentSpec))
		own := &agboxv1.CreateSpec{Image: "x", Derived: &agboxv1.DerivedSpec{Parent: "x", Tree: "x", Workspace: "/workspace"}}
		a, err := r.Ledger.SpawnAgent(t.Context(), ledger.NewAgent{ID: "c", Parent: "x", SandboxID: "agent-c", Own: own, MaxSandboxes: 1, Spec: new(agboxv1.AgentSpec)})
		if err != nil {
			t.Fatal(err)
		}
		if _, pending, err := r.answerSpawn(a); !pending || err != nil {
			t.Errorf("%s: before: %v, %v", name, pending, err)
		}
		sb, _ := r.Ledger.Sandbox("agent-c")
		if _, err := r.Ledger.Emit(t.Context(), sb.Record, event); err != nil {
			t.Fatal(errors.Join(errors.New(name), err))
		}
		if _, pending, err := r.answerSpawn(a); pending || err != nil {
			t.Errorf("%s: %v, %v", name, pending, err)
		}
	}
}

// TestARefusedSpawnLeavesNoKey: a sandbox with secret variables has a key on disk, and a program
// may ask for any number of sandboxes that it does not get.
func TestARefusedSpawnLeavesNoKey(t *testing.T) {
	r := asking(t, &agboxv1.AgentSpec{MaySpawn: &agboxv1.AgentMaySpawn{Sandboxes: proto.Uint32(1)}})
	for i, want := range []string{"", "AGENT_LIMIT", "AGENT_LIMIT"} {
		id := fmt.Sprint("c", i)
		own := &agboxv1.CreateSpec{Image: "x", Envs: map[string]string{"API_KEY": "canary"}, Derived: &agboxv1.DerivedSpec{Parent: "x", Tree: "x"}}
		_, err := r.Ledger.SpawnAgent(t.Context(), ledger.NewAgent{ID: id, Parent: "x", SandboxID: "agent-" + id, Own: own, MaxSandboxes: 1, Spec: new(agboxv1.AgentSpec)})
		if got := fault.ReasonOf(err).String(); want != "" && got != want || want == "" && err != nil {
			t.Errorf("%s: %v", id, err)
		}
	}
	keys, err := os.ReadDir(filepath.Join(filepath.Dir(r.Install.Database()), "secret-keys"))
	if err != nil || len(keys) != 1 || keys[0].Name() != "agent-c0" {
		t.Errorf("the keys are %v, %v", keys, err)
	}
}
