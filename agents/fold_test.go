package agents

import (
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	"pgregory.net/rapid"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

var t0 = time.Unix(1_800_000_000, 0).UTC()

// history makes an agent event by event.
type history struct {
	t *testing.T
	r Record
	// at is the time of the next event.
	at     time.Time
	events []*agboxv1.AgentEvent
}

// spawned begins the history of an agent.
func spawned(t *testing.T) *history {
	h := &history{t: t, at: t0}
	return h.add(&agboxv1.AgentEvent{
		AgentId: "a", Type: agboxv1.AgentEventType_AGENT_SPAWNED,
		Details: &agboxv1.AgentEvent_Spawned{Spawned: &agboxv1.AgentSpawned{Name: "a", Parent: Init, SandboxId: "s", Owned: true}},
	})
}

// add folds one more event, which must be legal.
func (h *history) add(ev *agboxv1.AgentEvent) *history {
	h.t.Helper()
	if !Legal(h.r, ev) {
		h.t.Fatalf("%v is not legal in %v", ev, h.r.State)
	}
	ev.Sequence, ev.OccurredAt = h.r.LastSequence+1, timestamppb.New(h.at)
	h.r = Fold(h.r, ev)
	h.events = append(h.events, ev)
	return h
}

func (h *history) begun() *history {
	h.t.Helper()
	n := h.r.Incarnations + 1
	return h.add(&agboxv1.AgentEvent{
		Type: agboxv1.AgentEventType_AGENT_BEGUN, Incarnation: n,
		Details: &agboxv1.AgentEvent_Begun{Begun: &agboxv1.AgentBegun{ExecId: ExecID("a", n), SandboxId: "s", Attempt: h.r.Crashes + 1}},
	})
}

func (h *history) phase(to agboxv1.AgentState) *history {
	h.t.Helper()
	return h.add(&agboxv1.AgentEvent{Type: agboxv1.AgentEventType_AGENT_PHASE, State: to, Incarnation: h.r.Incarnation.N})
}

// working is an agent with an incarnation that is EXECUTING.
func working(t *testing.T) *history { return spawned(t).begun().phase(Planning).phase(Executing) }

func (h *history) progress(input, cost, steps uint64) *history {
	h.t.Helper()
	return h.add(&agboxv1.AgentEvent{
		Type: agboxv1.AgentEventType_AGENT_PROGRESS,
		Details: &agboxv1.AgentEvent_Progress{Progress: &agboxv1.AgentProgress{
			Total: &agboxv1.AgentUsage{InputTokens: input, CostMicroUsd: cost}, Steps: steps,
		}},
	})
}

// context declares the context of the incarnation.
func (h *history) context(word agboxv1.AgentContext) *history {
	return h.add(&agboxv1.AgentEvent{
		Type: agboxv1.AgentEventType_AGENT_CONTEXT, Details: &agboxv1.AgentEvent_Gauge{Gauge: &agboxv1.AgentGauge{Context: word}},
	})
}

// refuse reports that a call to a model was refused, which would have cost 20 cents after
// 4.85 dollars.
func (h *history) refuse() *history {
	h.progress(1000, 4_850_000, 1)
	p := proto.CloneOf(h.r.Progress)
	p.Refused = &agboxv1.AgentUsage{CostMicroUsd: 200_000}
	return h.add(&agboxv1.AgentEvent{Type: agboxv1.AgentEventType_AGENT_PROGRESS, Details: &agboxv1.AgentEvent_Progress{Progress: p}})
}

func (h *history) pauseFor(reason agboxv1.PauseReason) *history {
	h.t.Helper()
	return h.add(&agboxv1.AgentEvent{
		Type:    agboxv1.AgentEventType_AGENT_PAUSED,
		Details: &agboxv1.AgentEvent_Pause{Pause: &agboxv1.AgentPause{Reason: reason, Message: "as asked"}},
	})
}

// endWith ends the incarnation.
func (h *history) endWith(end *agboxv1.IncarnationEnd) *history {
	h.t.Helper()
	return h.add(&agboxv1.AgentEvent{
		Type: agboxv1.AgentEventType_AGENT_INCARNATION_ENDED, Incarnation: h.r.Incarnation.N,
		Details: &agboxv1.AgentEvent_End{End: end},
	})
}

// crash ends the incarnation with 1 and folds what follows.
func (h *history) crash(message string) *history {
	h.t.Helper()
	h.endWith(&agboxv1.IncarnationEnd{Kind: exited, ExitCode: 1, Spoke: true, ErrorMessage: message})
	return h.add(Ending(h.r, rules()))
}

func exampleEvent(typ agboxv1.AgentEventType, r Record) *agboxv1.AgentEvent {
	ev := &agboxv1.AgentEvent{AgentId: "a", Type: typ, Sequence: r.LastSequence + 1, OccurredAt: timestamppb.New(t0)}
	switch typ {
	case agboxv1.AgentEventType_AGENT_BEGUN:
		ev.Incarnation = r.Incarnations + 1
	case agboxv1.AgentEventType_AGENT_INCARNATION_ENDED:
		if r.Incarnation != nil {
			ev.Incarnation = r.Incarnation.N
		}
	case agboxv1.AgentEventType_AGENT_RESUMED, agboxv1.AgentEventType_AGENT_MANIFEST:
		ev.Observation = r.PendingObservation()
	}
	return ev
}

// agentTypes are the event types of all agents but init.
func agentTypes() []agboxv1.AgentEventType {
	var types []agboxv1.AgentEventType
	for n := range len(agboxv1.AgentEventType_name) + 100 {
		typ := agboxv1.AgentEventType(n)
		if _, known := agboxv1.AgentEventType_name[int32(n)]; known && n != 0 && !ofInit(typ) {
			types = append(types, typ)
		}
	}
	return types
}

// examples are records in each state, with and without an incarnation.
func examples(t *testing.T) map[agboxv1.AgentState][]Record {
	all := map[agboxv1.AgentState][]Record{
		0:         {{}},
		Pending:   {spawned(t).r, spawned(t).begun().r},
		Planning:  {spawned(t).begun().phase(Planning).r},
		Executing: {working(t).r},
		Verifying: {working(t).phase(Verifying).r},
		Paused: {
			working(t).pauseFor(agboxv1.PauseReason_PAUSE_REASON_APPROVAL).r,
			working(t).pauseFor(agboxv1.PauseReason_PAUSE_REASON_APPROVAL).woken().r,
			working(t).crash("no").r,
		},
		Acquiring: {working(t).asks("db").r},
	}
	for state, records := range all {
		if r := records[len(records)-1]; r.Incarnation != nil {
			ended := exampleEvent(agboxv1.AgentEventType_AGENT_INCARNATION_ENDED, r)
			all[state] = append(records, Fold(r, ended))
		}
	}
	for _, state := range []agboxv1.AgentState{Completed, Aborted, Failed, DeadLetter} {
		h := working(t).endWith(&agboxv1.IncarnationEnd{Kind: exited})
		all[state] = []Record{h.add(ended(state, &agboxv1.AgentDone{})).r}
	}
	return all
}

// transitions writes the table of README.md from Legal and Fold.
func transitions(t *testing.T) string {
	columns := []agboxv1.AgentState{0, Pending, Planning, Acquiring, Executing, Verifying, Paused, Completed}
	table := new(strings.Builder)
	table.WriteString("| event | (none) | PENDING | PLANNING | ACQUIRING | EXECUTING | VERIFYING | PAUSED | over |\n|" + strings.Repeat("---|", 9) + "\n")
	all := examples(t)
	var rows []string // the cells of events, without repetition
	events := make(map[string][]string)
	for _, typ := range agentTypes() {
		cells := ""
		for _, column := range columns {
			cells += " " + cell(typ, column, all[column]) + " |"
		}
		if events[cells] == nil {
			rows = append(rows, cells)
		}
		events[cells] = append(events[cells], "`"+typ.String()+"`")
	}
	for _, cells := range rows {
		fmt.Fprintf(table, "| %s |%s\n", strings.Join(events[cells], ", "), cells)
	}
	return table.String()
}

func cell(typ agboxv1.AgentEventType, column agboxv1.AgentState, records []Record) string {
	var after []string
	note := func(word string) {
		for _, known := range after {
			if known == word {
				return
			}
		}
		after = append(after, word)
	}
	for _, r := range records {
		for target := range len(agboxv1.AgentState_name) {
			ev := exampleEvent(typ, r)
			ev.State = agboxv1.AgentState(target)
			if _, moving := moves[typ]; !moving && target > 0 || !Legal(r, ev) {
				continue
			}
			next := Fold(r, ev)
			switch {
			case next.Deleted:
				note("gone")
			case over(next.State) && !over(column):
				note("over")
			case next.State == column:
				note("=")
			default:
				note(stateWords[next.State])
			}
		}
	}
	return strings.Join(after, ", ")
}

func TestTransitionTableInTheDocumentIsTrue(t *testing.T) {
	raw, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(raw), "<!-- agent transitions: begin -->\n")
	table, _, found := strings.Cut(rest, "<!-- agent transitions: end -->")
	if want := transitions(t); !found || table != want {
		t.Errorf("the table in README.md does not match the rules; it should be:\n%s", want)
	}
}

func TestTheEndIsTheEnd(t *testing.T) {
	for state, records := range examples(t) {
		if !over(state) {
			continue
		}
		for _, typ := range agentTypes() {
			for target := range len(agboxv1.AgentState_name) {
				ev := exampleEvent(typ, records[0])
				ev.State = agboxv1.AgentState(target)
				if Legal(records[0], ev) && Fold(records[0], ev).State != state {
					t.Errorf("%v changes %v", typ, state)
				}
			}
		}
	}
}

func TestAReportOfAnEarlierIncarnationIsRefused(t *testing.T) {
	h := working(t).crash("no").begun()
	late := &agboxv1.AgentEvent{Type: agboxv1.AgentEventType_AGENT_CHECKPOINT, Incarnation: 1, Details: &agboxv1.AgentEvent_Checkpoint{Checkpoint: &agboxv1.AgentCheckpoint{Seq: 9}}}
	if Legal(h.r, late) {
		t.Error("a checkpoint of incarnation 1 is accepted while 2 runs")
	}
	late.Incarnation = 2
	if !Legal(h.r, late) {
		t.Error("a checkpoint of the running incarnation is refused")
	}
}

func TestAnIncarnationBeginsOnlyAfterTheEndOfTheOneBefore(t *testing.T) {
	begin := func(r Record) bool {
		return Legal(r, &agboxv1.AgentEvent{Type: agboxv1.AgentEventType_AGENT_BEGUN, Incarnation: r.Incarnations + 1})
	}
	end := func(r Record) bool {
		return Legal(r, &agboxv1.AgentEvent{Type: agboxv1.AgentEventType_AGENT_ENDED, State: Completed})
	}
	kill := &agboxv1.AgentEvent{Type: agboxv1.AgentEventType_AGENT_KILL_REQUESTED, Details: &agboxv1.AgentEvent_Kill{Kill: &agboxv1.AgentKill{}}}
	crash := &agboxv1.IncarnationEnd{Kind: exited, ExitCode: 1}
	for _, row := range []struct {
		name       string
		r          Record
		begin, end bool
	}{
		{"new", spawned(t).r, true, true},
		{"new, killed", spawned(t).add(kill).r, false, true},
		{"begun", spawned(t).begun().r, false, false},
		{"paused with its incarnation", working(t).pauseFor(forApproval).r, false, false},
		{"paused, its end undecided", working(t).pauseFor(forApproval).endWith(crash).r, false, true},
		{"crashed", working(t).crash("no").r, true, true},
	} {
		if begin(row.r) != row.begin || end(row.r) != row.end {
			t.Errorf("%s: may begin %v, may end %v; want %v, %v", row.name, begin(row.r), end(row.r), row.begin, row.end)
		}
	}
	if r := spawned(t).begun().r; Legal(r, &agboxv1.AgentEvent{Type: agboxv1.AgentEventType_AGENT_BEGUN, Incarnation: 1}) {
		t.Error("an incarnation begins twice")
	}
}

func TestFoldingAStreamTwiceChangesNothing(t *testing.T) {
	h := working(t).progress(1, 2, 3).crash("no").begun()
	twice := h.r
	for _, ev := range h.events {
		twice = Fold(twice, ev)
	}
	if !reflect.DeepEqual(twice, h.r) {
		t.Errorf("folded twice: %+v; once: %+v", twice, h.r)
	}
}

func TestFoldDoesNotChangeItsArgument(t *testing.T) {
	var before []Record
	full := working(t).progress(1, 2, 3).crash("one").begun().crash("two").begun().pauseFor(agboxv1.PauseReason_PAUSE_REASON_APPROVAL)
	var r, again Record
	for _, ev := range full.events {
		before = append(before, r)
		r = Fold(r, ev)
	}
	for i, ev := range full.events {
		if !reflect.DeepEqual(again, before[i]) {
			t.Fatalf("a later fold changed record %d", i)
		}
		again = Fold(again, ev)
	}
}

func TestAPauseIsShownByItsReason(t *testing.T) {
	for reason, want := range map[agboxv1.PauseReason]string{
		agboxv1.PauseReason_PAUSE_REASON_CRASH: "RETRYING", agboxv1.PauseReason_PAUSE_REASON_CONFLICT: "PAUSED",
		agboxv1.PauseReason_PAUSE_REASON_APPROVAL: "WAITING_FOR_APPROVAL", agboxv1.PauseReason_PAUSE_REASON_IDLE: "IDLE",
		agboxv1.PauseReason_PAUSE_REASON_UNHELD: "SUSPENDED", agboxv1.PauseReason_PAUSE_REASON_ORPHANED: "ORPHANED",
		agboxv1.PauseReason_PAUSE_REASON_REQUEST: "PAUSED",
	} {
		if got := working(t).pauseFor(reason).r.Word(); got != want {
			t.Errorf("%v is shown as %s; want %s", reason, got, want)
		}
	}
	if got := working(t).r.Word(); got != "EXECUTING" {
		t.Errorf("a working agent is shown as %s", got)
	}
}

// trimmed checks that the record is the same after each part, and returns the events that stay.
func trimmed(t interface{ Fatalf(string, ...any) }, events []*agboxv1.AgentEvent, keep int, since time.Time) []*agboxv1.AgentEvent {
	fold := func(events []*agboxv1.AgentEvent) (r Record) {
		for _, ev := range events {
			r = Fold(r, ev)
		}
		return r
	}
	want, left := fold(events), slices.Clone(events)
	for _, part := range Trim(events, keep, since) {
		if len(part) == 0 || len(part) > TrimPart {
			t.Fatalf("a part has %d events", len(part))
		}
		before := len(left)
		left = slices.DeleteFunc(left, func(ev *agboxv1.AgentEvent) bool { return slices.Contains(part, ev.GetSequence()) })
		if len(left) != before-len(part) {
			t.Fatalf("the part %v is not of these events", part)
		}
		if got := fold(left); !reflect.DeepEqual(got, want) {
			t.Fatalf("without %v the record is %+v instead of %+v", part, got, want)
		}
	}
	return left
}

func TestTrimmingNeverChangesTheRecord(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &world{t: t, rules: rules(), now: t0, sandbox: SandboxMaking, accepted: map[string]bool{}}
		w.rules.ReadyStart = rapid.Bool().Draw(t, "ready at start")
		w.emit(&agboxv1.AgentEvent{AgentId: "a", Type: agboxv1.AgentEventType_AGENT_SPAWNED, Details: &agboxv1.AgentEvent_Spawned{Spawned: &agboxv1.AgentSpawned{
			Owned: true, SandboxId: "s", Parent: "p", Lifetime: agboxv1.AgentLifetime(rapid.IntRange(1, 2).Draw(t, "lifetime")),
		}}})
		for range rapid.IntRange(0, 150).Draw(t, "moves") {
			w.interfere()
			if rapid.Bool().Draw(t, "lease") && w.r.Incarnation != nil {
				w.emit(w.lease())
			}
			for range rapid.IntRange(0, 3).Draw(t, "steps") {
				w.step()
			}
		}
		keep, since := rapid.IntRange(0, 20).Draw(t, "keep"), t0.Add(time.Duration(rapid.IntRange(-10, 5000).Draw(t, "since"))*time.Second)
		left := trimmed(t, w.log, keep, since)
		for i, ev := range w.log {
			stays := i == 0 || i >= len(w.log)-max(1, keep) || !ev.GetOccurredAt().AsTime().Before(since)
			if stays && !slices.Contains(left, ev) {
				t.Fatalf("%v was removed, with keep %d and since %v", ev, keep, since)
			}
		}
	})
}

// lease is an event about a resource, which may not be legal.
func (w *world) lease() *agboxv1.AgentEvent {
	return &agboxv1.AgentEvent{
		Type:     agboxv1.AgentEventType(rapid.IntRange(20, 24).Draw(w.t, "lease event")),
		Position: uint64(len(w.log)),
		Details: &agboxv1.AgentEvent_Lease{Lease: &agboxv1.AgentLeases{
			Leases:  []*agboxv1.AgentLease{{Resource: rapid.SampledFrom([]string{"x", "y"}).Draw(w.t, "resource")}},
			Verdict: agboxv1.LeaseVerdict(rapid.IntRange(1, 3).Draw(w.t, "verdict")),
		}},
	}
}

// TestTheEventsOfALongLifeAreFew: whatever an agent does again and again, little of it says
// something that is not said by a later event.
func TestTheEventsOfALongLifeAreFew(t *testing.T) {
	r, log := Record{}, []*agboxv1.AgentEvent(nil)
	add := func(ev *agboxv1.AgentEvent) {
		ev.AgentId, ev.Sequence, ev.OccurredAt = "a", r.LastSequence+1, timestamppb.New(t0.Add(time.Duration(len(log))*time.Second))
		ev.Position = ev.Sequence
		r, log = Fold(r, ev), append(log, ev)
	}
	add(&agboxv1.AgentEvent{Type: agboxv1.AgentEventType_AGENT_SPAWNED, Details: &agboxv1.AgentEvent_Spawned{Spawned: &agboxv1.AgentSpawned{SandboxId: "s"}}})
	lease := func(typ agboxv1.AgentEventType) {
		add(&agboxv1.AgentEvent{Type: typ, Details: &agboxv1.AgentEvent_Lease{Lease: &agboxv1.AgentLeases{Leases: []*agboxv1.AgentLease{{Resource: "x"}}}}})
	}
	for day := range uint32(20) {
		add(&agboxv1.AgentEvent{Type: agboxv1.AgentEventType_AGENT_BEGUN, Incarnation: day + 1, Details: &agboxv1.AgentEvent_Begun{Begun: &agboxv1.AgentBegun{ExecId: fmt.Sprint(day)}}})
		for hour := range uint64(24) {
			for _, phase := range []agboxv1.AgentState{Planning, Executing, Verifying} {
				add(&agboxv1.AgentEvent{Type: agboxv1.AgentEventType_AGENT_PHASE, State: phase, JournalUpto: hour + 1})
			}
			lease(agboxv1.AgentEventType_AGENT_MANIFEST)
			lease(agboxv1.AgentEventType_AGENT_GRANTED)
			lease(agboxv1.AgentEventType_AGENT_RELEASED)
			for word := range agboxv1.AgentLiveness(3) {
				add(&agboxv1.AgentEvent{Type: agboxv1.AgentEventType_AGENT_LIVENESS, Details: &agboxv1.AgentEvent_Gauge{Gauge: &agboxv1.AgentGauge{Liveness: word}}})
			}
			add(&agboxv1.AgentEvent{Type: agboxv1.AgentEventType_AGENT_PAUSED, Details: &agboxv1.AgentEvent_Pause{Pause: &agboxv1.AgentPause{Reason: forApproval}}})
			add(&agboxv1.AgentEvent{Type: agboxv1.AgentEventType_AGENT_WOKEN})
			add(&agboxv1.AgentEvent{Type: agboxv1.AgentEventType_AGENT_RESUMED, State: Executing})
		}
		add(&agboxv1.AgentEvent{Type: agboxv1.AgentEventType_AGENT_PROGRESS, Details: &agboxv1.AgentEvent_Progress{Progress: &agboxv1.AgentProgress{Steps: uint64(day) + 1}}})
		add(&agboxv1.AgentEvent{Type: agboxv1.AgentEventType_AGENT_INCARNATION_ENDED, Details: &agboxv1.AgentEvent_End{End: &agboxv1.IncarnationEnd{Kind: lost}}})
		add(&agboxv1.AgentEvent{Type: agboxv1.AgentEventType_AGENT_PAUSED, Details: &agboxv1.AgentEvent_Pause{Pause: &agboxv1.AgentPause{Reason: forOrphan}}})
	}
	const keep = 50
	if left := trimmed(t, log, keep, t0.Add(time.Hour*1000)); len(left) > keep+20 {
		t.Errorf("of %d events %d are left: %v", len(log), len(left), left[:len(left)-keep])
	}
}
