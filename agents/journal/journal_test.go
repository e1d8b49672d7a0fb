package journal

import (
	"bytes"
	"errors"
	"io"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/agbox/agbox/agents/gate"
)

func TestStatesFollowEachOther(t *testing.T) {
	all := []string{Booting, Hydrating, Ready, Executing, Draining, Terminated}
	may := map[string]string{
		Booting: "HYDRATING DRAINING TERMINATED", Hydrating: "READY DRAINING TERMINATED", Ready: "EXECUTING DRAINING",
		Executing: "DRAINING TERMINATED", Draining: "TERMINATED", Terminated: "",
	}
	for _, from := range all {
		for _, to := range append(all, "", "SLEEPING") {
			s := Start()
			s.Lifecycle = from
			next, err := s.Next(Row{Op: State, State: to})
			want := to != "" && strings.Contains(" "+may[from]+" ", " "+to+" ")
			if (err == nil) != want {
				t.Errorf("%s after %s: %v; want it allowed: %v", to, from, err, want)
			}
			if err == nil && next.Lifecycle != to || err != nil && next != s {
				t.Errorf("%s after %s leads to %+v", to, from, next)
			}
		}
	}
}

func TestRowsThatMayNotFollow(t *testing.T) {
	s := Start()
	for _, r := range []Row{
		{Op: Usage, Used: &Used{InputTokens: 5, OutputTokens: 6, CostMicroUSD: 7}},
		{Op: Step, Steps: 3}, {Op: Say, Text: "so far\n\tso good"}, {Op: Done, Outcome: Complete, Text: "done"},
		{Op: Hello}, {Op: Beat}, {Op: Done, Outcome: Complete, Text: "done twice"},
	} {
		next, err := s.Next(r)
		if err != nil {
			t.Fatalf("%+v: %v", r, err)
		}
		s = next
	}
	want := Summary{
		Rows: 7, Lifecycle: Booting, Phase: Executing, Used: Used{5, 6, 7}, Steps: 3, Said: "so far\n\tso good",
		Outcome: Complete, Message: "done twice", Context: "HEALTHY",
	}
	if s != want {
		t.Errorf("the summary is %+v; want %+v", s, want)
	}
	for _, r := range []Row{
		{}, {Op: "dance"}, {Op: Usage},
		{Op: Usage, Used: &Used{4, 6, 7}}, {Op: Usage, Used: &Used{5, 5, 7}}, {Op: Usage, Used: &Used{5, 6, 6}},
		{Op: Usage, Used: &Used{maxCount + 1, 6, 7}}, {Op: Step, Steps: 2}, {Op: Step, Steps: maxCount + 1},
		{Op: Say, Text: strings.Repeat("x", MaxText+1)}, {Op: Say, Text: "\x1b[2J"}, {Op: Say, Text: "\xff"},
		{Op: Send, Text: "x"}, {Op: Send, To: "x"}, {Op: Send, To: strings.Repeat("x", maxAddress+1), Text: "x"}, {Op: Send, To: "x", Key: "\x1b", Text: "x"},
		{Op: Send, To: "x", Stream: "x", Text: "x"}, {Op: Send, Stream: "agent:x", Text: "x"},
		{Op: Send, To: "x", Text: strings.Repeat("x", MaxMessage+1)},
		{Op: Done, Outcome: Fail}, {Op: Done, Outcome: "perhaps"}, {Op: Done},
	} {
		next, err := s.Next(r)
		if refusal := Refusal(""); !errors.As(err, &refusal) || next != s {
			t.Errorf("%+v: %v, and the summary is %+v", r, err, next)
		}
	}
}

func TestReadLeavesOutWhatIsNoRow(t *testing.T) {
	long := strings.Repeat("x", 3*MaxRow)
	for _, row := range []struct {
		name, text string
		rows       uint64
		bad        int
	}{
		{"nothing", "", 0, 0},
		{"two rows", "{\"op\":\"hello\"}\n{\"op\":\"beat\"}\n", 2, 0},
		{"a torn end", "{\"op\":\"hello\"}\n{\"op\":\"be", 1, 0},
		{"a row without its line end", "{\"op\":\"hello\"}\n{\"op\":\"beat\"}", 1, 0},
		{"no JSON", "x\n{\"op\":\"hello\"}\n\n[]\n", 1, 3},
		{"a long line", long + "\n{\"op\":\"hello\"}\n", 1, 1},
		{"an endless line", long, 0, 0},
		{"a negative usage", "{\"op\":\"usage\",\"used\":{\"input_tokens\":-1}}\n", 0, 1},
	} {
		s, bad, err := read(strings.NewReader(row.text))
		if err != nil || s.Rows != row.rows || bad != row.bad {
			t.Errorf("%s: %d rows, %d bad, %v; want %d and %d", row.name, s.Rows, bad, err, row.rows, row.bad)
		}
	}
}

func TestReadEndsAtTooManyBadLines(t *testing.T) {
	in := &endless{line: []byte("\n")}
	s, _, err := read(io.MultiReader(strings.NewReader("{\"op\":\"step\",\"steps\":3}\n"), in))
	if !errors.Is(err, ErrDamaged) || s.Steps != 3 {
		t.Errorf("%+v, %v; want the row before and ErrDamaged", s, err)
	}
	if in.read > 4*MaxRow {
		t.Errorf("%d bytes of empty lines were read", in.read)
	}
}

func TestReadIsBounded(t *testing.T) {
	in := &endless{line: []byte(strings.Repeat("x", MaxRow))}
	if _, _, err := read(in); err != nil {
		t.Fatal(err)
	}
	if in.read > MaxJournal {
		t.Errorf("%d bytes of an endless journal were read; want at most %d", in.read, MaxJournal)
	}
}

type endless struct {
	line []byte
	read int
}

func (e *endless) Read(p []byte) (int, error) {
	n := copy(p, e.line)
	e.read += n
	return n, nil
}

func TestWhatIsWrittenIsRead(t *testing.T) {
	var file bytes.Buffer
	want := Start()
	for _, r := range []Row{{Op: State, State: Hydrating, At: 1}, {Op: Usage, Used: &Used{1, 2, 3}}, {Op: Done, Outcome: Fail, Text: "ä\n"}} {
		line, err := Encode(r)
		if err != nil || bytes.Count(line, []byte("\n")) != 1 {
			t.Fatalf("%q, %v", line, err)
		}
		file.Write(line)
		if want, err = want.Next(r); err != nil {
			t.Fatal(err)
		}
	}
	if got, bad, err := read(&file); got != want || bad != 0 || err != nil {
		t.Errorf("read %+v, %d bad, %v; want %+v", got, bad, err, want)
	}
}

func read(r io.Reader) (Summary, int, error) {
	t, err := Beginning().Read(r, nil)
	return t.Sum, t.Bad, err
}

// TestAJournalThatGrowsIsReadOnce reads a journal in two parts, cut at each byte.
func TestAJournalThatGrowsIsReadOnce(t *testing.T) {
	text := []byte("{\"op\":\"hello\"}\nno row\n{\"op\":\"step\",\"steps\":2}\n{\"op\":\"say\",\"text\":\"x\"}\n{\"op\":\"sa")
	text = append(text, bytes.Repeat([]byte("y"), 2*MaxRow)...)
	text = append(text, "\n{\"op\":\"step\",\"steps\":3}\n"...)
	var want []Row
	whole, err := Beginning().Read(bytes.NewReader(text), func(r Row, _ Summary) { want = append(want, r) })
	if err != nil || whole.Bad != 2 || len(want) != 4 || whole.Offset != int64(len(text)) {
		t.Fatalf("%+v with %d rows, %v", whole, len(want), err)
	}
	for cut := range text {
		if cut > 200 && cut%1009 != 0 && cut < len(text)-100 {
			continue
		}
		var got []Row
		each := func(r Row, _ Summary) { got = append(got, r) }
		part, err := Beginning().Read(bytes.NewReader(text[:cut]), each)
		if err != nil {
			t.Fatal(err)
		}
		if part, err = part.Read(bytes.NewReader(text[part.Offset:]), each); err != nil {
			t.Fatal(err)
		}
		if part != whole || !reflect.DeepEqual(got, want) {
			t.Fatalf("cut at %d: %+v with %v; want %+v with %v", cut, part, got, whole, want)
		}
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte("{\"op\":\"usage\",\"used\":{\"input_tokens\":5}}\n{\"op\":\"done\",\"outcome\":\"complete\"}\n{\"op\":\"state\",\"state\":\"DRAINING\"}\n"))
	f.Add([]byte("{\"op\":\"turn\",\"context_pct\":91,\"context\":\"DYING\"}\n{\"op\":\"gate\",\"kind\":\"llm\",\"refused\":true,\"used\":{\"input_tokens\":5},\"context\":\"DEAD\"}\n"))
	f.Add([]byte("\x00\n{\"op\":\"say\",\"text\":\"\\u001b\"}\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		s, bad, err := read(bytes.NewReader(text))
		lines := bytes.Count(text, []byte("\n"))
		if errors.Is(err, ErrDamaged) != (bad > maxBad) || err == nil && int(s.Rows)+bad != lines {
			t.Fatalf("%d rows and %d bad of %d lines, %v", s.Rows, bad, lines, err)
		}
		if len(s.Said) > MaxText || len(s.Message) > MaxText || !printable(s.Said+s.Message) || max(s.Used.InputTokens, s.Used.OutputTokens, s.Used.CostMicroUSD, s.Steps) > maxCount {
			t.Fatalf("out of bounds: %+v", s)
		}
		if s.Percent > gate.MaxPercent || !gate.MayFollow(gate.Healthy, s.Context) || max(s.Estimate.InputTokens, s.Estimate.CostMicroUSD) > maxCount {
			t.Fatalf("a context out of bounds: %+v", s)
		}
		if _, known := follows[s.Lifecycle]; !known && s.Lifecycle != Terminated {
			t.Fatalf("unknown state %q", s.Lifecycle)
		}
	})
}

func TestBeatsHaveTotalsAndTheStepUnderWay(t *testing.T) {
	s := Start()
	add := func(r Row) {
		t.Helper()
		next, err := s.Next(r)
		if err != nil {
			t.Fatal(err)
		}
		s = next
	}
	want := func(step int64, steps, llm, tools uint64) {
		t.Helper()
		gotSteps, gotLLM, gotTools := s.Counts()
		is := int64(-1)
		if last := s.LastStep(); last != nil {
			is = int64(*last)
		}
		if is != step || gotSteps != steps || gotLLM != llm || gotTools != tools {
			t.Errorf("step %d, %d steps, %d calls to models, %d of tools; want %d, %d, %d, %d", is, gotSteps, gotLLM, gotTools, step, steps, llm, tools)
		}
	}
	want(-1, 0, 0, 0)
	add(Row{Op: Step, Steps: 2})
	want(2, 2, 0, 0)
	add(Row{Op: Beat})
	want(2, 2, 0, 0)
	add(Row{Op: Beat, Totals: &Totals{InStep: true, Step: 0, Steps: 3, LLMCalls: 9, ToolCalls: 4}})
	want(0, 3, 9, 4)
	add(Row{Op: Call, Phase: Begin, Kind: Tool, Name: "x", Invocation: "1"}) // is among those 4
	add(Row{Op: Beat, Totals: &Totals{Steps: 1, LLMCalls: 10}})
	want(-1, 3, 10, 4)
	if _, err := s.Next(Row{Op: Beat, Totals: &Totals{ToolCalls: maxCount + 1}}); err == nil {
		t.Error("a total that is too high was accepted")
	}
}

func TestTheWayBetweenTwoStates(t *testing.T) {
	for _, row := range []struct {
		from, to string
		want     []string
	}{
		{Booting, Executing, []string{Hydrating, Ready, Executing}},
		{Booting, Terminated, []string{Terminated}},
		{Ready, Terminated, []string{Executing, Terminated}},
		{Executing, Ready, nil}, {Draining, Executing, nil}, {Booting, "DANCING", nil},
	} {
		if got := Between(row.from, row.to); !slices.Equal(got, row.want) {
			t.Errorf("from %s to %s: %q; want %q", row.from, row.to, got, row.want)
		}
	}
}

func TestCallsAreCounted(t *testing.T) {
	s := Start()
	for _, r := range []Row{
		{Phase: Begin, Kind: LLM, Invocation: "1"}, {Phase: End, Kind: LLM, Invocation: "1"},
		{Phase: Begin, Kind: Tool, Invocation: "2", Name: "git_clone"}, {Phase: Aborted, Kind: Tool, Invocation: "2", Name: "git_clone", Reason: "TOOL_TIMEOUT"},
		{Phase: Begin, Kind: Tool, Invocation: "3", Name: "file_read"}, {Phase: Begin, Kind: Network, Invocation: "4"},
	} {
		r.Op = Call
		next, err := s.Next(r)
		if err != nil {
			t.Fatalf("%+v: %v", r, err)
		}
		s = next
	}
	if s.Rows != 6 || s.LLMCalls != 1 || s.ToolCalls != 2 || s.LastTool != "file_read" {
		t.Errorf("%+v", s)
	}
}

func TestCallsThatAreRefused(t *testing.T) {
	good := Row{Op: Call, Phase: Begin, Kind: Tool, Invocation: "1", Name: "x"}
	for name, change := range map[string]func(*Row){
		"phase":      func(r *Row) { r.Phase = "progress" },
		"kind":       func(r *Row) { r.Kind = "disk" },
		"no id":      func(r *Row) { r.Invocation = "" },
		"a long id":  func(r *Row) { r.Invocation = strings.Repeat("x", MaxInvocation+1) },
		"an id":      func(r *Row) { r.Invocation = "\x1b" },
		"name":       func(r *Row) { r.Name = strings.Repeat("x", MaxName+1) },
		"a bad name": func(r *Row) { r.Name = "\xff" },
		"reason":     func(r *Row) { r.Reason = strings.Repeat("x", MaxText+1) },
	} {
		r := good
		change(&r)
		if s, err := Start().Next(r); err == nil || s != Start() {
			t.Errorf("%s: %+v, %v; want a refusal", name, s, err)
		}
	}
}

func TestRowsOfTheContext(t *testing.T) {
	s := Start()
	for _, r := range []Row{
		{Op: Context, Percent: 71, Context: gate.Aging},
		{Op: Turn, Percent: 60, Context: gate.Aging},
		{Op: Gate, Kind: Tool, Name: "Write", Percent: 91, Context: gate.Dying},
		{Op: Gate, Kind: LLM, Used: &Used{InputTokens: 5}, Context: gate.Dying},
		{Op: Gate, Kind: LLM, Used: &Used{InputTokens: 7}, Refused: true, Context: gate.Dying},
		{Op: Turn, Context: gate.Dead},
	} {
		next, err := s.Next(r)
		if err != nil {
			t.Fatalf("%+v: %v", r, err)
		}
		s = next
	}
	want := Summary{
		Rows: 6, Lifecycle: Booting, Phase: Executing, Turns: 2, Percent: 91, Context: gate.Dead, OverBudget: true, Estimate: Used{InputTokens: 7},
	}
	if s != want {
		t.Errorf("the summary is %+v; want %+v", s, want)
	}
	for _, r := range []Row{
		{Op: Turn}, {Op: Turn, Context: gate.Healthy}, {Op: Context, Context: "FULL"},
		{Op: Context, Percent: gate.MaxPercent + 1, Context: gate.Dead},
		{Op: Gate, Context: gate.Dead}, {Op: Gate, Kind: "car", Context: gate.Dead},
		{Op: Gate, Kind: Tool, Name: strings.Repeat("x", MaxName+1), Context: gate.Dead},
		{Op: Gate, Kind: Tool, Name: "\x1b", Context: gate.Dead},
		{Op: Gate, Kind: LLM, Used: &Used{InputTokens: maxCount + 1}, Context: gate.Dead},
	} {
		next, err := s.Next(r)
		if refusal := Refusal(""); !errors.As(err, &refusal) || next != s {
			t.Errorf("%+v: %v, and the summary is %+v", r, err, next)
		}
	}
}
