package ledger

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/agents"
)

// rounds does what rounds of agents do until all rest. What is to end ends at once. The sandboxes
// of homeless agents were deleted.
func rounds(t *testing.T, l *Ledger, homeless []string, ids ...string) {
	t.Helper()
	for range 20 {
		rest := true
		for _, id := range ids {
			a := now(t, l, id)
			seen := agents.Seen{Sandbox: agents.SandboxReady, Kin: l.Kin(a), PauseMark: a.PauseMark()}
			if slices.Contains(homeless, id) {
				seen.Sandbox = agents.SandboxMissing
			}
			if a.Incarnation != nil {
				seen.Exec = agents.ExecRunning
			}
			step := agents.Next(a.Record, seen, agents.RulesOf(a.Spec), time.Unix(0, 0))
			rest = rest && step.Do == agents.Rest
			switch step.Do {
			case agents.Emit:
				emitAgent(t, l, a.Record, step.Event)
			case agents.Drain, agents.Kill:
				endIncarnation(t, l, a, &agboxv1.IncarnationEnd{Kind: step.End, DrainedFor: step.Pause})
			}
		}
		if rest {
			return
		}
	}
	t.Fatal("the agents do not come to rest")
}

// endings are what can become of a parent, as the document says it, in its order.
var endings = []struct {
	name string
	do   func(*testing.T, *Ledger, string)
	// homeless are those whose sandbox was deleted.
	homeless []string
}{
	{"COMPLETED", endsAs(agents.Completed), nil},
	{"ABORTED, as it has reported", endsAs(agents.Aborted), nil},
	{"FAILED, as it has reported", endsAs(agents.Failed), nil},
	{"FAILED, because its budget is used up", func(t *testing.T, l *Ledger, id string) {
		endIncarnation(t, l, now(t, l, id), &agboxv1.IncarnationEnd{Kind: agboxv1.IncarnationEndKind_INCARNATION_END_KIND_BUDGET})
	}, nil},
	{"DEAD_LETTER", endsAs(agents.DeadLetter), nil},
	{"`agbox agent kill`", killedWith(agboxv1.KillCascade_KILL_CASCADE_UNSPECIFIED), nil},
	{"`agbox agent kill --tree`, or `--cascade`", killedWith(agboxv1.KillCascade_KILL_CASCADE_TREE), nil},
	{"`agbox agent kill --no-cascade`", killedWith(agboxv1.KillCascade_KILL_CASCADE_NONE), nil},
	{"FAILED, because the sandbox was deleted in which they run, too", nothing, []string{"g", "p", "alone", "shared", "detached"}},
	{"FAILED, because its sandbox was deleted, and they have others", nothing, []string{"p"}},
	{"RETRYING after a crash", func(t *testing.T, l *Ledger, id string) {
		endIncarnation(t, l, now(t, l, id), &agboxv1.IncarnationEnd{Kind: agboxv1.IncarnationEndKind_INCARNATION_END_KIND_EXITED, ExitCode: 1})
	}, nil},
	{"PAUSED: drained, IDLE, waiting or SUSPENDED", func(t *testing.T, l *Ledger, id string) {
		for _, reason := range []agboxv1.PauseReason{forIdle, forUnheld, forApproval, agboxv1.PauseReason_PAUSE_REASON_CONFLICT} {
			pausedBy(t, l, now(t, l, id), reason)
		}
		if _, err := l.RequestDrain(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}, nil},
}

func nothing(*testing.T, *Ledger, string) {}

func endsAs(state agboxv1.AgentState) func(*testing.T, *Ledger, string) {
	return func(t *testing.T, l *Ledger, id string) {
		t.Helper()
		endIncarnation(t, l, now(t, l, id), &agboxv1.IncarnationEnd{Kind: agboxv1.IncarnationEndKind_INCARNATION_END_KIND_EXITED, ExitCode: 1})
		end(t, l, id, state)
	}
}

func killedWith(cascade agboxv1.KillCascade) func(*testing.T, *Ledger, string) {
	return func(t *testing.T, l *Ledger, id string) {
		t.Helper()
		if _, err := l.RequestKill(t.Context(), id, &agboxv1.AgentKill{Mode: agboxv1.KillMode_KILL_MODE_NOW, Cascade: cascade}); err != nil {
			t.Fatal(err)
		}
	}
}

// TestWhatBecomesOfChildrenIsAsTheDocumentSays computes the table of the document.
func TestWhatBecomesOfChildrenIsAsTheDocumentSays(t *testing.T) {
	raw, err := os.ReadFile("../../docs/agents.md")
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	b.WriteString("| the parent is or was | a child that only it holds | one that others hold, too | a detached child |\n|---|---|---|---|\n")
	for _, row := range endings {
		fmt.Fprintf(&b, "| %s |", row.name)
		l := fresh(t)
		ready(t, l, "s")
		spawn(t, l, agentOf("g", "", "s"))
		spawn(t, l, child("p", "g"))
		children := []string{"alone", "shared", "detached"}
		for _, id := range children {
			n := child(id, "p")
			if id != "detached" {
				n.Spec.Lifetime = agboxv1.AgentLifetime_AGENT_LIFETIME_HELD
			}
			if id == "shared" {
				n.Holder, n.Linger = "client:c", time.Hour
			}
			spawn(t, l, n)
		}
		all := append([]string{"g", "p"}, children...)
		rounds(t, l, nil, all...)
		row.do(t, l, "p")
		for _, id := range row.homeless {
			endIncarnation(t, l, now(t, l, id), &agboxv1.IncarnationEnd{Kind: agboxv1.IncarnationEndKind_INCARNATION_END_KIND_LOST})
		}
		rounds(t, l, row.homeless, all...)
		for _, id := range children {
			fmt.Fprintf(&b, " %s |", became(now(t, l, id)))
		}
		b.WriteString("\n")
	}
	if !strings.Contains(string(raw), b.String()) {
		t.Errorf("docs/agents.md does not have this table:\n%s", b.String())
	}
}

// became says what has become of a child of p, whose parent is g.
func became(c Agent) string {
	switch heir := agents.AgentHolder("g"); {
	case c.State == agents.Aborted && c.Kill != nil:
		return "killed"
	case c.State == agents.Failed:
		return "FAILED, too"
	case c.Over():
		return c.Word()
	case c.Parent == "p" && c.Incarnation != nil:
		return "goes on"
	case c.Parent == "g" && c.Incarnation != nil && c.HeldBy(heir) && len(c.Holders) > 1:
		return "adopted, and held by the others and the agent that adopts it"
	case c.Parent == "g" && c.Incarnation != nil && c.HeldBy(heir):
		return "adopted, and held by the agent that adopts it"
	case c.Parent == "g" && c.Incarnation != nil && c.Held:
		return "adopted, and held by the others"
	case c.Parent == "g" && c.Incarnation != nil:
		return "adopted"
	}
	return "is " + c.Word()
}
