package agentsocket

import (
	"testing"
	"time"

	"github.com/agbox/agbox/agents/journal"
)

func TestEveryAnswerTellsOfTheDrain(t *testing.T) {
	s, dir := server(t)
	a, other := begin(t, s, "e"), begin(t, s, "f")
	p, q := dial(t, a), dial(t, other)
	for _, body := range []string{`"op":"drained"`, `"op":"state","state":"HYDRATING"`} {
		if r := p.ask(`{%s,"token":%q}`, body, a.token); !r.OK || r.Drain || r.DeadlineMs != nil {
			t.Errorf("before: %s gets %+v", body, r)
		}
	}
	told := ""
	begun, write := s.Drain("e", func(lifecycle string) time.Time { told = lifecycle; return time.Now().Add(time.Hour) })
	if !begun || told != journal.Hydrating {
		t.Fatalf("the drain has begun: %v, in %s", begun, told)
	}
	write()
	if again, _ := s.Drain("e", func(string) time.Time { t.Error("it is planned again"); return time.Time{} }); again {
		t.Error("a second drain begins")
	}
	for _, row := range []struct {
		body string
		ok   bool
	}{
		{`"op":"drained"`, true}, {`"op":"state","state":"READY"`, false}, {`"op":"state","state":"DRAINING"`, true},
		{`"op":"usage","input_tokens":1`, true}, {`"op":"state","state":"TERMINATED"`, true},
		{`"op":"state","state":"DRAINING"`, false},
	} {
		r := p.ask(`{%s,"token":%q}`, row.body, a.token)
		if r.OK != row.ok || !r.Drain || r.DeadlineMs == nil || *r.DeadlineMs < 3_000_000 || *r.DeadlineMs > 3_600_000 {
			t.Errorf("%s gets %+v", row.body, r)
		}
	}
	if r := q.ask(`{"op":"drained","token":%q}`, other.token); !r.OK || r.Drain {
		t.Errorf("another incarnation is told %+v", r)
	}
	s.End("e")
	want := journal.Start()
	want.Rows, want.Lifecycle, want.Used, want.Drained = 5, journal.Terminated, journal.Used{InputTokens: 1}, true
	if got := summary(t, dir, "e"); got != want {
		t.Errorf("the journal says %+v; want %+v", got, want)
	}
	if begun, _ := s.Drain("e", nil); begun || s.Running("e") {
		t.Error("one that has ended is drained")
	}
}

func TestADeadlineThatIsOverIsZero(t *testing.T) {
	s, _ := server(t)
	a := begin(t, s, "e")
	if begun, _ := s.Drain("e", func(string) time.Time { return time.Now().Add(-time.Hour) }); !begun {
		t.Fatal("the drain has not begun")
	}
	if r := dial(t, a).ask(`{"op":"drained","token":%q}`, a.token); !r.Drain || r.DeadlineMs == nil || *r.DeadlineMs != 0 {
		t.Errorf("it is told %+v", r)
	}
}

// TestADrainEndsRequestsThatWaitForOthers has a program that waits when it is drained.
func TestADrainEndsRequestsThatWaitForOthers(t *testing.T) {
	for _, op := range []string{"acquire", "pause", "recv", "wait"} {
		s, _ := server(t)
		a := begin(t, s, op)
		p, d := dial(t, a), follow(t, s)
		p.send(`{"op":%q,"manifest":[],"token":%q}`, op, a.token)
		d.told(1)
		if begun, _ := s.Drain(op, func(string) time.Time { return time.Now().Add(time.Hour) }); !begun {
			t.Fatal("the drain has not begun")
		}
		if r := p.answer(); r.OK || r.Error.Code != codeDraining {
			t.Errorf("%s of a drained program gets %+v", op, r)
		}
	}
}
