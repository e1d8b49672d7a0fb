package faults

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agbox/agbox/client"
	"github.com/agbox/agbox/e2e/internal/harness"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// parting is the program of an agent with a child that it holds, one that a client holds too,
// and one that is detached. It ends when it may.
const parting = `cd /var/log/agents-sandbox
	for kid in held shared "detached --lifetime detached"; do
		agbox-agent spawn --name $AGBOX_AGENT_ID-$kid -- sh -c 'while agbox-agent drained > /dev/null; do sleep 0.02; done; exit 75' || exit 90
	done
	until [ -e $AGBOX_AGENT_ID.go ]; do sleep 0.02; done
	agbox-agent done complete`

// kids are the words in the names of its children.
var kids = []string{"held", "shared", "detached"}

// parent spawns an agent with children, and returns when all of them run and a client holds
// the shared one.
func (w *witness) parent(t *testing.T, box, id string) {
	t.Helper()
	ctx := harness.Bounded(t)
	spec := &agboxv1.AgentSpec{Command: []string{"sh", "-c", parting}, MaySpawn: &agboxv1.AgentMaySpawn{}}
	if _, err := w.c.SpawnAgent(ctx, &agboxv1.SpawnAgentRequest{AgentId: id, Spec: spec, SandboxId: box}); err != nil {
		t.Fatal(err)
	}
	for _, kid := range kids {
		harness.Eventually(t, kid+" runs", func() bool {
			a, err := w.agent(ctx, id+"-"+kid)
			return err == nil && a.GetWord() == "EXECUTING"
		})
	}
	shared, err := w.agent(ctx, id+"-shared")
	if err != nil {
		t.Fatal(err)
	}
	// The hold outlives its connection and each daemon.
	for _, err := range w.c.HoldAgent(ctx, client.AgentHold{Agent: shared.GetAgentId(), Name: "client", Linger: time.Hour}) {
		if err != nil {
			t.Fatal(err)
		}
		break
	}
}

// agent returns the agent with an id or a name.
func (w *witness) agent(ctx context.Context, called string) (*agboxv1.Agent, error) {
	r, err := w.c.Resolve(ctx, agboxv1.RefKind_REF_KIND_AGENT, called)
	if err != nil {
		return nil, err
	}
	return w.c.GetAgent(ctx, r.GetId())
}

// adopted waits until init has adopted the agent with a name.
func (w *witness) adopted(ctx context.Context, name string) error {
	a, err := w.agent(ctx, name)
	if err != nil {
		return err
	}
	id := a.GetAgentId()
	for ev, err := range w.c.WatchAgents(ctx, id, 0) {
		if err != nil {
			return err
		}
		if ev.GetType() == agboxv1.AgentEventType_AGENT_REPARENTED {
			return nil
		}
	}
	return ctx.Err()
}

// orphan checks an agent that init has adopted: who holds it, that its program runs on, and
// that what happened to it happened once.
func (w *witness) orphan(t *testing.T, id string, holders ...string) {
	t.Helper()
	a, err := w.agent(harness.Bounded(t), id)
	if err != nil {
		t.Fatal(err)
	}
	if a.GetParent() != "init" || a.GetWord() != "EXECUTING" || a.GetIncarnation() != 1 || !slices.Equal(a.GetHolders(), holders) {
		t.Errorf("agent %s is %v; want it EXECUTING below init, held by %v", id, a, holders)
	}
	w.wantCounts(t, a, map[agboxv1.AgentEventType]int{
		agboxv1.AgentEventType_AGENT_REPARENTED: 1, agboxv1.AgentEventType_AGENT_BEGUN: 1, agboxv1.AgentEventType_AGENT_PAUSE_REQUESTED: 0,
	})
	told := 0
	for m, err := range w.c.Inbox(harness.Bounded(t), "init") {
		if err != nil {
			t.Fatal(err)
		}
		if m.GetKind() == agboxv1.MessageKind_MESSAGE_KIND_ADOPTED && m.GetFrom() == a.GetAgentId() {
			told++
		}
	}
	if told != 1 {
		t.Errorf("init was told %d times that it has adopted %s", told, id)
	}
}

// wantCounts checks how often there are events of some types.
func (w *witness) wantCounts(t *testing.T, a *agboxv1.Agent, want map[agboxv1.AgentEventType]int) {
	t.Helper()
	counts := make(map[agboxv1.AgentEventType]int)
	var all []string
	for ev, err := range w.c.WatchAgents(harness.Bounded(t), a.GetAgentId(), 0) {
		if err != nil {
			t.Fatal(err)
		}
		counts[ev.GetType()]++
		all = append(all, strings.TrimPrefix(ev.GetType().String(), "AGENT_"))
		if ev.GetSequence() >= a.GetLastSequence() {
			break
		}
	}
	for typ, n := range want {
		if counts[typ] != n {
			t.Errorf("agent %s has %d events %v; want %d of %v", a.GetAgentId(), counts[typ], typ, n, all)
		}
	}
}

// clear ends all agents of a round.
func (w *witness) clear(t *testing.T, id string) {
	t.Helper()
	for _, name := range append([]string{""}, kids...) {
		a, err := w.agent(harness.Bounded(t), strings.TrimSuffix(id+"-"+name, "-"))
		if err != nil || a.GetEndedAt() != nil {
			continue
		}
		if _, err := w.c.KillAgent(harness.Bounded(t), a.GetAgentId(), agboxv1.KillMode_KILL_MODE_NOW); err != nil {
			t.Fatal(err)
		}
		if _, err := w.c.WaitAgent(harness.Bounded(t), a.GetAgentId()); err != nil {
			t.Fatal(err)
		}
	}
}

func TestKillAtManyBoundariesOfAnAdoption(t *testing.T) {
	t.Parallel()
	row := Row(t, 59, "SIGKILL while the children of an agent that ends are adopted, with their holds", 0)
	w := newWitness(t, harness.New(t))
	box := w.box(t)
	id := func(n int) string { return fmt.Sprintf("a-%d", n) }
	kills, calls := sweep(t, w, operation{
		name:    "adoption",
		step:    5,
		prepare: func(t *testing.T, n int) { w.parent(t, box, id(n)) },
		run: func(ctx context.Context, n int) error {
			if err := os.WriteFile(filepath.Join(w.logs(box), id(n)+".go"), nil, 0o600); err != nil {
				return err
			}
			for _, kid := range kids {
				if err := w.adopted(ctx, id(n)+"-"+kid); err != nil {
					return err
				}
			}
			return nil
		},
		dead: func(t *testing.T, _ int) { w.checkStored(t) },
		verify: func(t *testing.T, k kill) {
			w.orphan(t, id(k.n)+"-held", "agent:init")
			w.orphan(t, id(k.n)+"-shared", "client:client", "agent:init")
			w.orphan(t, id(k.n)+"-detached")
			w.clear(t, id(k.n))
		},
	})
	row.Ran(kills)
	row.Note("adoption: before %s", calls)
	w.check(t)
}

func TestKillAtManyBoundariesOfACascade(t *testing.T) {
	t.Parallel()
	row := Row(t, 60, "SIGKILL while an agent is killed that holds children", 0)
	w := newWitness(t, harness.New(t))
	box := w.box(t)
	id := func(n int) string { return fmt.Sprintf("a-%d", n) }
	kills, calls := sweep(t, w, operation{
		name:    "cascade",
		step:    5,
		prepare: func(t *testing.T, n int) { w.parent(t, box, id(n)) },
		run: func(ctx context.Context, n int) error {
			if _, err := w.c.KillAgent(ctx, id(n), agboxv1.KillMode_KILL_MODE_NOW); err != nil {
				return err
			}
			for _, ref := range []string{id(n), id(n) + "-held"} {
				a, err := w.agent(ctx, ref)
				if err != nil {
					return err
				}
				if a, err = w.c.WaitAgent(ctx, a.GetAgentId()); err != nil || a.GetWord() != "ABORTED" || a.GetIncarnation() != 1 {
					return fmt.Errorf("agent %s is %v: %w", ref, a, err)
				}
			}
			for _, kid := range []string{"shared", "detached"} {
				if err := w.adopted(ctx, id(n)+"-"+kid); err != nil {
					return err
				}
			}
			return nil
		},
		dead: func(t *testing.T, _ int) { w.checkStored(t) },
		verify: func(t *testing.T, k kill) {
			w.orphan(t, id(k.n)+"-shared", "client:client")
			w.orphan(t, id(k.n)+"-detached")
			w.clear(t, id(k.n))
		},
	})
	row.Ran(kills)
	row.Note("cascade: before %s", calls)
	w.check(t)
}
