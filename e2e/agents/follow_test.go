package agents

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/agbox/agbox/e2e/internal/harness"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// TestAnInboxIsFollowedAcrossAKillOfTheDaemon reads an inbox while messages come, until its
// agent is removed.
func TestAnInboxIsFollowedAcrossAKillOfTheDaemon(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	in.Create(t, "demo", harness.ImageBusybox)
	id := spawn(t, in, "echo up; exec sleep 1000", "--in", "demo")
	up(t, in, id)
	in.Must(t, "agent", "send", id, "one")
	c, ctx := in.Client(t), harness.Bounded(t)
	came, ended := make(chan *agboxv1.AgentMessage), make(chan error, 1)
	go func() {
		defer close(came)
		for m, err := range c.FollowInbox(ctx, id) {
			if err != nil {
				ended <- err
				return
			}
			came <- m
		}
		ended <- nil
	}()
	want := func(seq uint64, text string) {
		t.Helper()
		if m := <-came; m.GetSeq() != seq || m.GetText() != text {
			t.Errorf("message %d, %q came; want %d, %q", m.GetSeq(), m.GetText(), seq, text)
		}
	}
	want(1, "one")
	in.Must(t, "agent", "send", id, "two")
	want(2, "two")
	in.KillDaemon(t)
	in.Must(t, "agent", "send", id, "three")
	want(3, "three")
	in.Must(t, "agent", "kill", "--now", id)
	await(t, in, id, "ABORTED")
	in.Must(t, "agent", "rm", id)
	if m, more := <-came; more {
		t.Errorf("%v came after the last message", m)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestAJournalIsFollowedAcrossAKillOfTheDaemon reads what an agent reports while it reports it,
// in two incarnations.
func TestAJournalIsFollowedAcrossAKillOfTheDaemon(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	box := in.Create(t, "demo", harness.ImageBusybox)
	id := spawn(t, in, gated+`[ $AGBOX_INCARNATION = 2 ] && { agbox-agent say three; pass 3; agbox-agent done complete; exit 0; }
		agbox-agent say one; pass 1; agbox-agent say two; pass 2; exit 5`, "--in", "demo", "--retry-delay", "10ms")
	c, ctx := in.Client(t), harness.Bounded(t)
	came, ended := make(chan string), make(chan error, 1)
	go func() {
		defer close(came)
		for row, err := range c.FollowJournal(ctx, id) {
			if err != nil {
				ended <- err
				return
			}
			var fields struct{ Op, Text string }
			err := json.Unmarshal([]byte(row.GetJson()), &fields)
			came <- fmt.Sprint(row.GetIncarnation(), " ", row.GetRow(), " ", fields.Op, fields.Text, err)
		}
		ended <- nil
	}()
	want := func(row string) {
		t.Helper()
		if got := <-came; got != row+"<nil>" {
			t.Errorf("%q came; want %q", got, row)
		}
	}
	want("1 1 sayone")
	open(t, in, box, 1)
	want("1 2 saytwo")
	in.KillDaemon(t)
	open(t, in, box, 2)
	in.Must(t, "agent", "ls") // starts the next daemon
	want("2 1 saythree")
	open(t, in, box, 3)
	want("2 2 done")
	if row, more := <-came; more {
		t.Errorf("%v came after the last report", row)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if all, followed := in.Must(t, "agent", "journal", id), in.Must(t, "agent", "journal", "-f", id); all != followed {
		t.Errorf("the journal of an ended agent is\n%s\nfollowed it is\n%s", all, followed)
	}
	in.Agbox(t, "agent", "journal", "-f", "-n", "1", id).Want(t, 2)
}

// TestTheOutputOfAnAgentIsFollowedFromBeforeItsStart: an incarnation begins before its command does.
func TestTheOutputOfAnAgentIsFollowedFromBeforeItsStart(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	in.Must(t, "agent", "spawn", "fixer", "--image", harness.ImageBusybox, "--", "sh", "-c", "echo one; agbox-agent done complete; echo two")
	in.Agbox(t, "agent", "logs", "-f", "fixer").Want(t, 0).WantOutput(t, "one\ntwo\n", "")
}
