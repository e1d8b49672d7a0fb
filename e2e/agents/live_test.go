package agents

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agbox/agbox/e2e/internal/harness"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// gated is the start of a script: "pass N" waits until the test has opened gate N.
const gated = `pass() { while [ ! -e /var/log/agents-sandbox/gate$1 ]; do sleep 0.05; done; }
`

// open opens a gate of a script that begins with gated.
func open(t *testing.T, in *harness.Install, sandboxID string, gate int) {
	t.Helper()
	name := filepath.Join(in.Home, "data", "exec-logs", sandboxID, fmt.Sprint("gate", gate))
	if err := os.WriteFile(name, nil, 0o600); err != nil {
		t.Fatal(err)
	}
}

// until waits until the agent is as it should be.
func until(t *testing.T, in *harness.Install, id, what string, is func(*agboxv1.Agent) bool) {
	t.Helper()
	c := in.Client(t)
	id = awaitNamed(t, in, id)
	var a *agboxv1.Agent
	harness.EventuallyOr(t, func() bool {
		got, err := c.GetAgent(harness.Bounded(t), id)
		a = got
		return err == nil && is(a)
	}, func() {
		t.Fatalf("it did not come about that %s; the agent is %v, after %q", what, a, history(t, c, id))
	})
}

func TestReportsAreSeenWhileTheProgramRuns(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	box := in.Create(t, "demo", harness.ImageBusybox)
	id := spawn(t, in, gated+`agbox-agent usage 10 1 0.5; agbox-agent step; agbox-agent say one
		pass 1; agbox-agent usage 20 2 0.75; agbox-agent step
		pass 2; agbox-agent step; agbox-agent say three; agbox-agent done complete fine; exit 7`, "--in", "demo")
	progress := func(tokens, steps uint64, said string) func(*agboxv1.Agent) bool {
		return func(a *agboxv1.Agent) bool {
			p := a.GetProgress()
			return a.GetRunning() && p.GetTotal().GetInputTokens() == tokens && p.GetSteps() == steps && p.GetLastMessage() == said
		}
	}
	until(t, in, id, "the first reports are seen", progress(10, 1, "one"))
	open(t, in, box, 1)
	until(t, in, id, "the second reports are seen", progress(20, 2, "one"))
	in.KillDaemon(t)
	in.Must(t, "agent", "ls") // starts the next daemon, which reads the journal anew
	until(t, in, id, "nothing was counted twice", progress(20, 2, "one"))
	open(t, in, box, 2)
	a := await(t, in, id, "COMPLETED")
	if p := a.GetProgress(); p.GetTotal().GetInputTokens() != 20 || p.GetTotal().GetCostMicroUsd() != 750_000 || p.GetSteps() != 3 || p.GetLastMessage() != "three" {
		t.Errorf("the progress is %v", p)
	}
	var ops []string
	for line := range strings.Lines(in.Must(t, "agent", "journal", id)) {
		var row struct {
			Incarnation int
			Op          string
		}
		if err := json.Unmarshal([]byte(line), &row); err != nil || row.Incarnation != 1 {
			t.Errorf("%q, %v", line, err)
		}
		ops = append(ops, row.Op)
	}
	if got := strings.Join(ops, " "); got != "usage step say usage step step say done" {
		t.Errorf("the journal has %s", got)
	}
	if rows := in.Must(t, "agent", "journal", id, "-n", "2"); rows != "" {
		t.Errorf("of another incarnation there is %s", rows)
	}
	in.Agbox(t, "agent", "journal", "nobody").Want(t, 3)
}

func TestAnAgentReportsItsPhases(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	box := in.Create(t, "demo", harness.ImageBusybox)
	const script = gated + `agbox-agent phase VERIFYING; [ $? = 4 ] || exit 90
		agbox-agent state HYDRATING; pass 1; agbox-agent state READY; agbox-agent state EXECUTING
		agbox-agent phase VERIFYING && agbox-agent phase PLANNING && agbox-agent phase EXECUTING || exit 91
		pass 2; agbox-agent done complete`
	id := spawnSpec(t, in, script, &agboxv1.AgentSpec{Ready: agboxv1.AgentReady_AGENT_READY_REPORT})
	until(t, in, id, "it hydrates", func(a *agboxv1.Agent) bool {
		return a.GetLifecycle() == agboxv1.AgentLifecycle_AGENT_LIFECYCLE_HYDRATING && a.GetWord() == "PENDING"
	})
	open(t, in, box, 1)
	running(t, in, id, 1)
	open(t, in, box, 2)
	await(t, in, id, "COMPLETED")
	wantHistory(t, in, id, "SPAWNED, BEGUN, PHASE, PHASE, PHASE, PHASE, PHASE, DONE_REPORTED, INCARNATION_ENDED EXITED, ENDED")
}

// TestAProgramOverItsBudgetIsEnded: the program does not ask whether it may go on.
func TestAProgramOverItsBudgetIsEnded(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	in.Create(t, "demo", harness.ImageBusybox)
	id := spawn(t, in, `agbox-agent beat --every 50ms & agbox-agent usage 500000 0; sleep 1000`, "--in", "demo")
	until(t, in, id, "its side process beats", func(a *agboxv1.Agent) bool {
		return a.GetLiveness() == agboxv1.AgentLiveness_AGENT_LIVENESS_ACTIVE || a.GetEndedAt() != nil
	})
	a := await(t, in, id, "FAILED")
	if a.GetIncarnation() != 1 || !strings.HasPrefix(a.GetMessage(), "Job failed: token budget exhausted (500000 / 500000 input tokens max)") {
		t.Errorf("after %d incarnations: %s", a.GetIncarnation(), a.GetMessage())
	}
}
