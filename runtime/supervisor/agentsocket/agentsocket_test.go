package agentsocket

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agbox/agbox/agents/gate"
	"github.com/agbox/agbox/agents/journal"
	"github.com/agbox/agbox/logs"
)

// server starts a Server with journals in a new folder.
func server(t *testing.T) (*Server, *logs.Dir) {
	t.Helper()
	dir, err := logs.OpenDir(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	s := New(Config{Dir: filepath.Join(t.TempDir(), "run"), Helper: "/bin/true", Logs: dir, Owner: logs.KeepOwner, Disk: func(fn func()) { fn() }})
	t.Cleanup(func() {
		s.Close()
		_ = dir.Close()
	})
	return s, dir
}

func begin(t *testing.T, s *Server, execID string) *Access {
	t.Helper()
	a, err := s.Begin(Boot{ExecID: execID, AgentID: "agent", Number: 1, Bounds: Bounds{Context: gate.Default}})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// peer is a connection to the socket.
type peer struct {
	t *testing.T
	net.Conn
	in *bufio.Reader
}

func dial(t *testing.T, a *Access) *peer {
	t.Helper()
	c, err := net.Dial("unix", a.socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	return &peer{t, c, bufio.NewReader(c)}
}

type reply struct {
	ID     any
	OK     bool
	Result accepted
	Error  refusal
	orders
}

func (p *peer) ask(format string, args ...any) (r reply) {
	p.t.Helper()
	if _, err := fmt.Fprintf(p, format+"\n", args...); err != nil {
		p.t.Fatal(err)
	}
	return p.answer()
}

func (p *peer) answer() (r reply) {
	p.t.Helper()
	line, err := p.in.ReadBytes('\n')
	if err != nil {
		p.t.Fatal(err)
	}
	if err := json.Unmarshal(line, &r); err != nil {
		p.t.Fatalf("%s: %v", line, err)
	}
	return r
}

func summary(t *testing.T, dir *logs.Dir, execID string) journal.Summary {
	t.Helper()
	f, err := dir.OpenJournal(execID)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	read, err := journal.Beginning().Read(f, nil)
	if err != nil || read.Bad != 0 {
		t.Fatalf("the journal has %d bad rows, %v", read.Bad, err)
	}
	return read.Sum
}

func TestReportsAreInTheJournalWhenTheyAreAnswered(t *testing.T) {
	s, dir := server(t)
	a := begin(t, s, "e")
	p := dial(t, a)
	if r := p.ask(`{"op":"hello","id":"x","token":%q,"more":[1]}`, a.token); !r.OK || r.ID != "x" || r.Result.AgentID != "agent" || r.Result.Incarnation != 1 || r.Result.State != journal.Booting {
		t.Errorf("hello: %+v", r)
	}
	for _, body := range []string{
		`"op":"state","state":"HYDRATING"`, `"op":"beat"`, `"op":"beat"`, `"op":"usage","input_tokens":10,"output_tokens":2,"cost_usd":"1.25"`,
		`"op":"step"`, `"op":"step","steps":4`, `"op":"step"`, `"op":"say","text":"ä"`, `"op":"send","to":"parent","text":"` + strings.Repeat("<", 60<<10) + `"`, `"op":"done","outcome":"complete","message":"fine"`,
	} {
		if r := p.ask(`{%s,"id":7,"token":%q}`, body, a.token); !r.OK || r.ID != 7.0 {
			t.Errorf("%s: %+v", body, r)
		}
	}
	want := journal.Summary{
		Rows: 10, Lifecycle: journal.Hydrating, Phase: journal.Executing, Used: journal.Used{InputTokens: 10, OutputTokens: 2, CostMicroUSD: 1_250_000},
		Steps: 5, Said: "ä", Outcome: journal.Complete, Message: "fine", Context: "HEALTHY",
	}
	if got := summary(t, dir, "e"); got != want {
		t.Errorf("the journal has %+v; want %+v", got, want)
	}
}

func TestRefusals(t *testing.T) {
	s, dir := server(t)
	a, other := begin(t, s, "e"), begin(t, s, "other")
	p := dial(t, a)
	for _, row := range []struct{ line, code string }{
		{`{"op":"hello","token":"forged"}`, codeToken},
		{`{"op":"hello"}`, codeToken},
		{`{"op":"dance","token":"` + a.token + `"}`, codeOp},
		{`{}`, codeOp}, {`null`, codeOp}, {`hello`, codeBad}, {``, codeBad}, {`[1]`, codeBad},
		{`{"op":"hello","id":"` + strings.Repeat("x", maxID) + `","token":"` + a.token + `"}`, codeBad},
		{`{"op":"usage","input_tokens":-1,"token":"` + a.token + `"}`, codeBad},
		{`{"op":"usage","cost_usd":"1e5","token":"` + a.token + `"}`, codeBad},
		{`{"op":"usage","cost_usd":"-1","token":"` + a.token + `"}`, codeBad},
		{`{"op":"usage","cost_usd":"0.1234567","token":"` + a.token + `"}`, codeBad},
		{`{"op":"state","state":"EXECUTING","token":"` + a.token + `"}`, codeReport},
		{`{"op":"step","steps":0,"token":"` + a.token + `"}`, codeReport},
		{`{"op":"send","text":"x","token":"` + a.token + `"}`, codeReport},
		{`{"op":"send","to":"x","text":"` + strings.Repeat("\u2028", 15<<10) + `","token":"` + a.token + `"}`, codeReport},
		{`{"op":"done","outcome":"maybe","token":"` + a.token + `"}`, codeReport},
	} {
		if r := p.ask("%s", row.line); r.OK || r.Error.Code != row.code || r.Error.Message == "" {
			t.Errorf("%.60s: %+v; want %s", row.line, r, row.code)
		}
	}
	if _, err := dir.OpenJournal("e"); err == nil {
		t.Error("a refused report is in the journal")
	}
	if r := p.ask(`{"op":"hello","token":%q}`, other.token); !r.OK {
		t.Errorf("another incarnation on the same connection: %+v", r)
	}
}

func TestALongLineEndsItsConnectionOnly(t *testing.T) {
	s, _ := server(t)
	a := begin(t, s, "e")
	bad, good := dial(t, a), dial(t, a)
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		_, _ = io.CopyN(bad, zeros{}, 1<<30)
	}()
	if r := bad.answer(); r.Error.Code != codeLong {
		t.Errorf("the answer to an endless line is %+v", r)
	}
	<-sent // the supervisor has closed the connection: it reads no gigabyte
	if r := good.ask(`{"op":"hello","token":%q}`, a.token); !r.OK {
		t.Errorf("another connection: %+v", r)
	}
	line := fmt.Sprintf(`{"op":"hello","token":%q}`, a.token)
	if r := good.ask("%s%s", line, strings.Repeat(" ", maxLine-1-len(line))); !r.OK {
		t.Errorf("the longest line: %+v", r)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

func TestNoReportIsAcceptedAfterTheEnd(t *testing.T) {
	s, dir := server(t)
	a := begin(t, s, "e")
	var acknowledged uint64
	var reporting sync.WaitGroup
	p := dial(t, a)
	started := make(chan struct{})
	reporting.Go(func() {
		for n := uint64(1); ; n++ {
			r := p.ask(`{"op":"usage","input_tokens":%d,"token":%q}`, n, a.token)
			if !r.OK {
				if r.Error.Code != codeToken {
					t.Errorf("after the end: %+v", r)
				}
				return
			}
			acknowledged = n
			if n == 3 {
				close(started)
			}
		}
	})
	<-started
	s.End("e")
	at := summary(t, dir, "e").Used.InputTokens
	reporting.Wait()
	if acknowledged != at || summary(t, dir, "e").Used.InputTokens != at {
		t.Errorf("%d was acknowledged, and the journal had %d when the incarnation ended", acknowledged, at)
	}
	s.End("e")
	s.End("never there")

	// A request may have found its incarnation before the end and report after it.
	in, err := s.identify(&conn{owner: new(incarnation), unknown: true}, begin(t, s, "f").token)
	if err != nil {
		t.Fatal(err)
	}
	s.End("f")
	if _, err := in.report(journal.Row{Op: journal.Hello}, time.Now()); fmt.Sprint(err) != sentences[codeToken] {
		t.Errorf("a report after the end: %v", err)
	}
	if _, err := dir.OpenJournal("f"); err == nil {
		t.Error("a report after the end is in the journal")
	}
}

func TestAReportThatCannotBeWrittenIsRefused(t *testing.T) {
	s, dir := server(t)
	a := begin(t, s, "e")
	first, err := dir.CreateJournal("e", 1, nil, logs.KeepOwner) // as root in the sandbox could
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	if r := dial(t, a).ask(`{"op":"done","outcome":"complete","token":%q}`, a.token); r.OK || r.Error.Code != codeJournal {
		t.Errorf("a journal that cannot be made: %+v", r)
	}
}

func TestTheAccessOverridesTheEnvironment(t *testing.T) {
	s, _ := server(t)
	a := begin(t, s, "e")
	got := strings.Join(a.Extend([]string{"PATH=/bin", "AGBOX_TOKEN=forged", "X=y", "AGBOX_AGENT_SOCKET=/nowhere"}), " ")
	want := "PATH=/bin:" + a.bin + " X=y AGBOX_AGENT_SOCKET=" + a.socket + " AGBOX_TOKEN=" + a.token
	if got != want {
		t.Errorf("the environment is %s; want %s", got, want)
	}
	if env := (*Access)(nil).Extend([]string{"X=y"}); len(env) != 1 {
		t.Errorf("an exec of no agent gets %v", env)
	}
	if st, err := os.Stat(a.socket); err != nil || st.Mode().Perm() != 0o666 {
		t.Errorf("the socket: %v, %v", st, err)
	}
	if to, err := os.Readlink(filepath.Join(a.bin, helperName)); to != "/bin/true" {
		t.Errorf("the helper leads to %q, %v", to, err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"op":"usage","id":1,"token":"t","input_tokens":5,"cost_usd":"0.1"}`))
	f.Add([]byte(`{"op":"gate","kind":"llm","context_pct":1e300,"final":true,"estimate":{"input_tokens":5,"cost_usd":"0.1"}}`))
	f.Add([]byte(`{"op":"done","id":{"a":[]},"outcome":"fail","message":"\u0000"}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		s := New(Config{})
		id, answer, also := s.handle(new(conn), line, bufio.NewReader(strings.NewReader("")), time.Unix(0, 0))
		if _, no := answer.(*refusal); !no {
			t.Fatalf("accepted without a token: %+v", answer)
		}
		if _, err := json.Marshal(envelope(id, answer, also)); err != nil {
			t.Fatal(err)
		}
		req, row, err := parse(line)
		if err == nil && (req.Op == "" || row.Op != req.Op) {
			t.Fatalf("%q became %+v", line, row)
		}
	})
}

func TestTheWorkOfAnIncarnationIsAFileUntilItsEnd(t *testing.T) {
	s, _ := server(t)
	path := func(a *Access) string {
		for _, entry := range a.Extend([]string{"AGBOX_WORK=forged"}) {
			if at, ok := strings.CutPrefix(entry, "AGBOX_WORK="); ok {
				return at
			}
		}
		return ""
	}
	if a, err := s.Begin(Boot{ExecID: "without", AgentID: "b", Number: 1}); err != nil || path(a) != "" {
		t.Errorf("without work: %q, %v", path(a), err)
	}
	for _, work := range []string{"fix it\n", ""} {
		a, err := s.Begin(Boot{ExecID: "exec", AgentID: "a", Number: 1, Work: []byte(work)})
		if err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(path(a)); err != nil || string(got) != work {
			t.Errorf("the file has %q, %v; want %q", got, err, work)
		}
		s.End("exec")
		if _, err := os.Stat(path(a)); !os.IsNotExist(err) {
			t.Errorf("after the end: %v", err)
		}
	}
}

// TestReportsHaveNoValuesOfSecretVariables: of messages to other agents, which arrive as they were
// sent, the journal has what is sent.
func TestReportsHaveNoValuesOfSecretVariables(t *testing.T) {
	s, dir := server(t)
	a, err := s.Begin(Boot{ExecID: "e", AgentID: "agent", Number: 1, Bounds: Bounds{Context: gate.Default}, Redactor: logs.NewRedactor([]string{"canary-aa-71f0c2"})})
	if err != nil {
		t.Fatal(err)
	}
	p := dial(t, a)
	for _, line := range []string{
		`{"op":"say","text":"it is canary-aa-71f0c2"}`, `{"op":"error","text":"canary-aa-71f0c2?","error_stack":"at canary-aa-71f0c2"}`,
		`{"op":"send","to":"parent","text":"canary-aa-71f0c2"}`, `{"op":"done","outcome":"complete","message":"with canary-aa-71f0c2"}`,
	} {
		if r := p.ask(`{"token":%q,%s`, a.token, line[1:]); !r.OK {
			t.Fatalf("%s: %v", line, r.Error)
		}
	}
	file, err := dir.OpenJournal("e")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	raw, err := io.ReadAll(file)
	if err != nil {
		t.Fatal(err)
	}
	text := string(raw)
	for want, n := range map[string]int{"canary-aa-71f0c2": 1, "it is ***": 1, "***?": 1, "at ***": 1, "with ***": 1} {
		if got := strings.Count(text, want); got != n {
			t.Errorf("%q is %d times in the journal, want %d:\n%s", want, got, n, text)
		}
	}
}
