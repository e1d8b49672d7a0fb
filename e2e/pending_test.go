package e2e

import (
	"syscall"
	"testing"

	"github.com/agbox/agbox/e2e/internal/harness"
)

func TestASandboxThatWasAcceptedIsMadeThoughTheDaemonIsKilled(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	in.Must(t, "daemon", "start")
	for range 10 {
		box := in.Must(t, "create", "--no-wait", "--image", harness.ImageBusybox)
		in.KillDaemon(t)
		in.Must(t, "daemon", "start")
		if _, err := in.Client(t).WaitReady(harness.Bounded(t), box); err != nil {
			t.Errorf("sandbox %s: %v", box, err)
			continue
		}
		in.Must(t, "exec", box, "--", "true")
	}
	// Objects that the engine makes late, for a killed daemon, are removed at the next
	// look.
	harness.Eventually(t, "the engine has a container and a network of each sandbox", func() bool {
		inv := in.Inventory(t)
		return len(inv.Containers) == 10 && len(inv.Networks) == 10
	})
}

// Nothing else starts the daemon again.
func TestACommandThatWaitsForItsSandboxStartsACrashedDaemonAgain(t *testing.T) {
	for name, args := range map[string][]string{
		"create": {"create", "--image", harness.ImageBusybox},
		"run":    {"run", "--rm", harness.ImageBusybox, "--", "true"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			in := newInstall(t)
			in.Must(t, "daemon", "start")
			before := in.Status(t).PID
			kill := in.AimAtDaemon(t)
			events := in.Start(t, "events", "-f")
			waiting := in.Start(t, args...)
			events.AwaitOutput(t, "SANDBOX_ACCEPTED")
			kill()
			waiting.Wait(t).Want(t, 0)
			events.Signal(t, syscall.SIGTERM)
			events.Wait(t)
			if now := in.Status(t).PID; now == before {
				t.Errorf("the daemon that was killed is still %d", now)
			}
		})
	}
}
