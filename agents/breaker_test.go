package agents

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"
	"pgregory.net/rapid"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// class simulates the agents of one class and init, as the ledger does.
type class struct {
	root   Record
	agents map[string]Record
	limits BreakerLimits
	now    time.Time
	// log has the events of init after the first.
	log []string
}

func newClass(limits BreakerLimits) *class {
	c := &class{agents: make(map[string]Record), limits: limits, now: t0}
	c.root = Fold(c.root, &agboxv1.AgentEvent{Sequence: 1, AgentId: Init, Type: agboxv1.AgentEventType_AGENT_SPAWNED, Details: &agboxv1.AgentEvent_Spawned{Spawned: &agboxv1.AgentSpawned{Name: Init}}})
	return c
}

func (c *class) breaker() Breaker { return c.root.Breakers["c"] }

// change replaces an agent and folds what follows into init.
func (c *class) change(t interface{ Fatalf(string, ...any) }, after Record) {
	before := c.agents[after.ID]
	c.agents[after.ID] = after
	for _, ev := range c.breaker().After(before, after, c.limits, c.now) {
		if !Legal(c.root, ev) {
			t.Fatalf("%v is not legal", ev)
		}
		ev.Sequence, ev.OccurredAt = c.root.LastSequence+1, timestamppb.New(c.now)
		c.root = Fold(c.root, ev)
		word := strings.TrimPrefix(strings.TrimPrefix(ev.GetType().String(), "AGENT_"), "BREAKER_")
		c.log = append(c.log, strings.TrimSpace(word+" "+ev.GetBreaker().GetAgentId()))
	}
}

// begin begins a new agent if the breaker admits it.
func (c *class) begin(t interface{ Fatalf(string, ...any) }, id string) bool {
	fresh := Record{ID: id, Class: "c", State: Pending}
	c.agents[id] = fresh
	if !c.breaker().Admits(id, c.now) {
		return false
	}
	fresh.Incarnations = 1
	c.change(t, fresh)
	return true
}

func (c *class) crash(t interface{ Fatalf(string, ...any) }, id string) {
	r := c.agents[id]
	r.State = Paused
	r.Crashes++
	c.change(t, r)
}

func (c *class) end(t interface{ Fatalf(string, ...any) }, id string, state agboxv1.AgentState, errorCode string) {
	r := c.agents[id]
	r.State, r.Done = state, &agboxv1.AgentDone{ErrorCode: errorCode}
	c.change(t, r)
}

func TestTheBreakerOfAClass(t *testing.T) {
	notReady := agboxv1.ErrorReason_SANDBOX_NOT_READY.String()
	opened := "crash a; crash b; crash c; wait 30m; "
	const log = "CLASS_CRASHED a, CLASS_CRASHED b, CLASS_CRASHED c, OPENED c"
	for _, row := range []struct{ does, log string }{
		{"crash a; crash b; begin n", "CLASS_CRASHED a, CLASS_CRASHED b"},
		{"crash a; crash a; crash a; crash a; begin n", "CLASS_CRASHED a, CLASS_CRASHED a, CLASS_CRASHED a, CLASS_CRASHED a"},
		{"crash a; crash b; crash c; refused n", log},
		{"crash a; wait 14m59s; crash b; crash c; refused n", log},
		{"crash a; wait 15m; crash b; crash c; begin n", "CLASS_CRASHED a, CLASS_CRASHED b, CLASS_CRASHED c"},
		{"crash a; crash b; crash c; crash d; wait 29m59s; refused n", log + ", CLASS_CRASHED d"},
		{opened + "begin n; refused m; crash a; refused m", log + ", CANARY n, CLASS_CRASHED a"},
		{opened + "begin n; complete n; begin m; begin o; crash m; begin p", log + ", CANARY n, CLOSED n, CLASS_CRASHED m"},
		{opened + "begin n; crash n; wait 29m59s; refused m; wait 1s; begin m; refused o", log + ", CANARY n, CLASS_CRASHED n, OPENED n, CANARY m"},
		{opened + "begin n; fail n; refused m", log + ", CANARY n, OPENED n"},
		{opened + "begin n; kill n; begin m; refused o", log + ", CANARY n, CANARY, CANARY m"},
		{opened + "begin n; lose n; begin m; refused o", log + ", CANARY n, CANARY, CANARY m"},
		{opened + "begin n; crash n; complete n; refused m", log + ", CANARY n, CLASS_CRASHED n, OPENED n"},
		{"crash a; crash b; crash c; complete a; refused n", log},
	} {
		c := newClass(RulesOf(nil).Breaker)
		for _, id := range []string{"a", "b", "c", "d"} {
			c.begin(t, id)
		}
		for _, do := range strings.Split(row.does, "; ") {
			verb, id, _ := strings.Cut(strings.TrimSpace(do), " ")
			switch verb {
			case "crash":
				c.crash(t, id)
			case "begin", "refused":
				if began := c.begin(t, id); began != (verb == "begin") {
					t.Errorf("%s: at %q the begin was admitted: %v", row.does, do, began)
				}
			case "complete":
				c.end(t, id, Completed, "")
			case "fail":
				c.end(t, id, Failed, "")
			case "kill":
				c.end(t, id, Aborted, "")
			case "lose":
				c.end(t, id, Failed, notReady)
			case "wait":
				d, err := time.ParseDuration(id)
				if err != nil {
					t.Fatal(err)
				}
				c.now = c.now.Add(d)
			}
		}
		if got := strings.Join(c.log, ", "); got != row.log {
			t.Errorf("%s:\ngot  %s\nwant %s", row.does, got, row.log)
		}
	}
}

// TestABreakerNeverTriesTwoAtOnce checks a breaker against the plain history of a class.
func TestABreakerNeverTriesTwoAtOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := newClass(BreakerLimits{
			Failures: uint32(rapid.IntRange(1, 4).Draw(t, "failures")),
			Window:   10 * time.Second, Cooldown: 5 * time.Second,
		})
		crashedAt := make(map[string]time.Time) // since the breaker was closed
		for n := range rapid.IntRange(0, 120).Draw(t, "moves") {
			c.now = c.now.Add(time.Duration(rapid.IntRange(0, 3).Draw(t, "seconds")) * time.Second)
			before := c.breaker()
			id := fmt.Sprint(rapid.IntRange(0, n).Draw(t, "agent"))
			running := c.agents[id].Incarnations > 0 && !c.agents[id].Over()
			switch verb := rapid.SampledFrom([]string{"begin", "crash", "complete", "kill"}).Draw(t, "verb"); {
			case verb == "begin" && c.agents[id].ID == "":
				may := !before.Open() || before.Canary == "" && !c.now.Before(before.Until)
				if c.begin(t, id) != may {
					t.Fatalf("begin of %s in %+v: want %v", id, before, may)
				}
				if may && before.Open() && c.breaker().Canary != id {
					t.Fatalf("%s began in %+v and is no canary", id, before)
				}
			case verb == "crash" && running:
				c.crash(t, id)
				crashedAt[id] = c.now
			case verb == "complete" && running:
				c.end(t, id, Completed, "")
			case verb == "kill" && running:
				c.end(t, id, Aborted, "")
			}
			after := c.breaker()
			switch {
			case before.Open() && !after.Open():
				clear(crashedAt)
				if before.Canary != id || c.agents[id].State != Completed {
					t.Fatalf("%s closed %+v", id, before)
				}
			case !before.Open() && after.Open():
				recent := 0
				for _, at := range crashedAt {
					if c.now.Sub(at) < c.limits.Window {
						recent++
					}
				}
				if recent < int(c.limits.Failures) {
					t.Fatalf("%d agents have crashed and the breaker is open", recent)
				}
			case before.Canary != "" && after.Canary != before.Canary && after.Canary != "":
				t.Fatalf("canary %s was replaced by %s", before.Canary, after.Canary)
			}
			if after.Canary != "" && (c.agents[after.Canary].Over() || c.agents[after.Canary].Crashes > 0) {
				t.Fatalf("%s is the canary after its end or crash", after.Canary)
			}
		}
	})
}
