package supervisor_test

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	guestv1 "github.com/agbox/agbox/proto/guest/v1"
)

// incarnation is a request for an incarnation of an agent.
func incarnation(id, script string) *guestv1.StartRequest {
	req := sh(id, script)
	req.Agent = &guestv1.AgentBoot{AgentId: "a", Incarnation: 1}
	return req
}

const anHour = 3_600_000

func TestADrainEndsWithTermAndThenWithKill(t *testing.T) {
	b := newBox(t)
	c := b.dial()
	ready := b.fifo("ready")
	b.start(c, incarnation("deaf", "trap 'echo told' TERM; echo up > "+ready.Name()+"; while :; do sleep 0.01; done"))
	b.start(c, incarnation("willing", "echo up > "+ready.Name()+"; exec sleep 1000"))
	for range 2 {
		if _, err := ready.Read(make([]byte, 3)); err != nil {
			t.Fatal(err)
		}
	}
	for _, row := range []struct {
		id    string
		drain *guestv1.DrainRequest
		sig   syscall.Signal
	}{
		{"deaf", &guestv1.DrainRequest{PreStopMs: 1, BufferMs: 3000}, syscall.SIGKILL},
		{"willing", &guestv1.DrainRequest{PreStopMs: 1, StepMs: 60_000}, syscall.SIGTERM},
	} {
		row.drain.ExecId = row.id
		if running, err := c.Drain(t.Context(), row.drain); !running || err != nil {
			t.Fatalf("%s: it is running: %v, %v", row.id, running, err)
		}
		if r := b.end(row.id); r.GetSignal() != int32(row.sig) || r.GetEndCause() != guestv1.EndCause_END_CAUSE_DRAIN {
			t.Errorf("%s ended as %v", row.id, r)
		}
	}
	if out := b.stdout("deaf"); out != "told\n" {
		t.Errorf("it was told %q; want SIGTERM once", out)
	}
	if running, err := c.Drain(t.Context(), &guestv1.DrainRequest{ExecId: "willing", BufferMs: 1}); running || err != nil {
		t.Errorf("after the end it is running: %v, %v", running, err)
	}
	if _, err := c.Drain(t.Context(), &guestv1.DrainRequest{ExecId: "willing", StepMs: anHour}); !errdefs.IsInvalidArgument(err) {
		t.Errorf("a drain of an hour: %v", err)
	}
}

// TestAnEndWhileItIsDrainedCountsAsDrained has programs that end before SIGTERM is due, by
// themselves and by a kill.
func TestAnEndWhileItIsDrainedCountsAsDrained(t *testing.T) {
	b := newBox(t)
	c := b.dial()
	gate, deaf := b.fifo("gate"), b.fifo("deaf")
	b.start(c, incarnation("done", "read x < "+gate.Name()+"; exit 3"))
	b.start(c, incarnation("killed", "trap '' TERM; echo deaf > "+deaf.Name()+"; while :; do sleep 0.01; done"))
	word(t, deaf)
	b.start(c, sh("other", "exec sleep 1000"))
	for _, id := range []string{"done", "killed"} {
		for _, preStop := range []uint32{60_000, 1} { // the second drain changes nothing
			if running, err := c.Drain(t.Context(), &guestv1.DrainRequest{ExecId: id, PreStopMs: preStop, BufferMs: 1}); !running || err != nil {
				t.Fatalf("%s: %v, %v", id, running, err)
			}
		}
	}
	if running, err := c.Drain(t.Context(), &guestv1.DrainRequest{ExecId: "other", BufferMs: 1}); running || err != nil {
		t.Errorf("a command that is no incarnation is drained: %v, %v", running, err)
	}
	if _, err := gate.WriteString("go\n"); err != nil {
		t.Fatal(err)
	}
	if r := b.end("done"); r.GetExitCode() != 3 || r.GetEndCause() != guestv1.EndCause_END_CAUSE_DRAIN {
		t.Errorf("it ended as %v", r)
	}
	if _, err := c.Cancel(t.Context(), "killed", 10*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	if r := b.end("killed"); r.GetSignal() != int32(syscall.SIGKILL) || r.GetEndCause() != guestv1.EndCause_END_CAUSE_DRAIN {
		t.Errorf("it ended as %v", r)
	}
	if rows := b.file("logs/done.journal.jsonl"); strings.Count(rows, `"op":"drain"`) != 1 {
		t.Errorf("the journal is %q; want one row about the drain", rows)
	}
	if _, err := c.Cancel(t.Context(), "other", 0); err != nil {
		t.Fatal(err)
	}
	if r := b.end("other"); r.GetEndCause() != guestv1.EndCause_END_CAUSE_REQUEST {
		t.Errorf("it ended as %v", r)
	}
}
