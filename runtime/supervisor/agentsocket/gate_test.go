package agentsocket

import (
	"bufio"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agbox/agbox/agents/gate"
	"github.com/agbox/agbox/agents/journal"
	"github.com/agbox/agbox/logs"
)

func TestTheContextIsFencedInItsTurns(t *testing.T) {
	s, dir := server(t)
	a := begin(t, s, "e")
	p := dial(t, a)
	for i, row := range []struct{ body, code, word, says string }{
		{`"op":"context"`, codeBad, "", "context_pct"},
		{`"op":"context","context_pct":-1`, codeBad, "", "percent"},
		{`"op":"turn","context_pct":1001`, codeBad, "", "percent"},
		{`"op":"gate","kind":"car"`, codeReport, "", "tool, llm"},
		{`"op":"gate","tool":"Bash"`, "", "", ""},
		{`"op":"turn","context_pct":69.9`, "", gate.Healthy, ""},
		{`"op":"context","context_pct":70`, "", gate.Aging, ""}, // not told in the middle of a turn
		{`"op":"gate","tool":"Bash","context_pct":71`, "", "", ""},
		{`"op":"turn","context_pct":10`, "", gate.Aging, "The context is 71 % full: prepare the handoff"},
		{`"op":"gate","tool":"Bash","context_pct":92.5`, codeFenced, "", "only 1 final call of a tool is left"},
		{`"op":"gate","tool":"Bash"`, codeFenced, "", "92 % full"},
		{`"op":"gate","kind":"llm"`, "", "", ""},
		{`"op":"turn"`, "", gate.Dying, "the next turn is the last, and 1 final call of a tool is left"},
		{`"op":"gate","tool":"Write"`, "", "", ""},
		{`"op":"gate","tool":"Write","final":true`, codeFenced, "", "The final calls of this incarnation are made"},
		{`"op":"context","context_pct":93`, "", gate.Draining, ""},
		{`"op":"turn"`, "", gate.Dead, sentenceDead},
		{`"op":"gate","tool":"Write"`, codeFenced, "", sentenceDead},
		{`"op":"gate","kind":"llm"`, codeFenced, "", sentenceDead},
		{`"op":"usage","input_tokens":5`, "", "", ""}, // reports are taken until the end
	} {
		r := p.ask(`{%s,"token":%q}`, row.body, a.token)
		if r.OK != (row.code == "") || r.Error.Code != row.code || r.Result.Context != row.word {
			t.Errorf("%d %s: %+v", i, row.body, r)
		}
		if said := r.Error.Message + r.Result.Notice; !strings.Contains(said, row.says) || row.says == "" && said != "" {
			t.Errorf("%d %s: it says %q; want %q", i, row.body, said, row.says)
		}
	}
	want := journal.Summary{Rows: 12, Lifecycle: journal.Booting, Phase: journal.Executing, Used: journal.Used{InputTokens: 5}, Turns: 4, Percent: 93, Context: gate.Dead}
	if got := summary(t, dir, "e"); got != want {
		t.Errorf("the journal has %+v; want %+v", got, want)
	}
}

func TestAFinalCallCanBeAskedFor(t *testing.T) {
	s, _ := server(t)
	a := begin(t, s, "e")
	p := dial(t, a)
	if r := p.ask(`{"op":"gate","tool":"Write","context_pct":95,"final":true,"token":%q}`, a.token); !r.OK {
		t.Errorf("a final call: %+v", r)
	}
	if r := p.ask(`{"op":"turn","token":%q}`, a.token); r.Result.Context != gate.Dead {
		t.Errorf("the turn of the final call: %+v", r)
	}
	other := begin(t, s, "other")
	if r := p.ask(`{"op":"gate","tool":"Bash","context_pct":100.5,"token":%q}`, other.token); r.Error.Code != codeFenced || r.Error.Message != sentenceDead {
		t.Errorf("a context that is more than full: %+v", r)
	}
}

func TestCallsAreFencedWhoeverAsks(t *testing.T) {
	s, _ := server(t)
	for i, requests := range [][]struct{ body, code string }{
		{ // final calls that gate allowed
			{`"op":"gate","tool":"Write","context_pct":95,"final":true`, ""},
			{`"op":"call","call":"begin","kind":"tool","name":"Write","invocation":"a"`, ""},
			{`"op":"call","call":"begin","kind":"tool","name":"Write","invocation":"a"`, ""}, // the same call
			{`"op":"call","call":"end","invocation":"a"`, ""},
			{`"op":"call","call":"begin","kind":"tool","name":"Write","invocation":"b"`, codeFenced},
		},
		{ // programs that do not ask
			{`"op":"context","context_pct":95`, ""},
			{`"op":"call","call":"begin","kind":"tool","name":"Write","invocation":"a"`, codeFenced},
			{`"op":"call","call":"begin","kind":"llm","invocation":"l"`, ""},
			{`"op":"turn"`, ""},
			{`"op":"call","call":"begin","kind":"tool","name":"Write","invocation":"a"`, ""},
			{`"op":"gate","tool":"Write"`, codeFenced},
			{`"op":"call","call":"begin","kind":"network","invocation":"n"`, ""},
			{`"op":"turn"`, ""},
			{`"op":"call","call":"begin","kind":"llm","invocation":"m"`, codeFenced},
		},
	} {
		a := begin(t, s, fmt.Sprint("e", i))
		p := dial(t, a)
		for j, row := range requests {
			if r := p.ask(`{%s,"token":%q}`, row.body, a.token); r.OK != (row.code == "") || r.Error.Code != row.code {
				t.Errorf("%d.%d %s: %+v", i, j, row.body, r)
			}
		}
	}
}

func TestADrainedIncarnationFinishesItsStepAndBeginsNoOther(t *testing.T) {
	s, _ := server(t)
	for i, over := range []string{`"op":"step"`, `"op":"turn"`} {
		a := begin(t, s, fmt.Sprint("e", i))
		p := dial(t, a)
		ask := func(body, code string) {
			t.Helper()
			if r := p.ask(`{%s,"token":%q}`, body, a.token); r.OK != (code == "") || r.Error.Code != code {
				t.Errorf("%s: %+v; want %q", body, r, code)
			}
		}
		ask(over, "") // before the drain
		_, write := s.Drain(fmt.Sprint("e", i), func(string) time.Time { return time.Now().Add(time.Hour) })
		write()
		ask(`"op":"gate","tool":"Bash"`, "")
		ask(`"op":"gate","kind":"llm"`, "")
		ask(over, "")
		ask(`"op":"gate","tool":"Bash","final":true`, codeDraining)
		ask(`"op":"gate","kind":"llm"`, codeDraining)
		ask(`"op":"call","call":"begin","kind":"llm","invocation":"x"`, codeDraining)
		ask(`"op":"call","call":"begin","kind":"tool","name":"x","invocation":"x"`, codeDraining)
		ask(`"op":"usage","input_tokens":5`, "")
	}
}

func TestTheBudgetOfACallIsDecidedWithoutADaemon(t *testing.T) {
	s, dir := server(t)
	a := begin(t, s, "e")
	s.byToken[a.token].bounds = Bounds{
		Context: gate.Default, Budget: gate.Budget{InputTokens: 500_000, CostMicroUSD: 5_000_000},
		Former: gate.Amount{InputTokens: 100_000, CostMicroUSD: 4_000_000}, Crashes: 3,
	}
	p := dial(t, a)
	const sentence = "Job failed: token budget exhausted ($4.85 / $5.00 max). 3 crash-recovery cycles consumed tokens without completing the job. Manual intervention required."
	for i, row := range []struct{ body, code, says string }{
		{`"op":"gate","kind":"llm","estimate":{"input_tokens":400000,"cost_usd":"1"}`, "", ""},
		{`"op":"gate","kind":"llm","estimate":{"cost_usd":"1e5"}`, codeBad, "no amount"},
		{`"op":"gate","kind":"llm","estimate":{"input_tokens":18446744073709551615}`, codeReport, "at most"},
		{`"op":"usage","input_tokens":1000,"cost_usd":"0.85"`, "", ""},
		{`"op":"gate","kind":"llm"`, "", ""},
		{`"op":"gate","kind":"llm","estimate":{"cost_usd":"0.15"}`, "", ""},
		{`"op":"gate","kind":"llm","estimate":{"cost_usd":"0.150001"}`, codeBudget, sentence},
		{`"op":"gate","kind":"llm","estimate":{"cost_usd":"0.2"}`, codeBudget, sentence},
		{`"op":"gate","tool":"Bash"`, "", ""}, // the budget bounds calls to models
		{`"op":"usage","input_tokens":1000,"cost_usd":"1"`, "", ""},
		{`"op":"gate","kind":"llm"`, codeBudget, "($5.00 / $5.00 max)"},
	} {
		r := p.ask(`{%s,"token":%q}`, row.body, a.token)
		if r.OK != (row.code == "") || r.Error.Code != row.code || !strings.Contains(r.Error.Message, row.says) {
			t.Errorf("%d %s: %+v", i, row.body, r)
		}
	}
	got := summary(t, dir, "e")
	if !got.OverBudget || got.Estimate.CostMicroUSD != 150_001 || got.Rows != 7 {
		t.Errorf("the journal has %+v; want the first refusal, and no other one", got)
	}
}

// TestWhatChildrenHaveOfTheBudgetIsRefusedWithoutEndingTheAgent: it comes back, so the refusal
// is not written down, which would have the daemon end the agent.
func TestWhatChildrenHaveOfTheBudgetIsRefusedWithoutEndingTheAgent(t *testing.T) {
	s, dir := server(t)
	a := begin(t, s, "e")
	s.byToken[a.token].bounds = Bounds{
		Context: gate.Default, Budget: gate.Budget{InputTokens: 1000, CostMicroUSD: 5_000_000}, Former: gate.Amount{InputTokens: 100},
		Children: gate.Amount{InputTokens: 800, CostMicroUSD: 1_000_000},
	}
	p := dial(t, a)
	ask := func(body, code, says string) {
		t.Helper()
		r := p.ask(`{%s,"token":%q}`, body, a.token)
		if r.OK != (code == "") || r.Error.Code != code || !strings.Contains(r.Error.Message, says) {
			t.Errorf("%s: %+v", body, r)
		}
	}
	ask(`"op":"gate","kind":"llm","estimate":{"input_tokens":100}`, "", "")
	ask(`"op":"gate","kind":"llm","estimate":{"input_tokens":101}`, codeBudget, "Of 1000 input tokens, the agent has used 100 and its children have 800")
	ask(`"op":"usage","input_tokens":100,"cost_usd":"1"`, "", "")
	ask(`"op":"gate","kind":"llm"`, codeBudget, "has used 200")
	ask(`"op":"call","call":"begin","kind":"llm"`, codeBudget, "has used 200")
	if !s.Allot("e", gate.Amount{InputTokens: 799, CostMicroUSD: 4_500_000}, gate.Amount{}) || s.Allot("none", gate.Amount{}, gate.Amount{}) {
		t.Error("who runs is told, and nobody else")
	}
	ask(`"op":"gate","kind":"llm"`, codeBudget, "Of $5.00, the agent has used $1.00 and its children have $4.50")
	s.mu.Lock()
	news := s.byToken[a.token].news(time.Now())
	s.mu.Unlock()
	if news.Children.InputTokens != 799 {
		t.Errorf("the daemon is told of %+v", news.Children)
	}
	s.Allot("e", gate.Amount{InputTokens: 799}, gate.Amount{InputTokens: 799})
	ask(`"op":"gate","kind":"llm"`, "", "")
	if got := summary(t, dir, "e"); got.OverBudget {
		t.Errorf("the journal has %+v; want no refusal", got)
	}
	// What ended children have used does not come back: the agent ends as one without children.
	s.Allot("e", gate.Amount{InputTokens: 800}, gate.Amount{InputTokens: 800})
	ask(`"op":"gate","kind":"llm"`, codeBudget, "token budget exhausted (1000 / 1000 input tokens max)")
	if got := summary(t, dir, "e"); !got.OverBudget {
		t.Errorf("the journal has %+v; want the refusal that ends the agent", got)
	}
}

// BenchmarkGate asks whether a tool may be called, on a connection that stays open. The aim
// is 0.2 ms.
func BenchmarkGate(b *testing.B) {
	dir, err := logs.OpenDir(b.TempDir())
	if err != nil {
		b.Fatal(err)
	}
	defer dir.Close()
	s := New(Config{Dir: filepath.Join(b.TempDir(), "run"), Helper: "/bin/true", Logs: dir, Owner: logs.KeepOwner, Disk: func(fn func()) { fn() }})
	defer s.Close()
	a, err := s.Begin(Boot{ExecID: "e", AgentID: "agent", Number: 1, Bounds: Bounds{Context: gate.Default}})
	if err != nil {
		b.Fatal(err)
	}
	c, err := net.Dial("unix", a.socket)
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	in, line := bufio.NewReader(c), []byte(`{"op":"gate","tool":"Bash","context_pct":42,"token":"`+a.token+`"}`+"\n")
	for b.Loop() {
		if _, err := c.Write(line); err != nil {
			b.Fatal(err)
		}
		if answer, err := in.ReadString('\n'); err != nil || !strings.Contains(answer, `"ok":true`) {
			b.Fatal(answer, err)
		}
	}
}

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
