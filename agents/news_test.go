package agents

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// TestAChangeTellsOneThing: each row is one commit about an agent.
func TestAChangeTellsOneThing(t *testing.T) {
	const orphan = agboxv1.PauseReason_PAUSE_REASON_ORPHANED
	strand := func(h *history) {
		h.add(Next(h.r, Seen{Sandbox: SandboxFailed, Ensured: maxEnsured, FailedSince: h.at.Add(-strandedAfter), FailedAt: h.at}, rules(), h.at).Event)
	}
	for _, row := range []struct {
		name   string
		before *history
		then   func(*history)
		want   string
	}{
		{"it works on", working(t), func(*history) {}, ""},
		{"it crashes", working(t), func(h *history) { h.crash("no") }, "CRASH"},
		{"it crashes for the last time", func() *history {
			h := working(t)
			for n := range 4 {
				h.crash(strings.Repeat("x", n+1)).begun()
			}
			return h
		}(), func(h *history) { h.crash("again") }, "DEAD_LETTER"},
		{"its budget is used up", working(t), func(h *history) {
			h.endWith(&agboxv1.IncarnationEnd{Kind: agboxv1.IncarnationEndKind_INCARNATION_END_KIND_BUDGET})
			h.add(Ending(h.r, rules()))
		}, "BUDGET"},
		{"it fails otherwise", working(t), func(h *history) { h.over(Failed) }, "CHILD"},
		{"it completes", working(t), func(h *history) { h.over(Completed) }, "CHILD"},
		{"it has nothing to do", working(t), func(h *history) { h.add(pauseOf(agboxv1.PauseReason_PAUSE_REASON_IDLE)) }, "CHILD"},
		{"it asks", working(t), func(h *history) { h.add(pauseOf(forApproval)) }, "APPROVAL"},
		{"it is to be asked about", working(t), func(h *history) { h.add(wishOf(forApproval)) }, "APPROVAL"},
		{"it asks while drained", working(t).ending(drained, agboxv1.PauseReason_PAUSE_REASON_REQUEST), func(h *history) { h.add(pauseOf(forApproval)) }, "APPROVAL"},
		{"it crashes while it waits for an answer", working(t).add(pauseOf(forApproval)), func(h *history) { h.crash("no") }, "CRASH"},
		{"a user drains it", working(t), func(h *history) { h.ending(drained, agboxv1.PauseReason_PAUSE_REASON_REQUEST) }, "DRAIN"},
		{"its sandbox stops", working(t), func(h *history) { h.ending(drained, agboxv1.PauseReason_PAUSE_REASON_DRAINED) }, "DRAIN"},
		{"nobody holds it", working(t), func(h *history) { h.add(suspended()) }, "DRAIN"},
		{"nobody holds it, and a user had drained it", working(t).ending(drained, agboxv1.PauseReason_PAUSE_REASON_REQUEST), func(h *history) { h.add(suspended()) }, ""},
		{"a start that cannot be written down after a drain", working(t).ending(drained, agboxv1.PauseReason_PAUSE_REASON_DRAINED).begun().goOn(), func(h *history) {
			h.endWith(&agboxv1.IncarnationEnd{Kind: agboxv1.IncarnationEndKind_INCARNATION_END_KIND_NEVER_STARTED, ErrorMessage: "No room."})
			h.add(Next(h.r, Seen{Sandbox: SandboxReady}, rules(), h.at).Event)
			if h.r.State != Paused || h.r.Pause.Message != "No room." {
				t.Errorf("after that it is %+v", h.r)
			}
		}, ""},
		{"SIGTERM from outside", working(t), func(h *history) {
			h.endWith(&agboxv1.IncarnationEnd{Kind: exited, ExitCode: 143})
			h.add(Ending(h.r, rules()))
		}, ""},
		{"its context is used up", working(t), func(h *history) {
			h.endWith(&agboxv1.IncarnationEnd{Kind: agboxv1.IncarnationEndKind_INCARNATION_END_KIND_CONTEXT})
			h.add(Ending(h.r, rules()))
		}, ""},
		{"it is lost", working(t), func(h *history) { h.ending(lost, 0) }, ""},
		{"it is lost, and its sandbox cannot be started", working(t).ending(lost, 0), strand, "DRAIN"},
		{"it is stranded again after somebody has revived it", working(t).ending(lost, 0).add(pauseOf(orphan)).add(wakeOf(0)), strand, "DRAIN"},
		{"a user drains it while it is stranded", working(t).ending(lost, 0).add(pauseOf(orphan)), func(h *history) { h.add(pauseOf(forRequest)) }, ""},
		{"it goes on", working(t).add(pauseOf(agboxv1.PauseReason_PAUSE_REASON_IDLE)), func(h *history) { h.add(wakeOf(0)) }, ""},
	} {
		before := row.before.r
		row.then(row.before)
		got := strings.TrimPrefix(News(before, row.before.r).String(), "MESSAGE_KIND_")
		if got = strings.TrimPrefix(got, "UNSPECIFIED"); got != row.want {
			t.Errorf("%s: it tells %q; want %q", row.name, got, row.want)
		}
		if News(row.before.r, row.before.r) != 0 {
			t.Errorf("%s: it is told twice", row.name)
		}
	}
}

// goOn goes on after a pause as an agent does that is ready at the start.
func (h *history) goOn() *history {
	h.t.Helper()
	atOnce := rules()
	atOnce.ReadyStart = true
	return h.add(entered(h.r, Seen{Exec: ExecRunning}, atOnce))
}

// ending ends the incarnation by a drain, and answers that.
func (h *history) ending(kind agboxv1.IncarnationEndKind, reason agboxv1.PauseReason) *history {
	h.t.Helper()
	h.endWith(&agboxv1.IncarnationEnd{Kind: kind, DrainedFor: reason})
	return h.add(Ending(h.r, rules()))
}

func TestTheParentIsToldOfTheEndWhateverIsChosen(t *testing.T) {
	none, crash := []agboxv1.AgentNews{agboxv1.AgentNews_AGENT_NEWS_NONE}, []agboxv1.AgentNews{agboxv1.AgentNews_AGENT_NEWS_CRASH}
	running, over := working(t).r, working(t).over(DeadLetter).r
	const (
		child  = agboxv1.MessageKind_MESSAGE_KIND_CHILD
		dead   = agboxv1.MessageKind_MESSAGE_KIND_DEAD_LETTER
		asks   = agboxv1.MessageKind_MESSAGE_KIND_APPROVAL
		crashs = agboxv1.MessageKind_MESSAGE_KIND_CRASH
		opened = agboxv1.MessageKind_MESSAGE_KIND_BREAKER
	)
	for _, row := range []struct {
		r             Record
		kind          agboxv1.MessageKind
		tells         *agboxv1.AgentTells
		parent, asOne agboxv1.MessageKind // to a parent, to init as the parent
		init          agboxv1.MessageKind // to init besides
	}{
		{running, crashs, nil, crashs, crashs, crashs},
		{running, crashs, &agboxv1.AgentTells{Parent: none}, 0, crashs, crashs},
		{running, crashs, &agboxv1.AgentTells{Init: none}, crashs, 0, 0},
		{running, asks, &agboxv1.AgentTells{Parent: crash, Init: crash}, 0, 0, 0},
		{over, dead, nil, dead, dead, dead},
		{over, dead, &agboxv1.AgentTells{Parent: none, Init: none}, child, child, 0},
		{over, child, &agboxv1.AgentTells{Parent: none, Init: none}, child, child, 0},
		{running, child, &agboxv1.AgentTells{Parent: none}, child, child, 0},
		{over, opened, nil, opened, opened, opened},
		{over, opened, &agboxv1.AgentTells{Parent: none, Init: none}, 0, 0, 0},
	} {
		parent, asOne, init := row.r.ToParent(row.kind, row.tells, false), row.r.ToParent(row.kind, row.tells, true), row.r.ToInit(row.kind, row.tells)
		if parent != row.parent || asOne != row.asOne || init != row.init {
			t.Errorf("%v, %v: the parent gets %v, init as the parent %v, init besides %v", row.kind, row.tells, parent, asOne, init)
		}
	}
}

func TestTheTableOfWakesInTheDocumentIsTrue(t *testing.T) {
	raw, err := os.ReadFile("../docs/agents.md")
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	b.WriteString("| paused for | a message wakes it | with `wake_on: message` |\n|---|---|---|\n")
	for n := 1; n < len(agboxv1.PauseReason_name); n++ {
		reason := agboxv1.PauseReason(n)
		fmt.Fprintf(&b, "| %s |", strings.TrimPrefix(reason.String(), "PAUSE_REASON_"))
		for _, on := range []agboxv1.AgentWakeOn{agboxv1.AgentWakeOn_AGENT_WAKE_ON_IDLE, agboxv1.AgentWakeOn_AGENT_WAKE_ON_MESSAGE} {
			fmt.Fprintf(&b, " %s |", map[bool]string{true: "yes", false: "no"}[WakesOnMessage(reason, on)])
		}
		b.WriteString("\n")
		if WakesOnMessage(reason, 0) != WakesOnMessage(reason, agboxv1.AgentWakeOn_AGENT_WAKE_ON_IDLE) {
			t.Errorf("%v: without a wish it is not as with idle", reason)
		}
	}
	if !strings.Contains(string(raw), b.String()) {
		t.Errorf("docs/agents.md does not have this table:\n%s", b.String())
	}
	for kind, news := range newsKinds {
		row := fmt.Sprintf("| %s | ", strings.TrimPrefix(kind.String(), "MESSAGE_KIND_"))
		chosen := strings.ToLower(strings.TrimPrefix(news.String(), "AGENT_NEWS_"))
		if !strings.Contains(string(raw), row) || !strings.Contains(string(raw), fmt.Sprintf("| `%s` | `%s` |", chosen, chosen)) {
			t.Errorf("docs/agents.md has no row for the message %s, chosen as %s", kind, chosen)
		}
	}
}

func TestAListThatTellsNothingAndSomethingIsRefused(t *testing.T) {
	none, crash := agboxv1.AgentNews_AGENT_NEWS_NONE, agboxv1.AgentNews_AGENT_NEWS_CRASH
	for _, row := range []struct {
		tells *agboxv1.AgentTells
		want  int
	}{
		{nil, 0},
		{&agboxv1.AgentTells{Parent: []agboxv1.AgentNews{none}, Init: []agboxv1.AgentNews{crash}}, 0},
		{&agboxv1.AgentTells{Parent: []agboxv1.AgentNews{none, crash}}, 1},
		{&agboxv1.AgentTells{Parent: []agboxv1.AgentNews{crash, none}, Init: []agboxv1.AgentNews{none, crash}}, 2},
	} {
		got := 0
		Check(&agboxv1.AgentSpec{Tells: row.tells}, func([]any, string, ...any) { got++ })
		if got != row.want {
			t.Errorf("%v has %d problems; want %d", row.tells, got, row.want)
		}
	}
}

// TestAMessageHoldsNobodyForItsParent: a child that lives because of its parent alone ends with
// the kill of that, whatever is in its inbox.
func TestAMessageHoldsNobodyForItsParent(t *testing.T) {
	h := working(t)
	h.r.Held, h.r.Holders = true, []Holder{{ID: AgentHolder("p"), Since: t0}, {ID: InboxHolder, Since: t0.Add(time.Second)}}
	if !h.r.HeldOnlyBy("p") {
		t.Errorf("its holders are %v", h.r.Holders)
	}
	if h.r.Holders = h.r.Holders[1:]; h.r.HeldOnlyBy("p") || h.r.Unheld() {
		t.Errorf("its holders are %v", h.r.Holders)
	}
}

func TestASignalIsDueWhileAnIncarnationRuns(t *testing.T) {
	r := spawned(t).begun().r
	seen := Seen{Sandbox: SandboxReady, Exec: ExecRunning}
	quiet := rules()
	quiet.ReadyStart = false
	begun := r.Incarnation.BegunAt
	for _, row := range []struct {
		last, now time.Time
		want      string
	}{
		{time.Time{}, begun.Add(time.Hour), "rest"},
		{begun.Add(-time.Hour), begun.Add(SignalWait), "signal"},
		{begun.Add(time.Second), begun.Add(SignalWait + time.Second), "signal"},
	} {
		seen.Signal = row.last
		if got := say(Next(r, seen, quiet, row.now)); got != row.want {
			t.Errorf("tried at %v: %s; want %s", row.last.Sub(begun), got, row.want)
		}
	}
	seen.Signal = begun.Add(time.Second)
	if step := Next(r, seen, quiet, begun); step.Do != Rest || !step.Wake.Equal(begun.Add(SignalWait+time.Second)) {
		t.Errorf("before it is due: %s, %v", say(step), step.Wake)
	}
	seen.Exec, seen.Sandbox, r.Incarnation = ExecUnknown, SandboxMaking, nil
	if step := Next(r, seen, quiet, begun.Add(time.Hour)); step.Do == Signal {
		t.Error("a signal is tried although nothing runs")
	}
}
