package ledger

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/store"
)

// fellow is an agent as the oracle of borders knows it. It uses nothing that the ledger says.
type fellow struct {
	id, name, parent, sandbox string
	// world is the sandbox whose border it is within, or "all", and group that or the root of
	// the stack that it is in.
	world, group string
	rows         uint64
}

func (f *fellow) inStack() bool { return f.group != f.world }

// borders is a random history of agents in three sandboxes, and in ones that were made for them.
type borders struct {
	*testing.T
	l                                  *Ledger
	r                                  *rand.Rand
	fellows                            []*fellow
	boxes                              map[string]string // the world of each sandbox
	texts                              int
	crossed, reached, granted, refused int
}

func (b *borders) any() *fellow { return b.fellows[b.r.IntN(len(b.fellows))] }

// reaches is the rule, written apart: the same group, kin, and init for those in no stack.
func (b *borders) reaches(from, to *fellow) bool {
	return from.group == to.group || from.parent == to.id || to.parent == from.id
}

func (b *borders) spawn() {
	f := &fellow{id: fmt.Sprint("agent", len(b.fellows)), name: []string{"", "x", "y"}[b.r.IntN(3)], parent: agents.Init}
	n := NewAgent{ID: f.id, Name: f.name, Spec: &agboxv1.AgentSpec{Name: f.name, Command: []string{"true"}}}
	sandboxes := make([]string, 0, len(b.boxes))
	for id := range b.boxes {
		sandboxes = append(sandboxes, id)
	}
	slices.Sort(sandboxes)
	f.sandbox = sandboxes[b.r.IntN(len(sandboxes))]
	f.world = b.boxes[f.sandbox]
	f.group = f.world
	switch other := sandboxes[b.r.IntN(len(sandboxes))]; b.r.IntN(8) {
	case 0:
		n.Reach, f.world, f.group = "all", "all", "all"
	case 1:
		n.Reach, f.world, f.group = "sandbox:"+other, b.boxes[other], b.boxes[other]
	case 2:
		if root := b.any(); root.group == root.id {
			n.Reach, f.world, f.group = "stack:"+root.id, root.world, root.group
		}
	case 3, 4, 5:
		p := b.any()
		n.Parent, f.parent, f.sandbox, f.world, f.group = p.id, p.id, p.sandbox, p.world, p.group
	}
	if b.r.IntN(5) == 0 {
		n.Spec.Stack = &agboxv1.AgentStack{Name: []string{"team", "den"}[b.r.IntN(2)]}
		f.group = f.id
	}
	if b.r.IntN(4) == 0 {
		f.sandbox = "agent-" + f.id
		n.Own = &agboxv1.CreateSpec{Image: "img"}
		if n.Reach == "" && n.Parent == "" {
			inStack := f.group == f.id
			if f.world = f.sandbox; !inStack {
				f.group = f.world
			}
		}
	}
	n.SandboxID = f.sandbox
	taken := slices.ContainsFunc(b.fellows, func(o *fellow) bool {
		return f.name != "" && o.name == f.name && (o.world == f.world || o.parent == agents.Init && f.parent == agents.Init)
	})
	_, err := b.l.SpawnAgent(b.Context(), n)
	switch {
	case fault.ReasonOf(err) == agboxv1.ErrorReason_AGENT_LIMIT:
		return // too deep
	case taken:
		if fault.ReasonOf(err) != agboxv1.ErrorReason_AGENT_ID_ALREADY_EXISTS {
			b.Fatalf("the name %q is taken, and %v: %v", f.name, n, err)
		}
		return
	case err != nil:
		b.Fatalf("%v: %v", n, err)
	}
	if n.Own != nil {
		b.boxes[f.sandbox] = f.world
		if f.world == "all" {
			b.boxes[f.sandbox] = f.sandbox
		}
	}
	works(b.T, b.l, f.id)
	b.fellows = append(b.fellows, f)
}

// works begins the first incarnation of an agent.
func works(t *testing.T, l *Ledger, id string) {
	t.Helper()
	a := now(t, l, id)
	ev := begun(1)
	ev.GetBegun().ExecId, ev.GetBegun().SandboxId = agents.ExecID(id, 1), a.SandboxID
	a = emitAgent(t, l, a.Record, ev)
	for _, state := range []agboxv1.AgentState{agents.Planning, agents.Executing} {
		a = emitAgent(t, l, a.Record, &agboxv1.AgentEvent{Type: agboxv1.AgentEventType_AGENT_PHASE, Incarnation: 1, State: state})
	}
}

// report sends one message, and returns its text.
func (b *borders) report(from *fellow, to, stream string) string {
	b.Helper()
	b.texts++
	from.rows++
	text := fmt.Sprintf("text %d.", b.texts)
	_, err := b.l.RecordReports(b.Context(), from.id, Reports{
		Events: []*agboxv1.AgentEvent{progressed(from.rows, uint64(b.texts))}, Sent: []Sent{{Row: from.rows, To: to, Stream: stream, Text: text}},
	})
	if err != nil {
		b.Fatal(err)
	}
	return text
}

// arrived returns who has a text.
func (b *borders) arrived(text string) (ids []string) {
	for _, id := range append(b.ids(), agents.Init) {
		if slices.ContainsFunc(texts(b.T, b.l, id), func(m string) bool { return strings.HasSuffix(m, text) }) {
			ids = append(ids, id)
		}
	}
	return ids
}

func (b *borders) ids() (ids []string) {
	for _, f := range b.fellows {
		ids = append(ids, f.id)
	}
	return ids
}

// want checks who has got a message.
func (b *borders) want(what string, from *fellow, text string, fits func(*fellow) bool, init bool) {
	b.Helper()
	var want []string
	for _, f := range b.fellows {
		if fits(f) {
			want = append(want, f.id)
		}
	}
	if init {
		want = append(want, agents.Init)
	}
	b.reached += len(want)
	if got := b.arrived(text); !slices.Equal(got, want) {
		b.Fatalf("%s of %+v went to %v; want %v", what, *from, got, want)
	}
}

func (b *borders) send() {
	from, to := b.any(), b.any()
	switch b.r.IntN(5) {
	case 0:
		b.want("a message to init", from, b.report(from, agents.Init, ""), func(*fellow) bool { return false }, !from.inStack() || from.parent == agents.Init)
	case 1:
		stream := []string{"news", "more"}[b.r.IntN(2)]
		if _, err := b.l.OpenStream(b.Context(), to.id, stream); err != nil {
			b.Fatal(err)
		}
		text := b.report(from, "", stream)
		b.want("a message on "+stream, from, text, func(f *fellow) bool {
			a, _ := b.l.Agent(f.id)
			return f != from && f.group == from.group && a.Opens(stream)
		}, false)
	case 2:
		if to.name == "" {
			return
		}
		text := b.report(from, to.name, "")
		b.want("a message to the name "+to.name, from, text, func(f *fellow) bool { return f.name == to.name && (b.reaches(from, f) || f == from) }, false)
	default:
		text := b.report(from, to.id, "")
		b.want("a message to "+to.id, from, text, func(f *fellow) bool { return f == to && (b.reaches(from, to) || from == to) }, false)
		if b.reaches(from, to) || from.world == to.world {
			return
		}
		b.crossed++
		bounces := texts(b.T, b.l, from.id)
		there := strings.ReplaceAll(bounces[len(bounces)-1], to.id, "nobody")
		b.report(from, "nobody", "")
		bounces = texts(b.T, b.l, from.id)
		_, there, _ = strings.Cut(there, " ")
		if _, absent, _ := strings.Cut(bounces[len(bounces)-1], " "); there != absent {
			b.Fatalf("an agent beyond the border is told by %q, one that does not exist by %q", there, absent)
		}
	}
}

func (b *borders) lease() {
	f := b.any()
	a, _ := b.l.Agent(f.id)
	if len(a.Holds) > 0 || b.r.IntN(3) == 0 {
		if _, err := b.l.ReleaseLeases(b.Context(), a.Record, nil); err != nil && fault.ReasonOf(err) == 0 {
			b.Fatal(err)
		}
		return
	}
	_, answer, err := b.l.AcquireLeases(b.Context(), a.Record, exclusive("file:/a"), a.PendingObservation())
	if err != nil {
		b.Fatal(err)
	}
	if answer.Verdict != granted {
		b.refused++
	} else {
		b.granted++
	}
	for _, id := range answer.Blockers {
		if other := b.fellows[slices.Index(b.ids(), id)]; other.group != f.group {
			b.Fatalf("%+v is stopped by %+v", *f, *other)
		}
	}
	if answer.Verdict != granted && !slices.ContainsFunc(b.fellows, func(o *fellow) bool {
		other, _ := b.l.Agent(o.id)
		return o != f && o.group == f.group && len(other.Holds)+len(other.Wants) > 0
	}) {
		b.Fatalf("%+v gets %v, and nobody who shares its resources has any", *f, answer)
	}
	holders := make(map[string]string)
	for _, o := range b.fellows {
		if other, _ := b.l.Agent(o.id); len(other.Holds) > 0 {
			if holders[o.group] != "" {
				b.Fatalf("%s and %s hold the same", holders[o.group], o.id)
			}
			holders[o.group] = o.id
		}
	}
}

// TestNothingCrossesABorderThatWasNotOpened: messages by id, name and stream, leases and names, in
// random histories of agents in several sandboxes, stacks and trees.
func TestNothingCrossesABorderThatWasNotOpened(t *testing.T) {
	var sum borders
	for seed := range uint64(12) {
		l, stop := open(t, t.TempDir())
		b := &borders{T: t, l: l, r: rand.New(rand.NewPCG(seed, 24)), boxes: make(map[string]string)}
		for _, id := range []string{"one", "two", "three"} {
			ready(t, l, id)
			b.boxes[id] = id
		}
		for range 90 {
			switch n := b.r.IntN(6); {
			case n < 2 || len(b.fellows) == 0:
				b.spawnFirst()
			case n < 5:
				b.send()
			default:
				b.lease()
			}
		}
		sum.crossed, sum.reached, sum.granted, sum.refused = sum.crossed+b.crossed, sum.reached+b.reached, sum.granted+b.granted, sum.refused+b.refused
		stop()
	}
	if min(sum.crossed, sum.reached, sum.granted, sum.refused) < 10 {
		t.Errorf("%d messages were for agents beyond a border, %d were delivered; %d leases were granted, %d refused", sum.crossed, sum.reached, sum.granted, sum.refused)
	}
}

// spawnFirst spawns an agent; the first one has no other to be the child of.
func (b *borders) spawnFirst() {
	if len(b.fellows) > 0 {
		b.spawn()
		return
	}
	b.fellows = append(b.fellows, &fellow{id: "agent0", parent: agents.Init, sandbox: "one", world: "one", group: "one"})
	spawn(b, b.l, agentOf("agent0", "", "one"))
	works(b.T, b.l, "agent0")
}

// sendAs sends as a client of the ledger, with what an agent's message has.
func sendAs(t *testing.T, l *Ledger, from, to, text string) agboxv1.ErrorReason {
	t.Helper()
	a, _ := l.Agent(from)
	rows := uint64(1)
	if a.Incarnation != nil {
		rows = a.Incarnation.JournalUpto + 1
	}
	before := l.Unread(to)
	if _, err := l.RecordReports(t.Context(), from, Reports{Events: []*agboxv1.AgentEvent{progressed(rows, rows)}, Sent: []Sent{{Row: rows, To: to, Text: text}}}); err != nil {
		t.Fatal(err)
	}
	if l.Unread(to) > before {
		return 0
	}
	return agboxv1.ErrorReason_INBOX_FULL
}

// TestAgentsFillOnlyTheirPartOfAnInbox: one a quarter of the room of agents, those of one sandbox
// half of it, all together no room of users and of agbox itself.
func TestAgentsFillOnlyTheirPartOfAnInbox(t *testing.T) {
	dir := t.TempDir()
	l, stop := open(t, dir)
	for _, id := range []string{"s", "other"} {
		ready(t, l, id)
	}
	for _, n := range []NewAgent{agentOf("a", "", "s"), agentOf("b", "", "s"), agentOf("c", "", "s"), agentOf("d", "", "other"), agentOf("e", "", "other")} {
		spawn(t, l, n)
		works(t, l, n.ID)
	}
	flood := func(from string, text string) (sent int) {
		t.Helper()
		for sendAs(t, l, from, agents.Init, text) == 0 {
			sent++
		}
		return sent
	}
	for _, row := range []struct {
		from string
		want int
	}{{"a", maxInbox / oneAgent}, {"b", maxInbox/oneSandbox - maxInbox/oneAgent}, {"c", 0}, {"d", maxInbox / oneAgent}} {
		if got := flood(row.from, "x"); got != row.want {
			t.Errorf("%s had room for %d; want %d", row.from, got, row.want)
		}
	}
	stop()
	l, stop = open(t, dir)
	defer stop()
	if got := flood("a", "x") + flood("c", "x"); got != 0 {
		t.Errorf("after a restart there is room for %d more", got)
	}
	if got := flood("e", "x"); got != maxInbox/oneAgent {
		t.Errorf("the last one had room for %d", got)
	}
	for range 20 {
		send(t, l, agents.Init, "", "of the operator")
	}
	err := l.store.Update(t.Context(), func(tx *store.Tx) error {
		return l.deliver(tx, agents.Init, &agboxv1.AgentMessage{Kind: agboxv1.MessageKind_MESSAGE_KIND_CHILD, From: "a", Body: "{}"})
	})
	if err != nil {
		t.Errorf("a message of agbox itself: %v", err)
	}
	list, _, err := l.Messages(t.Context(), "a", 0, 1<<20)
	if last := list[len(list)-1]; err != nil || !strings.Contains(last.GetText(), "250 messages of 500 bytes from this agent") {
		t.Errorf("the sender is told %q, %v", last.GetText(), err)
	}
	if err := l.Acknowledge(t.Context(), agents.Init, 10); err != nil { // ten of a
		t.Fatal(err)
	}
	if got := flood("a", "x"); got != 10 {
		t.Errorf("after the acknowledgement of ten there is room for %d", got)
	}
	newest, _ := l.NewestMessage(t.Context(), agents.Init)
	if err := l.Acknowledge(t.Context(), agents.Init, newest); err != nil || len(l.mail.shares[agents.Init]) != 0 {
		t.Errorf("an empty inbox has the parts %v, %v", l.mail.shares[agents.Init], err)
	}
	long := strings.Repeat("x", maxMessage)
	if a, b, c := flood("a", long), flood("b", long), flood("c", long); a > 4 || a+b+c > 8 || b == 0 {
		t.Errorf("long messages: %d, %d and %d", a, b, c)
	}
	send(t, l, agents.Init, "", long)
}

// TestAStackIsJoinedOnlyIfItsNameMeansOne: a stack of the same name elsewhere is
// another one, and is never joined unseen.
func TestAStackIsJoinedOnlyIfItsNameMeansOne(t *testing.T) {
	l := fresh(t)
	for _, id := range []string{"s", "other", "third"} {
		ready(t, l, id)
	}
	root := agentOf("root", "", "s")
	root.Spec.Stack = &agboxv1.AgentStack{Name: "team", Agents: 2}
	spawn(t, l, root)
	joins := agentOf("joins", "", "other")
	joins.Reach = "stack:team"
	if a := spawn(t, l, joins); a.Stack != "team" || a.StackRoot() != "root" || a.World() != "sandbox:s" {
		t.Errorf("it is in %q %v", a.Stack, a.StackRoots)
	}
	if a := spawn(t, l, joins); a.ID != "joins" {
		t.Error("a repeated request made another one")
	}
	joins.Reach = "all"
	_, err := l.SpawnAgent(t.Context(), joins)
	wantReason(t, err, agboxv1.ErrorReason_AGENT_ID_ALREADY_EXISTS)
	more := agentOf("more", "", "other")
	more.Reach = "stack:root"
	_, err = l.SpawnAgent(t.Context(), more)
	wantReason(t, err, agboxv1.ErrorReason_AGENT_LIMIT)
	root.ID, root.SandboxID = "impostor", "third"
	spawn(t, l, root)
	more.Reach = "stack:team"
	_, err = l.SpawnAgent(t.Context(), more)
	wantReason(t, err, agboxv1.ErrorReason_INVALID_REQUEST)
	more.Reach = "stack:none"
	_, err = l.SpawnAgent(t.Context(), more)
	wantReason(t, err, agboxv1.ErrorReason_AGENT_NOT_FOUND)
	more.Reach = "sandbox:none"
	_, err = l.SpawnAgent(t.Context(), more)
	wantReason(t, err, agboxv1.ErrorReason_SANDBOX_NOT_FOUND)
}

// TestARepeatedSpawnHasTheSameReach: another reach is another request, also if it is the default
// or names what is gone by now.
func TestARepeatedSpawnHasTheSameReach(t *testing.T) {
	l := fresh(t)
	ready(t, l, "s")
	for i, reach := range []string{"", agents.AllReached, "sandbox:s"} {
		n := agentOf(fmt.Sprint("agent", i), "", "s")
		n.Reach = reach
		spawn(t, l, n)
		for _, again := range []string{"", agents.AllReached, "sandbox:s", "sandbox:gone", "stack:gone"} {
			n.Reach = again
			if _, err := l.SpawnAgent(t.Context(), n); again == reach && err != nil {
				t.Errorf("the same request with %q: %v", reach, err)
			} else if again != reach && fault.ReasonOf(err) != agboxv1.ErrorReason_AGENT_ID_ALREADY_EXISTS {
				t.Errorf("spawned with %q, asked again with %q: %v", reach, again, err)
			}
		}
	}
}
