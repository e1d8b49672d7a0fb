package ledger

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/agents"
)

// borderlessFixture is a database that a daemon wrote for which sandboxes were no borders (its
// commit is ec96f76). Sandboxes are s, other, third and those of agents. All agents but top work:
//
//   - elder and old2 in other, old1 in s, lone in third; old1 holds "db", for which elder waits
//     and old2 and lone died;
//   - akid, a child of old1 with a sandbox of its own, and aguest, which a user spawned into that;
//   - boss in s, the root of stack team, with the child amember in s;
//   - orphan with a sandbox of its own, whose parent top was in s, has ended and was removed.
const borderlessFixture = "testdata/borderless.db"

// openBorderless opens a copy of the fixture. The folder has the copy.
func openBorderless(t *testing.T) (l *Ledger, dir string, stop func()) {
	t.Helper()
	dir = t.TempDir()
	raw, err := os.ReadFile(borderlessFixture)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "ids.db"), raw, 0o600); err != nil {
		t.Fatal(err)
	}
	l, stop = open(t, dir)
	return l, dir, stop
}

// TestAgentsFromBeforeSandboxesWereBordersAreWithinThem: each is within the border that it would
// have got, so what it has in common with agents of its sandbox, also with new ones, and with
// those of others it has nothing.
func TestAgentsFromBeforeSandboxesWereBordersAreWithinThem(t *testing.T) {
	l, dir, stop := openBorderless(t)
	spawn(t, l, agentOf("new", "", "s"))
	works(t, l, "new")
	near := agentOf("near", "", "agent-akid")
	spawn(t, l, near)
	child := agentOf("bkid", "", "other")
	child.Parent = "old2"
	spawn(t, l, child)
	want := map[string]string{
		"elder": "[sandbox:other]", "old1": "[sandbox:s]", "old2": "[sandbox:other]", "lone": "[sandbox:third]",
		"akid": "[sandbox:s]", "aguest": "[sandbox:s]", "boss": "[sandbox:s boss]", "amember": "[sandbox:s boss]", "orphan": "[sandbox:s]",
		"new": "[sandbox:s]", "near": "[sandbox:s]", "bkid": "[sandbox:other]",
	}
	check := func() {
		t.Helper()
		got := make(map[string]string)
		for _, a := range l.Living() {
			got[a.ID] = fmt.Sprint(a.StackRoots)
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("the borders are\n%v; want\n%v", got, want)
		}
	}
	check()
	for _, row := range []struct {
		from, to string
		reaches  bool
	}{
		{"old1", "new", true}, {"new", "old1", true}, {"orphan", "new", true}, {"aguest", "old1", true}, {"old1", "old2", false},
		{"akid", "old2", false}, {"new", "old2", false}, {"elder", "old2", true}, {"amember", "new", false}, {"lone", agents.Init, true},
	} {
		if got := sendAs(t, l, row.from, row.to, "x") == 0; got != row.reaches {
			t.Errorf("%s to %s: %v", row.from, row.to, got)
		}
	}
	acquires(t, l, "new", dies, "db") // old1 has it
	stop()
	l, stop = open(t, dir)
	defer stop()
	check()
}

// TestLeasesFromBeforeSandboxesWereBordersAreOfSandboxes: who waited for an agent of another
// sandbox gets what it waited for, and who died for one asks again.
func TestLeasesFromBeforeSandboxesWereBordersAreOfSandboxes(t *testing.T) {
	l, _, stop := openBorderless(t)
	defer stop()
	var got []string
	for _, e := range l.Leases("") {
		got = append(got, fmt.Sprint(e.GetScope(), " ", e.GetAgentId(), " ", strings.TrimPrefix(e.GetVerdict().String(), "LEASE_VERDICT_")))
	}
	slices.Sort(got)
	want := []string{"sandbox:other elder GRANTED", "sandbox:other old2 DIE", "sandbox:s old1 GRANTED", "sandbox:third lone DIE"}
	if !slices.Equal(got, want) {
		t.Errorf("the leases are %q; want %q", got, want)
	}
	for id, woken := range map[string]bool{"elder": true, "old2": false, "lone": true} {
		if a := now(t, l, id); a.State != agents.Paused || a.Pause.Woken != woken {
			t.Errorf("%s is %s, woken: %v; want %v", id, a.Word(), a.Pause.Woken, woken)
		}
	}
	nothingIsLeft(t, l)
	position := l.NewestOfAgents()
	if err := l.openAgents(t.Context()); err != nil || l.NewestOfAgents() != position {
		t.Errorf("a second start adds events %d to %d, %v", position, l.NewestOfAgents(), err)
	}
}

// TestAnAgentThatReachesAllIsNotTakenForOneFromBefore: its event says what it reaches.
func TestAnAgentThatReachesAllIsNotTakenForOneFromBefore(t *testing.T) {
	dir := t.TempDir()
	l, stop := open(t, dir)
	ready(t, l, "s")
	n := agentOf("free", "", "s")
	n.Reach = agents.AllReached
	n.Spec.Stack = &agboxv1.AgentStack{Name: "team"}
	spawn(t, l, n)
	kid := agentOf("kid", "", "s")
	kid.Parent = "free"
	spawn(t, l, kid)
	n.ID, n.Spec.Stack = "mate", nil
	spawn(t, l, n)
	stop()
	l, stop = open(t, dir)
	defer stop()
	for id, scope := range map[string]string{"free": "stack:free", "kid": "stack:free", "mate": "all"} {
		if a := now(t, l, id); a.Scope() != scope || a.World() != "" || a.StackRoots[0] != agents.Everywhere {
			t.Errorf("%s is within %v with the scope %s; want %s", id, a.StackRoots, a.Scope(), scope)
		}
	}
}
