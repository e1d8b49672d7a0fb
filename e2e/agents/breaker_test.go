package agents

import (
	"strings"
	"testing"

	"github.com/agbox/agbox/e2e/internal/harness"
)

// openBreaker lets three agents of a class crash once each and wait for their retry.
func openBreaker(t *testing.T, in *harness.Install, flags ...string) {
	t.Helper()
	for range 3 {
		id := spawn(t, in, "exit 1", append([]string{"--in", "demo", "--retry-delay", "1h"}, flags...)...)
		harness.Eventually(t, "the agent crashes", func() bool { return strings.Contains(in.Must(t, "agent", "inspect", id), "RETRYING") })
	}
}

// refused spawns an agent, which must not begin.
func refused(t *testing.T, in *harness.Install, flags ...string) {
	t.Helper()
	a := await(t, in, spawn(t, in, "true", append([]string{"--in", "demo"}, flags...)...), "FAILED")
	if !strings.HasPrefix(a.GetMessage(), "FAILED: Agent circuit breaker open") || a.GetIncarnation() != 0 {
		t.Errorf("the refused agent has %d incarnations and says %q", a.GetIncarnation(), a.GetMessage())
	}
}

func TestAfterThreeCrashesNewAgentsOfTheClassAreRefused(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	in.Create(t, "demo", harness.ImageBusybox)
	old := spawn(t, in, `until [ -e /tmp/go ]; do sleep 0.05; done`, "--in", "demo", "--class", "coder")
	running(t, in, old, 1)
	openBreaker(t, in, "--class", "coder")
	refused(t, in, "--class", "coder")
	in.KillDaemon(t)
	refused(t, in, "--class", "coder")
	own := await(t, in, in.Must(t, "agent", "spawn", "--image", harness.ImageBusybox, "--class", "coder", "--", "true"), "FAILED")
	harness.Eventually(t, "the sandbox of a refused agent is removed", func() bool {
		return !strings.Contains(in.Must(t, "ls", "-q"), own.GetSandboxId())
	})
	in.Must(t, "exec", "demo", "touch", "/tmp/go")
	await(t, in, old, "COMPLETED")
	refused(t, in, "--class", "coder")
	for _, flags := range [][]string{{"--class", "writer"}, nil} {
		await(t, in, spawn(t, in, "true", append(flags, "--in", "demo")...), "COMPLETED")
	}
	if list := in.Must(t, "agent", "ls", "-a"); !strings.Contains(list, "Class coder is refused until") {
		t.Errorf("the list does not show the open breaker:\n%s", list)
	}
	if list := in.Must(t, "agent", "ls"); strings.Contains(list, "init") {
		t.Errorf("the list shows init without -a:\n%s", list)
	}
}

func TestACanaryDecidesAboutTheClass(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	in.Create(t, "demo", harness.ImageBusybox)
	openBreaker(t, in, "--class", "coder", "--breaker-cooldown", "10ms")
	// canary spawns agents until one is not refused.
	canary := func(script string, flags ...string) (id string) {
		harness.Eventually(t, "a canary is tried", func() bool {
			id = spawn(t, in, script, append([]string{"--in", "demo", "--class", "coder"}, flags...)...)
			c := in.Client(t)
			for ev, err := range c.WatchAgents(harness.Bounded(t), id, 0) {
				if err != nil {
					t.Fatal(err)
				}
				if ev.GetBegun() != nil {
					return true
				}
				if ev.GetDone() != nil {
					return false
				}
			}
			return false
		})
		return id
	}
	first := canary(`until [ -e /tmp/go ]; do sleep 0.05; done; exit 1`, "--breaker-cooldown", "10ms", "--retry-delay", "1h")
	refused(t, in, "--class", "coder")
	in.Must(t, "exec", "demo", "touch", "/tmp/go")
	harness.Eventually(t, "the canary crashes", func() bool { return strings.Contains(in.Must(t, "agent", "inspect", first), "RETRYING") })
	second := canary(`until [ -e /tmp/fine ]; do sleep 0.05; done`)
	refused(t, in, "--class", "coder")
	in.Must(t, "exec", "demo", "touch", "/tmp/fine")
	await(t, in, second, "COMPLETED")
	for range 2 {
		await(t, in, spawn(t, in, "true", "--in", "demo", "--class", "coder"), "COMPLETED")
	}
	history := strings.Join(history(t, in.Client(t), "init"), ", ")
	if want := "BREAKER_OPENED, BREAKER_CANARY, CLASS_CRASHED, BREAKER_OPENED, BREAKER_CANARY, BREAKER_CLOSED"; !strings.HasSuffix(history, want) {
		t.Errorf("history of init: %s\nwant at its end:  %s", history, want)
	}
}
