package ledger

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/agbox/agbox/agents"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/store"
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

func stream(t *testing.T, f func() (Agent, error)) Agent {
	t.Helper()
	a, err := f()
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestAMessageOnAStreamGoesToAllWhoHaveItOpen(t *testing.T) {
	dir := t.TempDir()
	l, stop := open(t, dir)
	family(t, l)
	for _, id := range []string{"b", "c", "d"} {
		spawn(t, l, agentOf(id, "", "s"))
	}
	for _, id := range []string{"a", "p", "b", "c", "c"} {
		stream(t, func() (Agent, error) { return l.OpenStream(t.Context(), id, "news") })
	}
	stream(t, func() (Agent, error) { return l.OpenStream(t.Context(), "d", "other") })
	pausedBy(t, l, stream(t, func() (Agent, error) { return l.OpenStream(t.Context(), "c", "other") }), forIdle)
	for range 2 {
		if b := stream(t, func() (Agent, error) { return l.CloseStream(t.Context(), "b", "news") }); len(b.Streams) != 0 {
			t.Errorf("after the close b has %v open", b.Streams)
		}
	}
	stop()
	l, _ = open(t, dir)
	fill(t, l, "p")
	report(t, l, "a", Sent{Row: 1, Stream: "news", Key: "k", Text: "one"}, Sent{Row: 2, To: "c", Key: "k", Text: "two"},
		Sent{Row: 3, Stream: "news", Key: "k", Text: "one"}, Sent{Row: 4, Stream: "empty", Text: "x"})
	for id, want := range map[string][]string{"b": nil, "d": nil, "c": {"1 a one", "2 a two"}} {
		if got := texts(t, l, id); !slices.Equal(got, want) {
			t.Errorf("%s has %q; want %q", id, got, want)
		}
	}
	if c, _ := l.Agent("c"); !c.Pause.Woken {
		t.Error("the message woke nobody")
	}
	list, _, err := l.Messages(t.Context(), "a", 0, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	var bodies []string
	for _, m := range list {
		bodies = append(bodies, m.GetBody())
	}
	full := `{"to":"p","stream":"news","key":"k","reason":"INBOX_FULL"}`
	if want := []string{full, full, `{"stream":"empty","reason":"AGENT_NOT_FOUND"}`}; !slices.Equal(bodies, want) {
		t.Errorf("the sender has %q; want %q", bodies, want)
	}
	c, _ := l.Agent("c")
	emitAgent(t, l, c.Record, agents.Reaped("test"))
	report(t, l, "a", Sent{Row: 5, Stream: "other", Text: "three"})
	if got := texts(t, l, "d"); !slices.Equal(got, []string{"1 a three"}) {
		t.Errorf("d has %q", got)
	}
}

func TestASubscriptionCountsWithinItsBatch(t *testing.T) {
	l := fresh(t)
	family(t, l)
	err := l.store.Update(t.Context(), func(tx *store.Tx) error {
		for _, id := range []string{"p", "a"} {
			if _, err := l.withinAgent(tx, id, func(at *agentTxn) error { return at.openStream("news") }); err != nil {
				return err
			}
		}
		_, err := l.withinAgent(tx, "a", func(at *agentTxn) error { return at.append(agents.StreamClosed("news")) })
		if got := l.subscribers(tx, "news"); !slices.Equal(got, []string{"p"}) {
			t.Errorf("before the commit the subscribers are %v", got)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestAnAgentHasABoundedNumberOfStreams(t *testing.T) {
	l := fresh(t)
	family(t, l)
	for i := range agents.MaxStreams {
		stream(t, func() (Agent, error) { return l.OpenStream(t.Context(), "a", fmt.Sprint("s", i)) })
	}
	_, err := l.OpenStream(t.Context(), "a", "one-too-many")
	wantReason(t, err, agboxv1.ErrorReason_AGENT_LIMIT)
}

// TestAMessageOnAStreamStaysInTheStackOfItsSender: neither the parent of the stack nor its other
// child get what is said inside, and the other way round.
func TestAMessageOnAStreamStaysInTheStackOfItsSender(t *testing.T) {
	l := fresh(t)
	family(t, l)
	root := child("r", "p")
	root.Spec.Stack = &agboxv1.AgentStack{Name: "deep"}
	r := spawn(t, l, root)
	emitAgent(t, l, r.Record, begun(1))
	spawn(t, l, child("m", "r"))
	for _, id := range []string{"p", "a", "r", "m"} {
		stream(t, func() (Agent, error) { return l.OpenStream(t.Context(), id, "news") })
	}
	report(t, l, "a", Sent{Row: 1, Stream: "news", Text: "outside"})
	report(t, l, "r", Sent{Row: 1, Stream: "news", Text: "inside"})
	for id, want := range map[string][]string{"p": {"1 a outside"}, "a": nil, "r": nil, "m": {"1 r inside"}} {
		if got := texts(t, l, id); !slices.Equal(got, want) {
			t.Errorf("%s has %q; want %q", id, got, want)
		}
	}
}

// TestAMessageOfAUserOnAStream: it goes to all that have the stream open in the named stack,
// once for each key, and one that refuses it does not keep it from the others.
func TestAMessageOfAUserOnAStream(t *testing.T) {
	l := fresh(t)
	family(t, l)
	inner := agentOf("r", "", "s")
	inner.Spec.Stack = &agboxv1.AgentStack{Name: "deep"}
	spawn(t, l, inner)
	for _, id := range []string{"p", "a", "r"} {
		stream(t, func() (Agent, error) { return l.OpenStream(t.Context(), id, "news") })
	}
	pausedBy(t, l, stream(t, func() (Agent, error) { return l.OpenStream(t.Context(), "a", "more") }), forIdle)
	on := func(stack, key, text string) (got []string) {
		t.Helper()
		list, err := l.SendOnStream(t.Context(), StreamText{From: "init", Stream: "news", Stack: stack, Key: key, Text: text})
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range list {
			switch {
			case d.Refused != nil:
				got = append(got, d.To.ID+" "+d.Refused.Reason.String())
			case d.Seq != 0:
				got = append(got, d.To.ID)
			}
		}
		return got
	}
	for range 2 {
		if got := on("", "k", "one"); !slices.Equal(got, []string{"a", "p"}) {
			t.Errorf("outside of stacks it went to %q", got)
		}
	}
	if a, _ := l.Agent("a"); !a.Pause.Woken {
		t.Error("the message woke nobody")
	}
	if got := on("deep", "k", "two"); !slices.Equal(got, []string{"r"}) {
		t.Errorf("in the stack it went to %q", got)
	}
	for range maxInbox - 1 { // the first one is there
		send(t, l, "p", "", "x")
	}
	if got := on("", "", "three"); !slices.Equal(got, []string{"a", "p INBOX_FULL"}) {
		t.Errorf("beside a full inbox it went to %q", got)
	}
	for text, want := range map[string]string{"init one": "a", "init two": "r", "init three": "a"} {
		for _, id := range []string{"a", "r"} {
			n := 0
			for _, m := range texts(t, l, id) {
				if strings.HasSuffix(m, text) {
					n++
				}
			}
			if (n == 1) != (id == want) || n > 1 {
				t.Errorf("%s has %q %d times", id, text, n)
			}
		}
	}
	list, _, err := l.Messages(t.Context(), "r", 0, 1<<20)
	if err != nil || list[0].GetStream() != "news" || list[0].GetKey() != "k" {
		t.Errorf("the message is %v, %v", list, err)
	}
}

func TestAMessageOfAUserOnAStreamThatNobodyHasOpen(t *testing.T) {
	l := fresh(t)
	family(t, l)
	inner := agentOf("r", "", "s")
	inner.Spec.Stack = &agboxv1.AgentStack{Name: "deep"}
	spawn(t, l, inner)
	stream(t, func() (Agent, error) { return l.OpenStream(t.Context(), "r", "news") })
	for s, want := range map[StreamText]string{
		{Stream: "empty"}:                `No agent has the stream "empty" open. A program opens it with "agbox-agent open empty".`,
		{Stream: "news"}:                 `No agent outside of stacks has the stream "news" open. Agents in these stacks have: deep. Name a stack to send it there.`,
		{Stream: "news", Stack: "other"}: `No agent in a stack "other" has the stream "news" open.`,
	} {
		s.From, s.Text = "init", "x"
		_, err := l.SendOnStream(t.Context(), s)
		wantReason(t, err, agboxv1.ErrorReason_AGENT_NOT_FOUND)
		if err.Error() != want {
			t.Errorf("%v is refused with %q; want %q", s, err, want)
		}
	}
}
