package agents

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

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
	a, err := in.Client(t).SpawnAgent(harness.Bounded(t), &agboxv1.SpawnAgentRequest{SandboxId: in.SandboxID(t, "demo"), Hold: name, Spec: &agboxv1.AgentSpec{
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
	if _, err := in.Client(t).CloseHold(harness.Bounded(t), awaitNamed(t, in, id), hold); err != nil {
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

// TestADaemonWaitsForAllHoldersAnew has a client that holds an agent for longer than its hold
// lingers, and that the next daemon sees only some time after its own start.
func TestADaemonWaitsForAllHoldersAnew(t *testing.T) {
	t.Parallel()
	const linger = 15 * time.Second
	in := harness.New(t)
	in.Create(t, "demo", harness.ImageBusybox)
	id := spawnHeld(t, in, "one", heldScript)
	holder, since := hold(t, in, id, "--linger", linger.String()), time.Now()
	closeHold(t, in, id, "one")
	running(t, in, id, 1)
	harness.Eventually(t, "the hold is older than it lingers", func() bool { return time.Since(since) > linger })
	holder.Signal(t, syscall.SIGSTOP)
	in.KillDaemon(t)
	in.Must(t, "daemon", "start")
	until(t, in, id, "the new daemon has the agent", func(a *agboxv1.Agent) bool { return a.GetRunning() })
	if a, err := in.Client(t).GetAgent(harness.Bounded(t), id); err != nil || len(a.GetHolders()) != 1 {
		t.Errorf("after the start of the daemon it is held by %v, %v", a.GetHolders(), err)
	}
	holder.Signal(t, syscall.SIGCONT)
	holder.Signal(t, syscall.SIGINT)
	holder.Wait(t)
	suspended(t, in, id)
	if events := fmt.Sprint(historyOf(t, in, id)); strings.Contains(events, "the connection was lost") {
		t.Errorf("the hold was lost: %s", events)
	}
}

// historyOf returns the events of an agent.
func historyOf(t *testing.T, in *harness.Install, id string) (events []*agboxv1.AgentEvent) {
	t.Helper()
	c := in.Client(t)
	id = awaitNamed(t, in, id)
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
	if a, err := in.Client(t).GetAgent(harness.Bounded(t), awaitNamed(t, in, id)); err != nil || a.GetWord() != want {
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

// family is a script that spawns four children, lets go of the last one when a client holds it,
// and ends as it is told. NAME is its name.
const family = `cd /var/log/agents-sandbox
	for child in held shared lent "detached --lifetime detached"; do
		agbox-agent spawn --class worker --name NAME-$child -- sh -c 'while agbox-agent drained > /dev/null; do sleep 0.05; done; exit 75' || exit 90
	done
	until [ -e close-NAME ]; do sleep 0.02; done
	agbox-agent close agent:NAME-lent || exit 91
	until [ -e done-NAME ]; do [ ! -e crash-NAME ] || exit 9; sleep 0.02; done
	agbox-agent done complete`

// TestWhatBecomesOfChildrenOfAnEndedAgent is the table of what follows for a child from how its
// parent ended. A client holds the children that are shared and lent.
func TestWhatBecomesOfChildrenOfAnEndedAgent(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	box := in.Create(t, "demo", harness.ImageBusybox)
	touch := func(name string) {
		if err := os.WriteFile(filepath.Join(in.Home, "data", "exec-logs", box, name), nil, 0o600); err != nil {
			t.Error(err)
		}
	}
	kill := func(flags ...string) func(string) {
		return func(name string) { in.Must(t, append([]string{"agent", "kill", "--now", name}, flags...)...) }
	}
	children := []string{"held", "shared", "lent", "detached"}
	const ended = "ABORTED"
	for _, row := range []struct {
		name string
		end  func(name string)
		word string
		// left has who holds each child when it was adopted; ended means that it was killed.
		left [4]string
		// after is what becomes of them when no client holds them any more.
		after [4]string
	}{
		{"ended", func(name string) { touch("done-" + name) }, "COMPLETED",
			[4]string{"agent:init", "client agent:init", "client", ""}, [4]string{"EXECUTING", "EXECUTING", "SUSPENDED", "EXECUTING"}},
		{"crashed", func(name string) { touch("crash-" + name) }, "DEAD_LETTER",
			[4]string{"agent:init", "client agent:init", "client", ""}, [4]string{"EXECUTING", "EXECUTING", "SUSPENDED", "EXECUTING"}},
		{"no-cascade", kill("--no-cascade"), "ABORTED",
			[4]string{"agent:init", "client agent:init", "client", ""}, [4]string{"EXECUTING", "EXECUTING", "SUSPENDED", "EXECUTING"}},
		{"killed", kill(), "ABORTED",
			[4]string{ended, "client", "client", ""}, [4]string{ended, "SUSPENDED", "SUSPENDED", "EXECUTING"}},
		{"cascade", kill("--tree"), "ABORTED", [4]string{ended, ended, ended, ended}, [4]string{ended, ended, ended, ended}},
	} {
		id := spawn(t, in, strings.ReplaceAll(family, "NAME", row.name), row.name, "--in", "demo", "--may-spawn", "worker", "--attempts", "1")
		for _, child := range children {
			running(t, in, awaitNamed(t, in, row.name+"-"+child), 1)
		}
		shared, lent := hold(t, in, row.name+"-shared"), hold(t, in, row.name+"-lent")
		touch("close-" + row.name)
		until(t, in, row.name+"-lent", "only the client holds it", func(a *agboxv1.Agent) bool { return heldBy(a) == "client" })
		row.end(row.name)
		await(t, in, id, row.word)
		for i, child := range children {
			until(t, in, row.name+"-"+child, row.name+"-"+child+" is held by "+row.left[i], func(a *agboxv1.Agent) bool {
				if row.left[i] == ended {
					return a.GetWord() == ended
				}
				return a.GetParent() == "init" && a.GetRunning() && heldBy(a) == row.left[i]
			})
		}
		if row.name != "cascade" {
			shared.Signal(t, syscall.SIGINT)
			lent.Signal(t, syscall.SIGINT)
		}
		shared.Wait(t)
		lent.Wait(t)
		for i, child := range children {
			until(t, in, row.name+"-"+child, row.name+"-"+child+" is "+row.after[i], func(a *agboxv1.Agent) bool { return a.GetWord() == row.after[i] })
			if row.after[i] != ended {
				in.Must(t, "agent", "kill", "--now", row.name+"-"+child)
			}
		}
	}
}

// heldBy returns the holders of an agent, without the names of clients.
func heldBy(a *agboxv1.Agent) string {
	var list []string
	for _, holder := range a.GetHolders() {
		if strings.HasPrefix(holder, "client:") {
			holder = "client"
		}
		list = append(list, holder)
	}
	return strings.Join(list, " ")
}

// awaitNamed returns the id of an agent when there is one with that name.
func awaitNamed(t *testing.T, in *harness.Install, name string) (id string) {
	t.Helper()
	harness.Eventually(t, "there is "+name, func() bool {
		r, err := in.Client(t).Resolve(harness.Bounded(t), agboxv1.RefKind_REF_KIND_AGENT, name)
		id = r.GetId()
		return err == nil
	})
	return id
}

func TestAnAgentHoldsItsChildren(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	in.Create(t, "demo", harness.ImageBusybox)
	parent := spawn(t, in, `agbox-agent spawn --class worker --name child --lifetime held -- sh -c ': > /tmp/began; `+strings.ReplaceAll(heldScript, "'", `'\''`)+`' || exit 90
		until [ -e /tmp/began ]; do sleep 0.05; done
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
