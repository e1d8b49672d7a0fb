package ledger

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/store"
)

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
			if _, err := l.withinAgent(tx, id, func(at *agentTxn) error { return at.openStream(id, "news") }); err != nil {
				return err
			}
		}
		_, err := l.withinAgent(tx, "a", func(at *agentTxn) error { return at.append("a", agents.StreamClosed("news")) })
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
