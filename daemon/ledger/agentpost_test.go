package ledger

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/agents"
)

// report records messages of the first incarnation of an agent, together with its totals.
func report(t *testing.T, l *Ledger, id string, sent ...Sent) Agent {
	t.Helper()
	row := sent[len(sent)-1].Row
	a, err := l.RecordReports(t.Context(), id, Reports{Events: []*agboxv1.AgentEvent{progressed(row, 1)}, Sent: sent})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// family has a parent "p" with name "boss", and its child "a", whose first incarnation runs.
func family(t *testing.T, l *Ledger) {
	t.Helper()
	ready(t, l, "s")
	spawn(t, l, agentOf("p", "boss", "s"))
	child := agentOf("a", "", "s")
	child.Parent = "p"
	a := spawn(t, l, child)
	emitAgent(t, l, a.Record, begun(1))
}

func TestAMessageOfAnAgentIsDeliveredOnce(t *testing.T) {
	dir := t.TempDir()
	l, stop := open(t, dir)
	family(t, l)
	first := []Sent{{Row: 1, To: "boss", Text: "one"}, {Row: 3, To: "parent", Text: "two"}, {Row: 4, To: "init", Text: "three"}}
	report(t, l, "a", first...)
	stop()
	l, _ = open(t, dir)
	report(t, l, "a", append(first, Sent{Row: 5, To: "p", Text: "four"})...) // as a daemon that was killed after the commit
	if got := texts(t, l, "p"); !slices.Equal(got, []string{"1 a one", "2 a two", "3 a four"}) {
		t.Errorf("the parent has %q", got)
	}
	if got := texts(t, l, agents.Init); !slices.Equal(got, []string{"1 a three"}) {
		t.Errorf("the operator has %q", got)
	}
}

func TestMessagesAreDeliveredWithTheEndOfAnIncarnation(t *testing.T) {
	l := fresh(t)
	family(t, l)
	a, _ := l.Agent("a")
	reports := Reports{
		Events: []*agboxv1.AgentEvent{progressed(2, 1), neverStarted(1)},
		Sent:   []Sent{{Row: 1, To: "parent", Text: "last words"}, {Row: 2, To: "nobody", Text: "x"}},
	}
	killed, err := l.RequestKill(t.Context(), "a", &agboxv1.AgentKill{Mode: agboxv1.KillMode_KILL_MODE_NOW})
	if err != nil {
		t.Fatal(err)
	}
	for _, seen := range []Agent{a, killed, killed} { // only the second one is the record of that time
		if _, err := l.EmitReports(t.Context(), seen.Record, reports); err != nil {
			t.Fatal(err)
		}
	}
	if got := texts(t, l, "p"); !slices.Equal(got, []string{"1 a last words"}) {
		t.Errorf("the parent has %q", got)
	}
	if l.Unread("a") != 1 {
		t.Errorf("the sender has %d bounces; want 1", l.Unread("a"))
	}
}

func TestAMessageThatCannotBeDeliveredReturns(t *testing.T) {
	l := fresh(t)
	family(t, l)
	gone := spawn(t, l, agentOf("gone", "", "s"))
	emitAgent(t, l, gone.Record, agents.Reaped("test"))
	spawn(t, l, agentOf("full", "", "s"))
	fill(t, l, "full")
	report(t, l, "a", Sent{Row: 1, To: "nobody", Key: "k", Text: "x"}, Sent{Row: 2, To: "gone", Text: "x"}, Sent{Row: 3, To: "full", Text: "x"}, Sent{Row: 4, To: "p", Text: "good"})
	list, _, err := l.Messages(t.Context(), "a", 0, 1<<20)
	if err != nil || len(list) != 3 {
		t.Fatalf("the sender has %v, %v; want three bounces", list, err)
	}
	for i, want := range []string{
		`{"to":"nobody","key":"k","reason":"AGENT_NOT_FOUND"}`, `{"to":"gone","reason":"AGENT_WRONG_STATE"}`, `{"to":"full","reason":"INBOX_FULL"}`,
	} {
		if m := list[i]; m.GetKind() != agboxv1.MessageKind_MESSAGE_KIND_BOUNCE || m.GetBody() != want {
			t.Errorf("bounce %d is %s %s; want %s", i, m.GetKind(), m.GetBody(), want)
		}
	}
	if got := texts(t, l, "p"); !slices.Equal(got, []string{"1 a good"}) {
		t.Errorf("the parent has %q", got)
	}
}

func TestBouncesAreBoundedAndCounted(t *testing.T) {
	l := fresh(t)
	family(t, l)
	sent := make([]Sent, maxBounces+25)
	for i := range sent {
		sent[i] = Sent{Row: uint64(i + 1), To: fmt.Sprint("nobody-", i), Text: "x"}
	}
	report(t, l, "a", sent[:maxBounces+5]...)
	report(t, l, "a", sent[maxBounces+5:]...)
	list := texts(t, l, "a")
	last := list[len(list)-1]
	if len(list) != maxBounces || !strings.Contains(last, "nobody-124") || !strings.Contains(last, " 25 earlier ones") || l.Unread("a") != maxBounces {
		t.Errorf("there are %d bounces, %d unread, and the last is %q", len(list), l.Unread("a"), last)
	}
	if err := l.Acknowledge(t.Context(), "a", 1000); err != nil || l.Unread("a") != 0 {
		t.Errorf("%d are unread after the acknowledgement of all (%v)", l.Unread("a"), err)
	}
}

func TestAMessageToADeadParentGoesToTheNearestLivingAncestor(t *testing.T) {
	l := fresh(t)
	family(t, l)
	p, _ := l.Agent("p")
	emitAgent(t, l, p.Record, agents.Reaped("test"))
	report(t, l, "a", Sent{Row: 1, To: "parent", Text: "x"})
	if got := texts(t, l, agents.Init); len(got) == 0 || !strings.HasSuffix(got[len(got)-1], " a x") {
		t.Errorf("the operator has %q", got)
	}
}

func TestAnAgentCanSendItselfAMessage(t *testing.T) {
	l := fresh(t)
	family(t, l)
	a, _ := l.Agent("a")
	pausedBy(t, l, a, forIdle)
	if a := report(t, l, "a", Sent{Row: 1, To: "a", Text: "x"}); !a.Pause.Woken || l.Unread("a") != 1 {
		t.Errorf("woken %v, unread %d", a.Pause.Woken, l.Unread("a"))
	}
}
