package agents

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agbox/agbox/e2e/internal/harness"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// fences has "refused CODE COMMAND..." end the script unless COMMAND exits with 2.
const fences = `refused() { code=$1; shift; "$@"; [ $? = 2 ] || exit $code; }
`

func TestTheSuccessorOfAFullContextGoesOnAtOnce(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	in.Create(t, "demo", harness.ImageBusybox)
	id := spawn(t, in, fences+`
		if [ $AGBOX_INCARNATION = 2 ]; then agbox-agent gate Bash && agbox-agent done complete; exit; fi
		agbox-agent gate Bash && agbox-agent turn 71.5 && agbox-agent gate --context 72 Bash || exit 90
		refused 91 agbox-agent gate --context 92 Bash
		agbox-agent turn && agbox-agent gate Write || exit 92
		refused 93 agbox-agent gate Bash
		agbox-agent turn || exit 94
		refused 95 agbox-agent gate --final Bash
		refused 96 agbox-agent gate --llm
		sleep 1000`, "--in", "demo")
	a := await(t, in, id, "COMPLETED")
	if a.GetCrashes() != 0 || a.GetIncarnation() != 2 {
		t.Errorf("%d crashes, %d incarnations; want 0 and 2", a.GetCrashes(), a.GetIncarnation())
	}
	wantHistory(t, in, id, "SPAWNED, BEGUN, PHASE, PHASE, CONTEXT AGING, CONTEXT DYING, CONTEXT DRAINING, CONTEXT DEAD, INCARNATION_ENDED CONTEXT, PAUSED SUCCESSION, BEGUN, RESUMED, DONE_REPORTED, INCARNATION_ENDED EXITED, ENDED")
	logs := in.Agbox(t, "agent", "logs", id).Want(t, 0)
	// The notice of the last turn is not awaited: agbox ends the program at that moment, and
	// agbox-agent may not have printed it yet.
	for _, want := range []string{"prepare the handoff", "the next turn is the last, and 1 final call of a tool is left"} {
		if !strings.Contains(logs.Stdout, want) {
			t.Errorf("the notices lack %q:\n%s", want, logs.Stdout)
		}
	}
	if want := "so only 1 final call of a tool is left"; !strings.Contains(logs.Stderr, want) {
		t.Errorf("the refusals lack %q:\n%s", want, logs.Stderr)
	}
}

func TestAProgramThatEndsAfterItsFinalCallIsSucceeded(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	in.Create(t, "demo", harness.ImageBusybox)
	id := spawn(t, in, `[ $AGBOX_INCARNATION = 2 ] && exec agbox-agent done complete
		agbox-agent gate --context 95 --final Write || exit 90`, "--in", "demo")
	if a := await(t, in, id, "COMPLETED"); a.GetCrashes() != 0 {
		t.Errorf("the handoff counts as %d crashes", a.GetCrashes())
	}
}

func TestTheLimitsOfTheContextAreThoseOfTheFile(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	file := filepath.Join(t.TempDir(), "agbox.yaml")
	text := fmt.Sprintf("image: %s\nagent:\n  context: {aging: 10, dying: 20, final_calls: 2}\n  command: [sh, -c, %q]\n", harness.ImageBusybox,
		`agbox-agent gate --context 19 a && agbox-agent turn 20 && agbox-agent gate b && agbox-agent gate c || exit 90; agbox-agent gate d; [ $? = 2 ] && agbox-agent done complete`)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	await(t, in, in.Must(t, "agent", "spawn", "-f", file), "COMPLETED")
}

// TestTheBudgetIsKeptWithoutADaemon also checks that what earlier incarnations have used
// counts.
func TestTheBudgetIsKeptWithoutADaemon(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	box := in.Create(t, "demo", harness.ImageBusybox)
	id := spawn(t, in, gated+fences+`
		[ $AGBOX_INCARNATION = 1 ] && agbox-agent usage 1000 10 1.85 && exit 7
		pass 1
		agbox-agent gate --llm 1000 3.15 && agbox-agent usage 1000 10 3 && agbox-agent gate --llm 1000 0.15 || exit 90
		refused 91 agbox-agent gate --llm 1000 0.150001
		while agbox-agent drained; do sleep 0.05; done # agbox drains it for that
		agbox-agent gate Bash || exit 92
		agbox-agent step; agbox-agent gate Bash; [ $? = 75 ] || exit 93; exit 0`, "--in", "demo", "--retry-delay", "10ms")
	running(t, in, id, 2)
	in.KillDaemon(t)
	open(t, in, box, 1)
	harness.Eventually(t, "the call is refused without a daemon", func() bool {
		out, err := os.ReadFile(filepath.Join(in.Home, "data", "exec-logs", box, "agent-"+id+"-2.journal.jsonl"))
		return err == nil && strings.Contains(string(out), `"refused":true`)
	})
	in.Must(t, "agent", "ls") // starts the daemon
	a := await(t, in, id, "FAILED")
	const want = "Job failed: token budget exhausted ($4.85 / $5.00 max). 1 crash-recovery cycle consumed tokens without completing the job. Manual intervention required."
	if a.GetMessage() != want || a.GetProgress().GetTotal().GetCostMicroUsd() != 4_850_000 {
		t.Errorf("the agent says %q with %v\nwant %q", a.GetMessage(), a.GetProgress(), want)
	}
	if a.GetProgress().GetRefused().GetCostMicroUsd() != 150_001 {
		t.Errorf("the refused call is %v", a.GetProgress().GetRefused())
	}
	if errs := in.Agbox(t, "agent", "logs", id).Want(t, 0).Stderr; !strings.Contains(errs, want) {
		t.Errorf("the program is told %q; want %q", errs, want)
	}
	if end := a.GetLastEnd(); end.GetExitCode() != 0 || end.GetKind() != agboxv1.IncarnationEndKind_INCARNATION_END_KIND_BUDGET {
		t.Errorf("its incarnation ended as %v", end)
	}
	if a.GetContext() != agboxv1.AgentContext_AGENT_CONTEXT_UNSPECIFIED {
		t.Errorf("an agent without an incarnation has the context %s", a.GetContext())
	}
}

func TestSuccessorsGoOnThroughKillsOfTheDaemon(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	in.Create(t, "demo", harness.ImageBusybox)
	id := spawn(t, in, `[ $AGBOX_INCARNATION = 4 ] && exec agbox-agent done complete
		agbox-agent context 101; exec sleep 1000`, "--in", "demo")
	for range 6 {
		in.KillDaemon(t)
		in.Must(t, "agent", "ls")
	}
	a := await(t, in, id, "COMPLETED")
	if a.GetCrashes() != 0 || a.GetIncarnation() != 4 {
		t.Errorf("%d crashes, %d incarnations; want 0 and 4", a.GetCrashes(), a.GetIncarnation())
	}
	if got := strings.Count(strings.Join(history(t, in.Client(t), id), ", "), "CONTEXT DEAD, INCARNATION_ENDED CONTEXT, PAUSED SUCCESSION, BEGUN"); got != 3 {
		t.Errorf("%d successions in %v", got, history(t, in.Client(t), id))
	}
}
