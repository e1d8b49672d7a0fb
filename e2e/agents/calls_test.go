package agents

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/agbox/agbox/e2e/internal/harness"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// The scripts exit with other codes if a command does not exit as it should.
func TestToolsAndStreamsThatTakeTooLongAreAborted(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	in.Create(t, "demo", harness.ImageBusybox)
	id := spawnSpec(t, in, `
		echo 5 | agbox-agent tool add -- sh -c 'read n; echo $((n + 1)); exit 3'; [ $? = 3 ] || exit 91
		agbox-agent tool slow -- sh -c 'trap "" TERM; echo begun; sleep 1000'; [ $? = 124 ] || exit 92
		agbox-agent tool --id again slow -- true || exit 93

		agbox-agent api call '{"call": "begin", "kind": "llm", "invocation": "m-1"}' || exit 94
		agbox-agent api call '{"call": "progress", "invocation": "m-1"}' || exit 95
		until agbox-agent api call '{"call": "wait", "invocation": "m-1"}' | grep -q CHUNK_TIMEOUT; do :; done
		agbox-agent beat && agbox-agent done complete aborted`, &agboxv1.AgentSpec{
		Calls: &agboxv1.AgentCalls{
			Tool: durationpb.New(time.Minute), Tools: map[string]*durationpb.Duration{"slow": durationpb.New(300 * time.Millisecond)},
			LlmChunk: durationpb.New(300 * time.Millisecond),
		},
	})
	a := await(t, in, id, "COMPLETED")
	if p := a.GetProgress(); p.GetToolCalls() != 3 || p.GetLlmCalls() != 1 || a.GetLastEnd().GetLastTool() != "slow" || a.GetCrashes() != 0 {
		t.Errorf("its progress is %v, its incarnation ended as %v, %d crashes", p, a.GetLastEnd(), a.GetCrashes())
	}
	if out := in.Agbox(t, "agent", "logs", id).Want(t, 0).Stdout; out == "" || out[:8] != "6\nbegun\n" {
		t.Errorf("the output of its tools is %q", out)
	}
}
