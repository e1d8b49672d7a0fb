package agents

import (
	"strings"
	"testing"

	"github.com/agbox/agbox/e2e/internal/harness"
)

// TestAParentDoesNotUseWhatItsChildHas has a parent give the whole of its budget to a child:
// until that has ended, also across a kill of the daemon, it may make no call to a model.
func TestAParentDoesNotUseWhatItsChildHas(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	in.Create(t, "demo", harness.ImageBusybox)
	id := spawn(t, in, fences+`
		agbox-agent gate --llm 1 0.01 || exit 90
		agbox-agent api spawn '{"key":"k","class":"worker","name":"child","budget":{"input_tokens":500000,"cost_usd":"1"},
			"command":["sh","-c","agbox-agent recv && agbox-agent done complete"]}' > made || exit 91
		refused 92 agbox-agent gate --llm 1 0.01
		echo up; agbox-agent recv || exit 93
		refused 94 agbox-agent gate --llm 1 0.01
		agbox-agent send child go && agbox-agent wait || exit 95
		agbox-agent gate --llm 1 0.01 && agbox-agent done complete`, "--in", "demo", "--may-spawn", "worker", "--attempts", "1")
	up(t, in, id)
	in.KillDaemon(t)
	in.Must(t, "agent", "send", id, "go on")
	await(t, in, "child", "COMPLETED")
	await(t, in, id, "COMPLETED")
}

// TestAParentEndsWithTheBudgetThatItsChildHasUsed: what an ended child has used does not come
// back. A parent that nothing is left for is FAILED, and not told to wait for ever.
func TestAParentEndsWithTheBudgetThatItsChildHasUsed(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	in.Create(t, "demo", harness.ImageBusybox)
	id := spawn(t, in, fences+`
		agbox-agent gate --llm 1 0.01 || exit 90
		agbox-agent api spawn '{"key":"k","class":"worker","name":"child","budget":{"input_tokens":500000,"cost_usd":"1"},
			"command":["sh","-c","agbox-agent usage 500000 10 0.5 && agbox-agent done complete"]}' > made || exit 91
		agbox-agent wait || exit 92
		refused 93 agbox-agent gate --llm 1 0.01
		sleep 600`, "--in", "demo", "--may-spawn", "worker", "--attempts", "3")
	await(t, in, "child", "COMPLETED")
	if a := await(t, in, id, "FAILED"); !strings.Contains(a.GetMessage(), "budget exhausted") || a.GetCrashes() != 0 {
		t.Errorf("the parent ended after %d crashes: %s", a.GetCrashes(), a.GetMessage())
	}
}
