package agents

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/agbox/agbox/e2e/internal/harness"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// TestAParentAndTheOperatorHearOfAChild: that it crashed, that it is a dead letter, and that it
// waits for an approval, once each although the daemon is killed in between.
func TestAParentAndTheOperatorHearOfAChild(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	file := filepath.Join(project(t, "image: "+harness.ImageBusybox+
		"\nagent: {may_spawn: {classes: [worker]}, retry: {attempts: 2, delays: [2s]}, tells: {init: [approval, dead_letter]}}\n"), "agbox.yaml")
	spawn(t, in, `agbox-agent spawn --class worker --name bad -- sh -c 'echo "no such table" >&2; exit 3' || exit 90
		agbox-agent spawn --class worker --name asks -- sh -c 'agbox-agent pause approval "May I?"; sleep 1000' || exit 91
		sleep 1000`, "boss", "-f", file)
	until(t, in, awaitNamed(t, in, "bad"), "it has crashed", func(a *agboxv1.Agent) bool { return a.GetCrashes() == 1 })
	in.KillDaemon(t)
	in.Must(t, "daemon", "start")
	await(t, in, "bad", "DEAD_LETTER")
	becomes(t, in, "asks", "WAITING_FOR_APPROVAL")
	in.KillDaemon(t)
	in.Must(t, "daemon", "start")
	for who, want := range map[string][]string{
		"boss": {
			"bad is RETRYING. Crash 1: no such table. It is tried again at ", "bad is DEAD_LETTER. It crashed 2 times.",
			`asks is WAITING_FOR_APPROVAL. It asks: May I? A user decides: "agbox agent approve asks"`,
		},
		"init": {"bad is DEAD_LETTER. It crashed 2 times.", "asks is WAITING_FOR_APPROVAL. It asks: May I?"},
	} {
		inbox := in.Must(t, "agent", "inbox", who)
		for _, text := range want {
			if strings.Count(inbox, text) != 1 {
				t.Errorf("the inbox of %s has %d times %q:\n%s", who, strings.Count(inbox, text), text, inbox)
			}
		}
		if n := strings.Count(inbox, "[SIGCHLD]"); n != len(want) {
			t.Errorf("%s was told of %d changes:\n%s", who, n, inbox)
		}
	}
}

// TestAMessageRevivesASuspendedAgentUntilItHasReadIt: nobody holds it, and it does not flap.
func TestAMessageRevivesASuspendedAgentUntilItHasReadIt(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	file := filepath.Join(project(t, "image: "+harness.ImageBusybox+"\nagent: {lifetime: held, wake_on: message, drain: {pre_stop: 0s, step: 0s}}\n"), "agbox.yaml")
	id := strings.TrimSpace(in.Must(t, "agent", "spawn", "called", "-f", file, "--", "sh", "-c", `trap "exit 0" TERM
		while agbox-agent recv --timeout 600s > /tmp/mail; do
			cat /tmp/mail; while [ ! -e /tmp/go ]; do sleep 0.05; done; rm /tmp/go
			agbox-agent recv --no-wait "$(sed -n 's/.*"seq":\([0-9]*\).*/\1/p' /tmp/mail | tail -n 1)" > /tmp/rest
			sleep 1000 & wait
		done`))
	suspended(t, in, id)
	for n := range uint32(2) {
		in.Must(t, "agent", "send", "called", "work")
		running(t, in, id, n+1)
		until(t, in, id, "its message holds it", func(a *agboxv1.Agent) bool { return strings.Join(a.GetHolders(), " ") == "inbox" })
		in.KillDaemon(t)
		in.Must(t, "daemon", "start")
		in.Must(t, "agent", "reap") // the daemon looks at all agents
		running(t, in, id, n+1)
		a, err := in.Client(t).GetAgent(harness.Bounded(t), id)
		if err != nil {
			t.Fatal(err)
		}
		in.Must(t, "exec", a.GetSandboxId(), "--", "touch", "/tmp/go")
		suspended(t, in, id)
	}
	if events := strings.Join(history(t, in.Client(t), id), " "); strings.Count(events, "BEGUN") != 2 {
		t.Errorf("it began more often than it was called: %s", events)
	}
}

// TestAMessageStartsTheSandboxOfADrainedAgent: only if its spec says so.
func TestAMessageStartsTheSandboxOfADrainedAgent(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	file := filepath.Join(project(t, "image: "+harness.ImageBusybox+"\nagent: {wake_on: message, drain: {pre_stop: 0s, step: 0s}}\n"), "agbox.yaml")
	id := strings.TrimSpace(in.Must(t, "agent", "spawn", "called", "-f", file, "--", "sh", "-c", `trap "exit 0" TERM; sleep 1000 & wait`))
	running(t, in, id, 1)
	a, err := in.Client(t).GetAgent(harness.Bounded(t), id)
	if err != nil {
		t.Fatal(err)
	}
	in.Must(t, "agent", "send", "called", "before the stop")
	in.Must(t, "stop", a.GetSandboxId())
	becomes(t, in, id, "PAUSED")
	in.Must(t, "agent", "send", "called", "wake up")
	running(t, in, id, 2)
	in.Must(t, "agent", "drain", "called")
	becomes(t, in, id, "PAUSED")
	in.Must(t, "agent", "send", "called", "again")
	running(t, in, id, 3)
}

// becomes waits for a state of an agent.
func becomes(t *testing.T, in *harness.Install, id, word string) {
	t.Helper()
	until(t, in, awaitNamed(t, in, id), "it is "+word, func(a *agboxv1.Agent) bool { return a.GetWord() == word })
}
