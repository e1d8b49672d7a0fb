package agentsocket

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agbox/agbox/agents/gate"
	"github.com/agbox/agbox/agents/journal"
	"github.com/agbox/agbox/logs"
	"github.com/agbox/agbox/runtime/supervisor/probes"
)

// callers runs a test with an incarnation whose calls have the limits of the requirements.
// It returns what the journal has of calls, after the end of the incarnation.
func callers(t *testing.T, test func(t *testing.T, in *incarnation, killed *[]string)) (rows []string) {
	t.Helper()
	folder := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		dir, err := logs.OpenDir(folder)
		if err != nil {
			t.Fatal(err)
		}
		defer dir.Close()
		var killed []string
		s := New(Config{Logs: dir, Owner: logs.KeepOwner, Disk: func(fn func()) { fn() }, KillCall: func(mark string) { killed = append(killed, mark) }})
		in := admitted(s, "e")
		in.bounds.Context = gate.Default
		in.calls.limits = probes.Limits{Connect: 30 * time.Second, Response: 120 * time.Second, LLMTotal: 300 * time.Second, LLMChunk: 60 * time.Second, Tool: 60 * time.Second}
		test(t, in, &killed)
		s.End("e")
		s.Close()
		file, err := dir.OpenJournal("e")
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		if _, err := journal.Beginning().Read(file, func(r journal.Row, _ journal.Summary) {
			if r.Op == journal.Call {
				rows = append(rows, strings.TrimSpace(fmt.Sprintf("%s %s %s %s", r.Phase, r.Kind, r.Invocation, r.Reason)))
			}
		}); err != nil {
			t.Fatal(err)
		}
	})
	return rows
}

func (in *incarnation) must(t *testing.T, req request) gate.CallState {
	t.Helper()
	state, err := in.call(req, time.Now())
	if err != nil {
		t.Fatalf("%+v: %v", req, err)
	}
	return state
}

func (in *incarnation) refuses(t *testing.T, req request, code string) {
	t.Helper()
	state, err := in.call(req, time.Now())
	if no, ok := errors.AsType[*refusal](err); !ok || no.Code != code || no.Message == "" {
		t.Errorf("%+v: %+v, %v; want %s", req, state, err, code)
	}
}

// The stream of a model stalls: the layer that catches it is the call, not the silence.
func TestAStreamThatStallsIsAborted(t *testing.T) {
	rows := callers(t, func(t *testing.T, in *incarnation, killed *[]string) {
		if s := in.must(t, request{Call: "begin", Kind: "llm", Invocation: "a"}); s.DeadlineMS != 30_000 {
			t.Errorf("at the begin: %+v", s)
		}
		time.Sleep(10 * time.Second)
		if s := in.must(t, request{Call: "progress", Invocation: "a", Connected: true}); s.DeadlineMS != 290_000 {
			t.Errorf("connected: %+v", s)
		}
		time.Sleep(100 * time.Second) // the model thinks
		for range 3 {
			if s := in.must(t, request{Call: "progress", Invocation: "a"}); s.DeadlineMS != 60_000 || s.Abort != "" {
				t.Errorf("a part of the answer: %+v", s)
			}
			time.Sleep(59 * time.Second)
		}
		time.Sleep(2 * time.Second)
		for range 2 { // told as often as it asks
			if s := in.must(t, request{Call: "progress", Invocation: "a"}); s.Abort != probes.ChunkTimeout || s.Class != "TRANSIENT_APP" || s.DeadlineMS != 0 {
				t.Errorf("after the stall: %+v", s)
			}
		}
		if s := in.must(t, request{Call: "begin", Kind: "llm", Invocation: "a"}); s.Abort != "" {
			t.Errorf("repeated: %+v", s)
		}
		if s := in.must(t, request{Call: "end", Invocation: "a"}); !s.Ended || s.Abort != "" {
			t.Errorf("at the end: %+v", s)
		}
		in.refuses(t, request{Call: "end", Invocation: "a"}, codeReport)
		if len(*killed) > 0 {
			t.Errorf("killed %q", *killed)
		}
	})
	if want := []string{"begin llm a", "abort llm a CHUNK_TIMEOUT", "begin llm a", "end llm a"}; !slices.Equal(rows, want) {
		t.Errorf("the journal has %q; want %q", rows, want)
	}
}

func TestAToolThatTakesTooLongIsKilled(t *testing.T) {
	rows := callers(t, func(t *testing.T, in *incarnation, killed *[]string) {
		slow := in.must(t, request{Call: "begin", Kind: "tool", Name: "x"})
		fast := in.must(t, request{Call: "begin", Kind: "tool", Name: "x"})
		if slow.Invocation == "" || slow.Mark == "" || slow.Mark == fast.Mark || slow.Invocation == fast.Invocation {
			t.Errorf("the calls are not told apart: %+v, %+v", slow, fast)
		}
		got := make(chan gate.CallState, 1)
		go func() {
			for {
				s, err := in.call(request{Call: "wait", Invocation: slow.Invocation}, time.Now())
				if err != nil || s.Abort != "" || s.Ended {
					got <- s
					return
				}
			}
		}()
		time.Sleep(time.Second)
		in.must(t, request{Call: "end", Invocation: fast.Invocation, Error: "It exited with 3."})
		begun := time.Now()
		if s := <-got; s.Abort != probes.ToolTimeout || time.Since(begun) != 59*time.Second {
			t.Errorf("after %v: %+v", time.Since(begun), s)
		}
		time.Sleep(toolGrace + time.Millisecond)
		synctest.Wait()
		if !slices.Equal(*killed, []string{slow.Mark}) {
			t.Errorf("killed %q; want %q", *killed, slow.Mark)
		}
	})
	if want := []string{"begin tool e/1", "begin tool e/2", "end tool e/2 It exited with 3.", "abort tool e/1 TOOL_TIMEOUT"}; !slices.Equal(rows, want) {
		t.Errorf("the journal has %q; want %q", rows, want)
	}
}

func TestCallsThatCannotBeMade(t *testing.T) {
	callers(t, func(t *testing.T, in *incarnation, _ *[]string) {
		in.refuses(t, request{Call: "dance"}, codeBad)
		in.refuses(t, request{Call: "begin", Kind: "disk", Invocation: "a"}, codeReport)
		in.refuses(t, request{Call: "begin", Kind: "tool", Invocation: strings.Repeat("x", 129)}, codeReport)
		in.refuses(t, request{Call: "progress", Invocation: "never"}, codeReport)
		in.refuses(t, request{Call: "wait", Invocation: "never"}, codeReport)
		in.must(t, request{Call: "begin", Kind: "tool", Name: "x", Invocation: "a"})
		in.must(t, request{Call: "begin", Kind: "tool", Name: "x", Invocation: "a"}) // asked again
		in.refuses(t, request{Call: "begin", Kind: "tool", Name: "y", Invocation: "a"}, codeReport)
		for i := 1; i < maxCalls; i++ {
			in.must(t, request{Call: "begin", Kind: "network", Invocation: fmt.Sprint(i)})
		}
		in.refuses(t, request{Call: "begin", Kind: "network"}, codeReport)
		time.Sleep(31 * time.Second) // those to the network never connected
		in.must(t, request{Call: "begin", Kind: "network", Invocation: "after"})
		if len(in.calls.byID) > maxCalls {
			t.Errorf("%d calls are kept", len(in.calls.byID))
		}

		in.context = in.context.Reported(101)
		in.refuses(t, request{Call: "begin", Kind: "tool"}, codeFenced)
		in.refuses(t, request{Call: "begin", Kind: "llm"}, codeFenced)
		in.context = gate.Context{}
		in.bounds.Budget, in.bounds.Former = gate.Budget{InputTokens: 5}, gate.Amount{InputTokens: 5}
		in.refuses(t, request{Call: "begin", Kind: "llm"}, codeBudget)
	})
}

// A program that ends with open calls, and a supervisor that stops, wait for nothing. Its tools are
// killed before its end is reported.
func TestOpenCallsEndWithTheirProgram(t *testing.T) {
	callers(t, func(t *testing.T, in *incarnation, killed *[]string) {
		for _, id := range []string{"a", "b"} {
			in.must(t, request{Call: "begin", Kind: "tool", Invocation: id})
		}
		in.must(t, request{Call: "begin", Kind: "network", Invocation: "c"})
		done := make(chan gate.CallState)
		go func() { done <- in.must(t, request{Call: "wait", Invocation: "a"}) }()
		synctest.Wait()
		in.server.End("e")
		if s := <-done; !s.Ended {
			t.Errorf("after the end: %+v", s)
		}
		slices.Sort(*killed)
		if want := []string{"e/1", "e/2"}; !slices.Equal(*killed, want) {
			t.Errorf("killed %q at the end; want %q", *killed, want)
		}
		time.Sleep(time.Hour)
		if len(*killed) > 2 {
			t.Errorf("killed %q after the end", *killed)
		}
	})
}

// The step under way may go on for a time; then its calls are aborted, and none begins.
func TestCallsAreAbortedWhenTheStepOfADrainIsOver(t *testing.T) {
	rows := callers(t, func(t *testing.T, in *incarnation, _ *[]string) {
		in.must(t, request{Call: "begin", Kind: "llm", Invocation: "a"})
		in.must(t, request{Call: "progress", Invocation: "a"})
		_, write := in.server.Drain("e", func(string) time.Time { return time.Now().Add(45 * time.Second) })
		write()
		if s := in.must(t, request{Call: "progress", Invocation: "a"}); s.DeadlineMS != 45_000 || s.Abort != "" {
			t.Errorf("at the begin of the drain: %+v", s)
		}
		if s := in.must(t, request{Call: "begin", Kind: "tool", Invocation: "b"}); s.DeadlineMS != 45_000 {
			t.Errorf("a call in the step under way: %+v", s)
		}
		time.Sleep(46 * time.Second)
		synctest.Wait()
		for _, id := range []string{"a", "b"} {
			if s := in.must(t, request{Call: "progress", Invocation: id}); s.Abort != probes.Shutdown || s.Class != "" {
				t.Errorf("when the step is over: %+v", s)
			}
		}
		in.refuses(t, request{Call: "begin", Kind: "network"}, codeReport)
	})
	if len(rows) != 4 || !slices.Contains(rows, "abort llm a SHUTDOWN") || !slices.Contains(rows, "abort tool b SHUTDOWN") {
		t.Errorf("the journal has %q", rows)
	}
}

func TestResultsOfCallsAreInTheJournal(t *testing.T) {
	s, dir := server(t)
	a, err := s.Begin(Boot{ExecID: "e", AgentID: "agent", Number: 1, Bounds: Bounds{Context: gate.Default}, JournalBytes: 512 << 10})
	if err != nil {
		t.Fatal(err)
	}
	p := dial(t, a)
	call := func(n int, more string) {
		t.Helper()
		for _, body := range []string{`"call":"begin","kind":"llm"`, `"call":"end"` + more} {
			if r := p.ask(`{"op":"call","invocation":"%d",%s,"token":%q}`, n, body, a.token); !r.OK {
				t.Errorf("call %d: %+v", n, r)
			}
		}
	}
	long := strings.Repeat("x", 40<<10)
	call(1, ``)
	call(2, `,"result":"ä\u0000"`)
	call(3, `,"result_base64":"/w==","result_bytes":70000`)
	for n := range 4 {
		call(4+n, `,"result":"`+long+`"`)
	}
	file, err := dir.OpenJournal("e")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var got []string
	if _, err := journal.Beginning().Read(file, func(r journal.Row, _ journal.Summary) {
		switch {
		case r.Phase != journal.End:
		case r.ResultBytes == nil:
			got = append(got, "none")
		default:
			got = append(got, fmt.Sprintf("%.4q of %d", r.Result, *r.ResultBytes))
		}
	}); err != nil {
		t.Fatal(err)
	}
	want := []string{"none", `"ä\x00" of 3`, `"\xff" of 70000`, `"xxxx" of 40960`, `"xxxx" of 40960`, `"xxxx" of 40960`, `"" of 40960`}
	if !slices.Equal(got, want) {
		t.Errorf("the journal has the results %q; want %q", got, want)
	}
}
