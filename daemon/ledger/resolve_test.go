package ledger

import (
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/daemon/machine"
)

const (
	ofSandbox = agboxv1.RefKind_REF_KIND_SANDBOX
	ofExec    = agboxv1.RefKind_REF_KIND_EXEC
	ofAgent   = agboxv1.RefKind_REF_KIND_AGENT
)

// means fails the test unless a text means exactly these, as "ID MATCH".
func means(t *testing.T, l *Ledger, kind agboxv1.RefKind, text string, want ...string) {
	t.Helper()
	list, err := l.Resolve(t.Context(), kind, text)
	if err != nil {
		t.Errorf("%q: %v", text, err)
	}
	var got []string
	for _, r := range list {
		got = append(got, r.GetId()+" "+strings.TrimPrefix(r.GetMatch().String(), "REF_MATCH_"))
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q means %q, want %q", text, got, want)
	}
}

func TestATextMeansAnIDThenANameThenThePrefixOfIDs(t *testing.T) {
	l := fresh(t)
	create(t, l, "abc1", "first")
	create(t, l, "abd", "other")
	create(t, l, "abd2", "")
	means(t, l, ofSandbox, "abc1", "abc1 ID")
	means(t, l, ofSandbox, "abd", "abd ID")
	means(t, l, ofSandbox, "other", "abd NAME")
	means(t, l, ofSandbox, "abc", "abc1 PREFIX")
	means(t, l, ofSandbox, "ab", "abc1 PREFIX", "abd PREFIX", "abd2 PREFIX")
	_, err := l.Resolve(t.Context(), ofSandbox, "zz")
	wantReason(t, err, agboxv1.ErrorReason_SANDBOX_NOT_FOUND)
	gone(t, l, "abd")
	rename(t, l, "abc1", "abd") // the id of one that is deleted
	means(t, l, ofSandbox, "abd", "abd ID", "abc1 NAME")
	rename(t, l, "abc1", "third")
	means(t, l, ofSandbox, "abd", "abd ID") // never abd2
	if err := l.Drop(t.Context(), "abd"); err != nil {
		t.Fatal(err)
	}
	_, err = l.Resolve(t.Context(), ofSandbox, "abd")
	wantReason(t, err, agboxv1.ErrorReason_SANDBOX_NOT_FOUND)
}

func TestANamedSandboxIsOneWithThatIDOrThatName(t *testing.T) {
	l := fresh(t)
	create(t, l, "abc1", "first")
	create(t, l, "abd", "other")
	named := func(text, want string) {
		t.Helper()
		if got, err := l.SandboxNamed(t.Context(), text); err != nil || got != want {
			t.Errorf("%q is sandbox %q (%v), want %q", text, got, err, want)
		}
	}
	refused := func(text string, reason agboxv1.ErrorReason) {
		t.Helper()
		_, err := l.SandboxNamed(t.Context(), text)
		wantReason(t, err, reason)
	}
	named("abc1", "abc1")
	named("first", "abc1")
	refused("abc", agboxv1.ErrorReason_SANDBOX_NOT_FOUND) // the beginning of one id
	refused("none", agboxv1.ErrorReason_SANDBOX_NOT_FOUND)
	gone(t, l, "abd")
	named("abd", "abd")
	refused("other", agboxv1.ErrorReason_SANDBOX_NOT_FOUND)
	rename(t, l, "abc1", "abd")
	refused("abd", agboxv1.ErrorReason_SANDBOX_AMBIGUOUS)
}

func TestAnIDIsTheWholeID(t *testing.T) {
	l := fresh(t)
	ready(t, l, "job-10")
	rename(t, l, "job-10", "job-2")
	spawn(t, l, agentOf("fixer-1", "fixer", "job-10"))
	req := request("run-10")
	req.SandboxId, req.Name = "job-10", "build"
	if _, err := l.AcceptExec(t.Context(), req, "boot"); err != nil {
		t.Fatal(err)
	}
	create(t, l, "job-1", "")
	gone(t, l, "job-1")
	if sb, err := l.FindSandbox(t.Context(), "job-1"); err != nil || !sb.Over() || sb.ID != "job-1" {
		t.Errorf("the deleted sandbox job-1 is %q, %v", sb.ID, err)
	}
	for _, text := range []string{"job-2", "job-", "job", "nothing"} {
		_, err := l.FindSandbox(t.Context(), text)
		wantReason(t, err, agboxv1.ErrorReason_SANDBOX_NOT_FOUND)
	}
	for _, text := range []string{"run-1", "build", "job-10/build", "job-10/run-10", "job-1/run-10"} {
		_, err := l.FindExec(t.Context(), text)
		wantReason(t, err, agboxv1.ErrorReason_EXEC_NOT_FOUND)
	}
	for _, text := range []string{"fixer", "fixer-"} {
		_, err := l.FindAgent(text)
		wantReason(t, err, agboxv1.ErrorReason_AGENT_NOT_FOUND)
	}
}

func TestWhatATextMeansAmongExecs(t *testing.T) {
	l := fresh(t)
	ready(t, l, "a")
	ready(t, l, "b")
	accept := func(sandbox, id, name string) {
		req := request(id)
		req.SandboxId, req.Name = sandbox, name
		if _, err := l.AcceptExec(t.Context(), req, "boot"); err != nil {
			t.Fatal(err)
		}
	}
	end := func(sandbox, id string) {
		if err := l.EndExec(t.Context(), sandbox, &agboxv1.ExecEventDetails{ExecId: id, ExecState: agboxv1.ExecState_EXEC_STATE_FINISHED}); err != nil {
			t.Fatal(err)
		}
	}
	accept("a", "xa1", "build")
	accept("a", "xa10", "")
	accept("b", "xb", "build")
	means(t, l, ofExec, "xa1", "xa1 ID")
	means(t, l, ofExec, "build", "xa1 NAME", "xb NAME")
	means(t, l, ofExec, "a/build", "xa1 NAME")
	means(t, l, ofExec, "xb", "xb ID")
	end("a", "xa1")
	accept("b", "y", "xa1")
	means(t, l, ofExec, "xa1", "xa1 ID", "y NAME") // never xa10
	means(t, l, ofExec, "b/xa1", "y NAME")
	means(t, l, ofExec, "a/xa1", "xa1 ID")
	means(t, l, ofExec, "xa", "xa1 PREFIX", "xa10 PREFIX")
	accept("b", "w", "")
	accept("b", "w2", "")
	end("b", "w")
	if err := l.Forget(t.Context(), "b", []machine.TrimPart{{ExecID: "w"}}); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"b/xa10", "z", "w", "b/w"} { // never w2
		_, err := l.Resolve(t.Context(), ofExec, text)
		wantReason(t, err, agboxv1.ErrorReason_EXEC_NOT_FOUND)
	}
}

func TestWhatIsFoundByThePrefixOfASandboxIsFoundByAPrefix(t *testing.T) {
	l := fresh(t)
	ready(t, l, "box-1")
	req := request("x")
	req.SandboxId, req.Name = "box-1", "build"
	if _, err := l.AcceptExec(t.Context(), req, "boot"); err != nil {
		t.Fatal(err)
	}
	means(t, l, ofExec, "box/build", "x PREFIX")
	means(t, l, ofExec, "box/x", "x PREFIX")
	means(t, l, ofExec, "box-1/build", "x NAME")
}

func TestWhatATextMeansAmongAgents(t *testing.T) {
	l := fresh(t)
	ready(t, l, "s")
	means(t, l, ofAgent, agents.Init, "init ID")
	spawn(t, l, agentOf("w1", "worker", "s"))
	means(t, l, ofAgent, "worker", "w1 NAME")
	end(t, l, "w1", agents.Aborted)
	means(t, l, ofAgent, "worker", "w1 NAME")
	spawn(t, l, agentOf("w10", "worker", "s"))
	means(t, l, ofAgent, "worker", "w10 NAME") // it has not ended
	end(t, l, "w10", agents.Aborted)
	means(t, l, ofAgent, "worker", "w10 NEWEST")
	spawn(t, l, agentOf("other", "w1", "s"))
	means(t, l, ofAgent, "w1", "w1 ID", "other NAME")
	means(t, l, ofAgent, "w", "w1 PREFIX", "w10 PREFIX")
	end(t, l, "other", agents.Aborted)
	if _, err := l.DeleteAgent(t.Context(), "other"); err != nil {
		t.Fatal(err)
	}
	if _, err := l.DeleteAgent(t.Context(), "w1"); err != nil {
		t.Fatal(err)
	}
	_, err := l.Resolve(t.Context(), ofAgent, "w1") // never w10
	wantReason(t, err, agboxv1.ErrorReason_AGENT_NOT_FOUND)
	means(t, l, ofAgent, "worker", "w10 NAME")
}

func TestCandidatesAreBounded(t *testing.T) {
	l := fresh(t)
	for i := range MaxReferents + 5 {
		create(t, l, "box-"+strings.Repeat("x", i), "")
	}
	list, err := l.Resolve(t.Context(), ofSandbox, "box")
	if err != nil || len(list) != MaxReferents+1 {
		t.Errorf("%d candidates, %v", len(list), err)
	}
	if !proto.Equal(list[0], &agboxv1.Referent{Id: "box-", Match: agboxv1.RefMatch_REF_MATCH_PREFIX}) {
		t.Errorf("the first is %v", list[0])
	}
}
