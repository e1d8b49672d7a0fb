package agents

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/agbox/agbox/e2e/internal/harness"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// heldScript saves a checkpoint and works until it is drained, or until it may end.
const heldScript = `agbox-agent hydrate; echo "{\"n\":$AGBOX_INCARNATION}" | agbox-agent checkpoint
	while [ ! -e /var/log/agents-sandbox/end ]; do agbox-agent drained > /dev/null || exit 75; sleep 0.02; done
	agbox-agent done complete`

// spawnHeld spawns an agent that lives while it is held, by a client under the name of the
// agent at first.
func spawnHeld(t *testing.T, in *harness.Install, name, script string) string {
	t.Helper()
	a, err := in.Client(t).SpawnAgent(harness.Bounded(t), &agboxv1.SpawnAgentRequest{SandboxId: "demo", Hold: name, Spec: &agboxv1.AgentSpec{
		Name: name, Command: []string{"sh", "-c", script}, Lifetime: agboxv1.AgentLifetime_AGENT_LIFETIME_HELD,
	}})
	if err != nil {
		t.Fatal(err)
	}
	return a.GetAgentId()
}

// closeHold ends a hold of a client.
func closeHold(t *testing.T, in *harness.Install, id, hold string) {
	t.Helper()
	if _, err := in.Client(t).CloseHold(harness.Bounded(t), id, hold); err != nil {
		t.Fatal(err)
	}
}

// hold begins to hold an agent, and returns once it is held.
func hold(t *testing.T, in *harness.Install, id string, flags ...string) *harness.Process {
	t.Helper()
	p := in.Start(t, append([]string{"agent", "hold", id}, flags...)...)
	harness.Eventually(t, "the agent is held", func() bool { return strings.Contains(p.Stderr.String(), "is held") })
	return p
}

func TestAHoldOutlivesDaemonsAndEndsWithItsClient(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	box := in.Create(t, "demo", harness.ImageBusybox)
	id := spawnHeld(t, in, "one", heldScript)
	holder := hold(t, in, id)
	closeHold(t, in, id, "one")
	running(t, in, id, 1)
	for range 5 {
		in.Must(t, "daemon", "upgrade")
		in.KillDaemon(t)
		in.Must(t, "daemon", "start")
	}
	if events := strings.Join(history(t, in.Client(t), id), ", "); strings.Contains(events, "PAUSE") || strings.Count(events, "CLOSED") != 1 {
		t.Errorf("a daemon that goes away is seen: %s", events)
	}
	holder.Signal(t, syscall.SIGINT)
	holder.Wait(t)
	suspended(t, in, id)
	if a, err := in.Client(t).GetAgent(harness.Bounded(t), id); err != nil || len(a.GetHolders()) > 0 || a.GetMessage() != "Nobody holds it." || a.GetRunning() {
		t.Errorf("it is %v, %v", a, err)
	}
	if r := in.Agbox(t, "agent", "resume", id).Want(t, 4); !strings.Contains(r.Stderr, "agbox agent hold") {
		t.Errorf("resume says %q", r.Stderr)
	}
	in.KillDaemon(t)
	in.Must(t, "daemon", "start") // a suspended agent stays so
	wantWord(t, in, id, "SUSPENDED")
	holder = hold(t, in, id)
	running(t, in, id, 2)
	if err := os.WriteFile(filepath.Join(in.Home, "data", "exec-logs", box, "end"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	holder.Wait(t).Want(t, 0)
	a := await(t, in, id, "COMPLETED")
	if a.GetCrashes() != 0 || a.GetIncarnation() != 2 {
		t.Errorf("%d crashes in %d incarnations", a.GetCrashes(), a.GetIncarnation())
	}
	if out := in.Must(t, "agent", "logs", id); !strings.Contains(out, `"state":{"n":1}`) {
		t.Errorf("the second incarnation began with\n%s", out)
	}
	in.Agbox(t, "agent", "hold", id).Want(t, 0) // it has completed
	in.Agbox(t, "agent", "hold", "nobody").Want(t, 3)
}

func TestALostHoldLingers(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	in.Create(t, "demo", harness.ImageBusybox)
	id := spawnHeld(t, in, "one", heldScript)
	holder, other := hold(t, in, id, "--linger", "3s"), hold(t, in, id, "--linger", "1ms")
	closeHold(t, in, id, "one")
	running(t, in, id, 1)
	other.Signal(t, syscall.SIGKILL)
	<-other.Ended()
	until(t, in, id, "the first hold is lost", func(a *agboxv1.Agent) bool { return len(a.GetHolders()) == 1 })
	wantWord(t, in, id, "EXECUTING")
	holder.Signal(t, syscall.SIGKILL)
	<-holder.Ended()
	suspended(t, in, id)
	events := historyOf(t, in, id)
	if got, want := fmt.Sprint(events), "the connection was lost"; strings.Count(got, want) != 2 {
		t.Errorf("the events are %s; want %q twice", got, want)
	}
}

// historyOf returns the events of an agent.
func historyOf(t *testing.T, in *harness.Install, id string) (events []*agboxv1.AgentEvent) {
	t.Helper()
	c := in.Client(t)
	a, err := c.GetAgent(harness.Bounded(t), id)
	if err != nil {
		t.Fatal(err)
	}
	for ev, err := range c.WatchAgents(harness.Bounded(t), id, 0) {
		if err != nil {
			t.Fatal(err)
		}
		if events = append(events, ev); ev.GetSequence() >= a.GetLastSequence() {
			break
		}
	}
	return events
}

// wantWord checks the state of an agent.
func wantWord(t *testing.T, in *harness.Install, id, want string) {
	t.Helper()
	if a, err := in.Client(t).GetAgent(harness.Bounded(t), id); err != nil || a.GetWord() != want {
		t.Errorf("it is %s, %v; want %s", a.GetWord(), err, want)
	}
}

// suspended waits until nobody holds an agent and it has saved its work.
func suspended(t *testing.T, in *harness.Install, id string) {
	t.Helper()
	until(t, in, id, "it is suspended", func(a *agboxv1.Agent) bool { return a.GetWord() == "SUSPENDED" && !a.GetRunning() })
}

func TestTheHoldsOfTheDocumentation(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	in.Create(t, "demo", harness.ImageBusybox)
	put(t, in, "demo", "/workdir/work.sh", "#!/bin/sh\nwhile agbox-agent drained; do sleep 0.02; done\n")
	for line := range strings.Lines(snippets(t)["hold"]) {
		command, _, _ := strings.Cut(line, "#")
		holder := in.Start(t, strings.Fields(command)[1:]...)
		harness.Eventually(t, "the agent is held", func() bool { return strings.Contains(holder.Stderr.String(), "is held") })
		holder.Signal(t, syscall.SIGINT)
		holder.Wait(t)
		suspended(t, in, "helper")
	}
	in.Agbox(t, "agent", "spawn", "--hold", "--attach", "--in", "demo", "--", "true").Want(t, 2)
}

// TestWhatBecomesOfChildrenOfAnEndedAgent is the table of what follows for a child from how its
// parent ended.
func TestWhatBecomesOfChildrenOfAnEndedAgent(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	box := in.Create(t, "demo", harness.ImageBusybox)
	parents := map[string]struct {
		end  func(id string)
		word string
		// only is what becomes of a child that only its parent holds.
		only string
	}{
		"ended": {func(id string) {
			if err := os.WriteFile(filepath.Join(in.Home, "data", "exec-logs", box, "done-"+id), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}, "COMPLETED", "EXECUTING"},
		"crashed": {func(id string) {
			if err := os.WriteFile(filepath.Join(in.Home, "data", "exec-logs", box, "crash-"+id), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}, "DEAD_LETTER", "EXECUTING"},
		"no-cascade": {func(id string) { in.Must(t, "agent", "kill", "--now", "--no-cascade", id) }, "ABORTED", "EXECUTING"},
		"cascade":    {func(id string) { in.Must(t, "agent", "kill", "--now", "--cascade", id) }, "ABORTED", "ABORTED"},
		"killed":     {func(id string) { in.Must(t, "agent", "kill", "--now", id) }, "ABORTED", "ABORTED"},
	}
	for name, row := range parents {
		id := spawn(t, in, `cd /var/log/agents-sandbox
			agbox-agent spawn --class worker --name `+name+`-held --lifetime held -- sleep 1000 || exit 90
			agbox-agent spawn --class worker --name `+name+`-shared --lifetime held -- sleep 1000 || exit 90
			agbox-agent spawn --class worker --name `+name+`-detached -- sleep 1000 || exit 90
			touch up-$AGBOX_AGENT_ID
			while :; do [ ! -e done-$AGBOX_AGENT_ID ] || { agbox-agent done complete; exit 0; }; [ ! -e crash-$AGBOX_AGENT_ID ] || exit 9; sleep 0.02; done`,
			name, "--in", "demo", "--may-spawn", "worker", "--attempts", "1")
		for _, child := range []string{"held", "shared", "detached"} {
			running(t, in, awaitNamed(t, in, name+"-"+child), 1)
		}
		holder := hold(t, in, name+"-shared")
		row.end(id)
		await(t, in, id, row.word)
		shared := "EXECUTING"
		if name == "cascade" {
			shared = "ABORTED"
		}
		for child, want := range map[string]string{"held": row.only, "shared": shared, "detached": shared} {
			ref := name + "-" + child
			until(t, in, ref, ref+" is "+want, func(a *agboxv1.Agent) bool {
				return a.GetWord() == want && (want == "ABORTED" || a.GetParent() == "init")
			})
		}
		if shared == "EXECUTING" {
			holder.Signal(t, syscall.SIGINT)
		}
		holder.Wait(t)
		for _, child := range []string{"held", "shared", "detached"} {
			in.Must(t, "agent", "kill", "--now", name+"-"+child)
		}
	}
}

// awaitNamed returns the id of an agent when there is one with that name.
func awaitNamed(t *testing.T, in *harness.Install, name string) (id string) {
	t.Helper()
	harness.Eventually(t, "there is "+name, func() bool {
		a, err := in.Client(t).GetAgent(harness.Bounded(t), name)
		id = a.GetAgentId()
		return err == nil
	})
	return id
}

func TestAnAgentHoldsItsChildren(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	in.Create(t, "demo", harness.ImageBusybox)
	parent := spawn(t, in, `agbox-agent spawn --class worker --name child --lifetime held -- sh -c '`+strings.ReplaceAll(heldScript, "'", `'\''`)+`' || exit 90
		agbox-agent close agent:child && agbox-agent close agent:child || exit 91
		until agbox-agent children | grep SUSPENDED; do sleep 0.05; done
		agbox-agent open agent:child && agbox-agent open agent:child || exit 92
		until agbox-agent children | grep EXECUTING; do sleep 0.05; done
		agbox-agent open agent:$AGBOX_AGENT_ID; [ $? = 4 ] || exit 93
		agbox-agent open agent:stranger; [ $? = 4 ] || exit 94
		agbox-agent done complete`, "parent", "--in", "demo", "--may-spawn", "worker")
	await(t, in, parent, "COMPLETED")
	until(t, in, "child", "the root holds the child", func(a *agboxv1.Agent) bool {
		return a.GetParent() == "init" && len(a.GetHolders()) == 1 && a.GetHolders()[0] == "agent:init" && a.GetIncarnation() == 2 && a.GetRunning()
	})
}
