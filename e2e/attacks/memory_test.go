package attacks

import (
	"testing"

	"github.com/agbox/agbox/e2e/internal/harness"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// eatMemory uses 256 MiB: more than the limit of the test, and little for the machine if
// the limit does not hold.
const eatMemory = `my @eaten = map { "x" x (1 << 20) } 1 .. 256; print "ate it all";`

func TestASandboxThatEatsMemoryHurtsOnlyItself(t *testing.T) {
	t.Parallel()
	Row(t, 13, "a command eats the memory of the host")
	in := harness.New(t)
	write(t, in, "config", map[string]string{"agboxd.yaml": "sandbox-memory: 96m\n"})
	box, neighbour := in.Create(t, "box", harness.ImageDebian), in.Create(t, "neighbour", harness.ImageDebian)
	c, ctx := in.Client(t), harness.Bounded(t)
	shown, err := c.GetSandbox(ctx, box)
	if err != nil {
		t.Fatal(err)
	}
	primary := shown.GetContainers()[0]
	if primary.GetMemoryLimitBytes() != 96<<20 || !primary.GetMemoryLimitIsDefault() || primary.GetPidsLimit() != 4096 {
		t.Errorf("inspect shows the limits of %v", primary)
	}
	daemon := in.Status(t).PID
	job := in.Must(t, "exec", "-d", box, "--", "perl", "-e", eatMemory)
	in.Agbox(t, "logs", "-f", job)
	end, err := c.GetExec(ctx, job)
	if err != nil {
		t.Fatal(err)
	}
	if !end.GetOomKilled() || end.GetState() == agboxv1.ExecState_EXEC_STATE_FINISHED && end.GetExitCode() == 0 {
		t.Errorf("the command that ate memory ended as %v", end)
	}
	for _, name := range []string{box, neighbour} {
		if said := in.Must(t, "exec", name, "--", "echo", "goes on"); said != "goes on" {
			t.Errorf("%s says %q", name, said)
		}
	}
	if now := in.Status(t).PID; now != daemon {
		t.Errorf("the daemon was process %v and is %v", daemon, now)
	}
	// Who lifts the limit by flag lifts it.
	open := in.Create(t, "open", harness.ImageDebian, "--memory", "unlimited")
	if said := in.Must(t, "exec", open, "--", "perl", "-e", eatMemory); said != "ate it all" {
		t.Errorf("without a limit the command says %q", said)
	}
}
