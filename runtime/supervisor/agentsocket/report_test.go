package agentsocket

import (
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agbox/agbox/agents/journal"
)

func TestABeatWithAllItsFields(t *testing.T) {
	s, dir := server(t)
	a, err := s.Begin(Boot{ExecID: "e", AgentID: "agent", Number: 1, Hostname: "box"})
	if err != nil {
		t.Fatal(err)
	}
	p := dial(t, a)
	beat := func(fields string) reply {
		return p.ask(`{"type":"heartbeat","timestamp":"2025-01-01T00:00:00.000Z",%s"currentStep":3,"metrics":{"heapUsedMb":120,"uptimeSeconds":5,"stepsCompleted":3,"llmCallsTotal":9,"toolCallsTotal":4},"token":%q}`, fields, a.token)
	}
	for _, fields := range []string{``, `"agentId":"agent","jobId":"agent","podName":"e",`, `"podName":"box",`, `"lifecycleState":"BOOTING",`, `"lifecycleState":"HYDRATING",`} {
		if r := beat(fields); !r.OK {
			t.Errorf("%s: %+v", fields, r)
		}
	}
	for _, fields := range []string{`"agentId":"other",`, `"jobId":"other",`, `"podName":"agent",`, `"lifecycleState":"BOOTING",`, `"lifecycleState":"DANCING",`} {
		if r := beat(fields); r.OK || r.Error.Code != codeReport {
			t.Errorf("%s: %+v", fields, r)
		}
	}
	if got := summary(t, dir, "e"); got.Rows != 2 || got.Lifecycle != journal.Hydrating {
		t.Errorf("the journal has %+v; want a beat and a state", got)
	}
	if got := summary(t, dir, "e").Totals; got != (journal.Totals{InStep: true, Step: 3, Steps: 3, LLMCalls: 9, ToolCalls: 4}) {
		t.Errorf("the journal has the totals %+v", got)
	}
	heap := func() uint64 {
		s.mu.Lock()
		defer s.mu.Unlock()
		if used := s.byToken[a.token].news(time.Now()).HeapUsedMB; used != nil {
			return *used
		}
		return 0
	}
	if got := heap(); got != 120 {
		t.Errorf("the news have a heap of %d MB", got)
	}
	for value, want := range map[string]uint64{"-1": 0, "1e300": maxHeap, "2.6": 3} {
		if r := p.ask(`{"op":"beat","metrics":{"heapUsedMb":%s},"token":%q}`, value, a.token); !r.OK || heap() != want {
			t.Errorf("a beat with %s: %+v, %d", value, r, heap())
		}
	}
	if r := p.ask(`{"type":"other","token":%q}`, a.token); r.OK || r.Error.Code != codeOp {
		t.Errorf("another type: %+v", r)
	}
}

func TestAProgramThatOnlyBeatsSaysInWhichStateItIs(t *testing.T) {
	s, dir := server(t)
	a := begin(t, s, "e")
	p := dial(t, a)
	beat := func(state string, step, calls string) {
		t.Helper()
		r := p.ask(`{"type":"heartbeat","timestamp":"2025-01-01T00:00:00.000Z","agentId":"agent","jobId":"agent","lifecycleState":%q,"currentStep":%s,"metrics":{"heapUsedMb":120.5,"uptimeSeconds":5.5,"stepsCompleted":0,"llmCallsTotal":%s,"toolCallsTotal":4.0},"token":%q}`, state, step, calls, a.token)
		if !r.OK {
			t.Errorf("a beat in %s: %+v", state, r)
		}
	}
	beat("BOOTING", "null", "0")
	beat("EXECUTING", "0", "0")
	before := summary(t, dir, "e")
	if before.Rows != 5 || before.Lifecycle != journal.Executing || !before.Totals.InStep || before.Totals.ToolCalls != 4 {
		t.Errorf("the journal has %+v", before)
	}
	beat("EXECUTING", "0", "0")
	beat("EXECUTING", "0", "-1")
	if got := summary(t, dir, "e"); got != before {
		t.Errorf("beats without news made it %+v; want %+v", got, before)
	}
	_, write := s.Drain("e", func(string) time.Time { return time.Now().Add(time.Hour) })
	write()
	beat("EXECUTING", "1", "1e300") // has not noticed the drain
	if got := summary(t, dir, "e"); got.Lifecycle != journal.Draining || got.Totals.Step != 1 || got.Totals.LLMCalls != maxTotal {
		t.Errorf("during a drain it is %+v", got)
	}
}

// gave reports a call whose result follows its end. The line end after it belongs to it.
func (p *peer) gave(a *Access, id, fields, result string) reply {
	p.t.Helper()
	if r := p.ask(`{"op":"call","call":"begin","kind":"tool","name":"x","invocation":%q,"token":%q}`, id, a.token); !r.OK {
		p.t.Fatal(r)
	}
	return p.ask(`{"op":"call","call":"end","invocation":%q,"token":%q,"bytes":%d%s}`+"\n%s", id, a.token, len(result)+1, fields, result)
}

// TestALongResultIsInAFile as a whole, if there is room, and its beginning is in the journal anyway.
func TestALongResultIsInAFile(t *testing.T) {
	s, dir := server(t)
	a := begin(t, s, "e")
	p := dial(t, a)
	short, long := strings.Repeat("s", journal.MaxResult-1), strings.Repeat("long", 50_000)
	huge, most := strings.Repeat("h", journal.MaxResultFile), strings.Repeat("m", journal.MaxResultFile-1)
	for _, call := range []struct{ id, fields, result string }{
		{"short", "", short}, {"long", "", long}, {"other", "", "other" + long}, {"part", `,"result_bytes":1000000`, long}, {"huge", "", huge}, {"most", "", most}, {"full", "", most},
	} {
		if r := p.gave(a, call.id, call.fields, call.result); !r.OK {
			t.Fatalf("%s: %+v", call.id, r)
		}
	}
	if r := p.gave(a, "twice", `,"result":"x"`, "y"); r.OK || r.Error.Code != codeBad {
		t.Errorf("with two results: %+v", r)
	}
	if r := p.ask(`{"op":"hello","token":%q}`, a.token); !r.OK {
		t.Errorf("the request after it: %+v", r)
	}
	file, err := dir.OpenJournal("e")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	results, err := dir.OpenResults("e")
	if err != nil {
		t.Fatal(err)
	}
	defer results.Close()
	var got []string
	if _, err := journal.Beginning().Read(file, func(r journal.Row, _ journal.Summary) {
		if r.Phase != journal.End {
			return
		}
		in := "beginning"
		if f := r.ResultFile; f != nil {
			all, err := io.ReadAll(io.NewSectionReader(results, int64(f.At), int64(*r.ResultBytes)))
			if err != nil || uint64(len(all)) != *r.ResultBytes || crc32.ChecksumIEEE(all) != f.CRC32 || !strings.HasPrefix(string(all), string(r.Result)) || !slices.Contains([]string{long, "other" + long, most}, strings.TrimSuffix(string(all), "\n")) {
				t.Errorf("%s has another result in the file, of %d bytes, %v", r.Invocation, len(all), err)
			}
			in = "file"
		}
		got = append(got, fmt.Sprint(r.Invocation, " ", len(r.Result), " ", *r.ResultBytes, " ", in))
	}); err != nil {
		t.Fatal(err)
	}
	const head = journal.MaxResult
	want := []string{
		fmt.Sprint("short ", head, " ", head, " beginning"), fmt.Sprint("long ", head, " 200001 file"), fmt.Sprint("other ", head, " 200006 file"), fmt.Sprint("part ", head, " 1000000 beginning"),
		fmt.Sprint("huge ", head, " ", journal.MaxResultFile+1, " beginning"), fmt.Sprint("most ", head, " ", journal.MaxResultFile, " file"), fmt.Sprint("full ", head, " ", journal.MaxResultFile, " beginning"),
	}
	if !slices.Equal(got, want) {
		t.Errorf("the journal has %q; want %q", got, want)
	}
}

// TestAResultThatIsTooLargeEndsItsConnection, as it is not read.
func TestAResultThatIsTooLargeEndsItsConnection(t *testing.T) {
	s, _ := server(t)
	a := begin(t, s, "e")
	p := dial(t, a)
	if r := p.ask(`{"op":"call","call":"end","invocation":"x","token":%q,"bytes":%d}`, a.token, maxResultBody+1); r.OK || r.Error.Code != codeLarge {
		t.Errorf("%+v", r)
	}
}

// A result that does not come whole is a mistake of the program.
func TestAResultThatIsCutShortIsABadRequest(t *testing.T) {
	s, _ := server(t)
	a := begin(t, s, "e")
	p := owned(t, a, 1)[0]
	p.send(`{"op":"call","token":%q,"call":"end","invocation":"1","bytes":4}`, a.token)
	if err := p.Conn.(*net.UnixConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if r := p.answer(); r.Error.Code != codeBad || !strings.Contains(r.Error.Message, "Fewer bytes followed the line than the 4 it says") {
		t.Errorf("the answer: %+v", r)
	}
	p.ended()
}
