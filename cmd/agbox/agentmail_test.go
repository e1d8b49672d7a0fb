package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// notifying runs a notifier in a folder, and returns its messages on stderr after the message
// upto was acknowledged.
func notifying(t *testing.T, command string, upto uint64, again time.Duration, messages ...*agboxv1.AgentMessage) (acks []uint64, said string) {
	t.Helper()
	c := newCLI(t, "")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	n := newNotifier(c.app, command, func(_ context.Context, seq uint64) error {
		if acks = append(acks, seq); seq == upto {
			cancel()
		}
		return nil
	})
	n.again = again
	for _, m := range messages {
		n.add(m)
	}
	var running sync.WaitGroup
	running.Go(func() { n.run(ctx) })
	running.Wait()
	return acks, c.errs.String()
}

func message(seq uint64, text string) *agboxv1.AgentMessage {
	return &agboxv1.AgentMessage{Seq: seq, From: "init", Text: text}
}

func TestACommandGetsEachMessageAsJSONAndNothingElse(t *testing.T) {
	t.Chdir(t.TempDir())
	const hostile = "$(touch owned) `touch owned`\n; touch owned #\x1b]0;owned\a\u202e"
	acks, said := notifying(t, `cat >>got; tr '\0' '\n' </proc/$$/cmdline >>seen; env >>seen`, 7, time.Hour, message(3, "a"), message(7, hostile))
	if len(acks) != 2 || acks[0] != 3 || said != "" {
		t.Errorf("acknowledged %v, said %q", acks, said)
	}
	got, _ := os.ReadFile("got")
	if want := `"text":"$(touch owned) ` + "`touch owned`" + `\n; touch owned #\u001b]0;owned\u0007\u202e"`; strings.Count(string(got), "\n") != 2 || !strings.Contains(string(got), want) {
		t.Errorf("it gets %q, want %q", got, want)
	}
	seen, _ := os.ReadFile("seen")
	if _, err := os.Stat("owned"); !errors.Is(err, os.ErrNotExist) || strings.Contains(string(seen), "owned #") || len(seen) == 0 {
		t.Errorf("a message is more than data: %v, %q", err, seen)
	}
}

// A message whose command fails stays in the inbox, stops no other, and is tried again.
func TestACommandThatFailsLosesAndBlocksNothing(t *testing.T) {
	t.Chdir(t.TempDir())
	command := `m=$(cat); case $m in *poison*) test -e second || { touch second; printf 'no\033[2J'; exit 3; };; esac; echo "$m" >>got`
	acks, said := notifying(t, command, 3, time.Millisecond, message(1, "a"), message(2, "poison"), message(3, "c"))
	if len(acks) != 2 || acks[0] != 1 || acks[1] != 3 {
		t.Errorf("acknowledged %v, want 1, then all: 3 stays for 2", acks)
	}
	if want := "agbox: The command of --notify failed for message 2, which stays in the inbox and is tried again: exit status 3. Its output:\nagbox: no\\x1b[2J\n"; said != want {
		t.Errorf("said %q, want %q", said, want)
	}
	raw, _ := os.ReadFile("got")
	var order []string
	for line := range strings.Lines(string(raw)) {
		_, rest, _ := strings.Cut(line, `"seq":`)
		order = append(order, rest[:1])
	}
	if got := strings.Join(order, " "); got != "1 3 2" {
		t.Errorf("got messages %s", got)
	}
}

// What is acknowledged, an inbox has no more: so the next agbox tells again what failed, and what
// came after it.
func TestTheNextAgboxRepeatsWhatFailedAndWhatCameAfterIt(t *testing.T) {
	t.Chdir(t.TempDir())
	c := newCLI(t, "")
	inbox := []*agboxv1.AgentMessage{message(1, "a"), message(2, "poison"), message(3, "c")}
	tell := func(command string) {
		n := newNotifier(c.app, command, func(_ context.Context, upto uint64) error {
			inbox = slices.DeleteFunc(inbox, func(m *agboxv1.AgentMessage) bool { return m.GetSeq() <= upto })
			return nil
		})
		for _, m := range slices.Clone(inbox) {
			n.add(m)
		}
		n.round(t.Context(), false)
	}
	const take = `echo "$m" | sed 's/.*"text":"\([a-z]*\)".*/\1/' >>got`
	tell(`m=$(cat); case $m in *poison*) exit 3; esac; ` + take)
	tell(`m=$(cat); ` + take)
	got, _ := os.ReadFile("got")
	if want := "a\nc\npoison\nc\n"; string(got) != want || len(inbox) != 0 {
		t.Errorf("the command took %q, want %q, and %d stay", got, want, len(inbox))
	}
	long := strings.Join(strings.Fields(c.agentInboxCommand().Long), " ")
	if want := "stays in the inbox, with those after it, until CMD takes it: if agbox ends before, the next agbox runs CMD for all of these again."; !strings.Contains(long, want) {
		t.Errorf("the help does not say %q", want)
	}
}

func TestACommandThatHangsIsEnded(t *testing.T) {
	c := newCLI(t, "")
	n := newNotifier(c.app, "mkfifo "+filepath.Join(t.TempDir(), "f")+"; sleep 1000 & wait", nil)
	n.bound = time.Millisecond
	if err := n.tell(t.Context(), message(1, "a")); err == nil || !strings.Contains(err.Error(), "longer than 1ms") {
		t.Errorf("it ends with %v", err)
	}
}

func TestOnlyTheOperatorIsNotified(t *testing.T) {
	_, socket := serveScripted(t)
	for _, line := range []string{"agent inbox fixer -f --notify true", "agent inbox init --notify true"} {
		if code, _, errs := agbox(t, socket, strings.Fields(line)...); code != codeUsage || !strings.Contains(errs, "--notify is for") {
			t.Errorf("%s: code %d, %q", line, code, errs)
		}
	}
}
