package agents

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/agbox/agbox/e2e/internal/harness"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/runtime"
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

// The program is killed after its calls and before a checkpoint. It sends its beats as JSON of the
// documented form.
func TestAKilledProgramTakesTheResultsAndDoesNotCallAgain(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	in.Create(t, "demo", harness.ImageBusybox)
	id := spawnSpec(t, in, `
		agbox-agent api beat "{\"type\": \"heartbeat\", \"timestamp\": \"2025-01-01T00:00:00.000Z\", \"agentId\": \"$AGBOX_AGENT_ID\", \"jobId\": \"$AGBOX_AGENT_ID\",
			\"podName\": \"$HOSTNAME\", \"lifecycleState\": \"EXECUTING\", \"currentStep\": 4,
			\"metrics\": {\"heapUsedMb\": 1.5, \"uptimeSeconds\": 2, \"stepsCompleted\": 3, \"llmCallsTotal\": 1, \"toolCallsTotal\": 1}}" > /dev/null || exit 90
		agbox-agent tool --once --id pay-7 pay -- sh -c 'echo paid >> /var/log/agents-sandbox/effects; echo receipt' > receipt || exit 91
		if [ ! -e /var/log/agents-sandbox/killed ]; then
			agbox-agent api call '{"call": "begin", "kind": "llm", "invocation": "m-1"}' > /dev/null || exit 92
			agbox-agent api call '{"call": "end", "invocation": "m-1", "result": "forty-two"}' > /dev/null || exit 93
			agbox-agent api call '{"call": "begin", "kind": "tool", "name": "send", "invocation": "send-1"}' > /dev/null || exit 94
			touch /var/log/agents-sandbox/killed; kill -9 $$
		fi
		agbox-agent hydrate | grep -q '"result":"forty-two"' || exit 95
		grep -q '"step":"4"' "$AGBOX_PREVIOUS" || exit 98
		agbox-agent tool --once --id send-1 send -- touch /var/log/agents-sandbox/sent; [ $? = 4 ] || exit 96
		[ "$(wc -l < /var/log/agents-sandbox/effects)" = 1 ] && [ ! -e /var/log/agents-sandbox/sent ] || exit 97
		agbox-agent done complete "$(cat receipt)"`, &agboxv1.AgentSpec{
		WorkingDir: "/tmp", Retry: &agboxv1.AgentRetry{Delays: []*durationpb.Duration{durationpb.New(time.Millisecond)}},
	})
	a := await(t, in, id, "COMPLETED")
	if a.GetMessage() != "receipt" || a.GetCrashes() != 1 {
		t.Errorf("it ended with %q after %d crashes", a.GetMessage(), a.GetCrashes())
	}
}

// TestALongResultOutlivesItsProgram as a whole, and its container and the daemon, too.
func TestALongResultOutlivesItsProgram(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	box := in.Create(t, "demo", harness.ImageBusybox)
	const logs = "/var/log/agents-sandbox/"
	id := spawnSpec(t, in, `
		agbox-agent tool --once --id read-1 read -- sh -c 'echo ran >> `+logs+`effects; head -c 3000000 /dev/urandom | tee `+logs+`was' > got || exit 91
		cmp got `+logs+`was || exit 92
		if [ ! -e `+logs+`killed ]; then touch `+logs+`killed; sleep 1000; fi
		agbox-agent hydrate > all || exit 93
		[ "$(wc -c < all)" -gt 4000000 ] && [ "$(wc -l < `+logs+`effects)" = 1 ] || exit 94
		agbox-agent done complete whole`, &agboxv1.AgentSpec{WorkingDir: "/tmp"})
	harness.Eventually(t, "it has the result", func() bool {
		return in.Agbox(t, "exec", "demo", "--", "test", "-e", logs+"killed").Code == 0
	})
	in.KillDaemon(t)
	if err := harness.DockerAPI.ContainerKill(harness.Bounded(t), runtime.PrimaryName(box), "KILL"); err != nil {
		t.Fatal(err)
	}
	in.Must(t, "daemon", "start")
	in.Agbox(t, "start", "demo")
	if a := await(t, in, id, "COMPLETED"); a.GetMessage() != "whole" {
		t.Errorf("it ended with %q", a.GetMessage())
	}
}
