package agents

import (
	"fmt"
	"strings"
	"testing"

	"github.com/agbox/agbox/client"
	"github.com/agbox/agbox/e2e/internal/harness"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// counting is a program that counts to 150 over three incarnations, alternately on standard
// output and standard error.
const counting = `i=$(( (AGBOX_INCARNATION - 1) * 50 ))
	while [ $i -lt $(( AGBOX_INCARNATION * 50 )) ]; do
		i=$((i + 1)); echo $i; echo $i >&2; sleep 0.02
	done
	[ $AGBOX_INCARNATION = 3 ]`

// to300 are the lines of counting.
func to150() string {
	var b strings.Builder
	for i := range 150 {
		fmt.Fprintln(&b, i+1)
	}
	return b.String()
}

// TestAnAttachedStreamHasNoGap: over the ends of incarnations, upgrades of the daemon and
// its sudden death, nothing is lost or repeated.
func TestAnAttachedStreamHasNoGap(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	in.Create(t, "demo", harness.ImageBusybox)
	id := spawn(t, in, counting, "--in", "demo", "--retry-delay", "50ms")
	attached := in.Start(t, "agent", "attach", "--tail", "all", "-q", "-o", "text", id)
	c := in.Client(t)
	var items []client.AgentItem
	read := make(chan error, 1)
	go func() {
		for item, err := range c.AttachAgent(harness.Bounded(t), id, client.AgentAttachOptions{}) {
			if err != nil {
				read <- err
				return
			}
			items = append(items, item)
		}
		read <- nil
	}()
	for n := uint32(1); n <= 3; n++ {
		running(t, in, id, n)
		if n == 2 {
			in.Must(t, "daemon", "upgrade")
		}
		in.KillDaemon(t)
		in.Must(t, "agent", "ls") // starts the next one
	}
	await(t, in, id, "COMPLETED")
	r := attached.Wait(t).Want(t, 0)
	harness.WantSame(t, "attached standard output", r.Stdout, to150())
	harness.WantSame(t, "attached standard error", r.Stderr, to150())
	if err := <-read; err != nil {
		t.Fatal(err)
	}
	wantWhole(t, items, wantedSequences(t, in, id))
	wantEveryCursorGoesOn(t, in, id, items)
}

// wantedSequences are those of all events of the agent.
func wantedSequences(t *testing.T, in *harness.Install, id string) (all []uint64) {
	t.Helper()
	for ev, err := range in.Client(t).WatchAgents(harness.Bounded(t), id, 0) {
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, ev.GetSequence())
		if ev.GetType() == agboxv1.AgentEventType_AGENT_ENDED {
			break
		}
	}
	return all
}

// wantWhole checks that a stream has each event and each byte once, each incarnation's
// output between its begin and its end.
func wantWhole(t *testing.T, items []client.AgentItem, sequences []uint64) {
	t.Helper()
	var got []uint64
	var stdout, stderr strings.Builder
	current, ends := uint32(0), 0
	for _, item := range items {
		switch {
		case item.Event != nil:
			got = append(got, item.Event.GetSequence())
			switch item.Event.GetType() {
			case agboxv1.AgentEventType_AGENT_BEGUN:
				current = item.Event.GetIncarnation()
			case agboxv1.AgentEventType_AGENT_INCARNATION_ENDED:
				current = 0
			}
		case item.Output != nil:
			if item.Cursor.Incarnation != current {
				t.Errorf("output of incarnation %d while %d runs", item.Cursor.Incarnation, current)
			}
			if item.Output.End != nil {
				ends++
			}
			if item.Output.Stream == agboxv1.LogStream_LOG_STREAM_STDERR {
				stderr.Write(item.Output.Data)
			} else {
				stdout.Write(item.Output.Data)
			}
		}
	}
	if fmt.Sprint(got) != fmt.Sprint(sequences) {
		t.Errorf("the events of the stream are %v; want %v", got, sequences)
	}
	harness.WantSame(t, "standard output", stdout.String(), to150())
	harness.WantSame(t, "standard error", stderr.String(), to150())
	if last := items[len(items)-1]; ends != 3 || last.End.GetState() != agboxv1.AgentState_AGENT_STATE_COMPLETED {
		t.Errorf("%d ends of output, and the last item is %+v", ends, last)
	}
}

// wantEveryCursorGoesOn reads the rest from each place of a stream.
func wantEveryCursorGoesOn(t *testing.T, in *harness.Install, id string, items []client.AgentItem) {
	t.Helper()
	c := in.Client(t)
	for i := 0; i < len(items)-1; i += max(1, len(items)/20) {
		rest := items[: i+1 : i+1]
		for item, err := range c.AttachAgent(harness.Bounded(t), id, client.AgentAttachOptions{Cursor: items[i].Cursor}) {
			if err != nil {
				t.Fatal(err)
			}
			rest = append(rest, item)
		}
		wantWhole(t, rest, sequencesOf(items))
		if t.Failed() {
			t.Fatalf("from item %d: %+v", i, items[i])
		}
	}
}

func sequencesOf(items []client.AgentItem) (all []uint64) {
	for _, item := range items {
		if item.Event != nil {
			all = append(all, item.Event.GetSequence())
		}
	}
	return all
}

func TestAttachTellsWhatHappens(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	in.Create(t, "demo", harness.ImageBusybox)
	id := spawn(t, in, `echo "run $AGBOX_INCARNATION"; [ $AGBOX_INCARNATION = 1 ] && { echo "no such file" >&2; exit 4; }
		agbox-agent done fail "It cannot be done."`, "fixer", "--in", "demo", "--retry-delay", "10ms")
	await(t, in, id, "FAILED")
	r := in.Agbox(t, "agent", "attach", "--tail", "all", "fixer").Want(t, 1)
	harness.WantSame(t, "output", r.Stdout, "run 1\nrun 2\n")
	for _, want := range []string{
		"agbox: Incarnation 1 begins.", "no such file", "agbox: Incarnation 1 ended with exit code 4. no such file", "agbox: The agent is paused (CRASH). no such file",
		"agbox: Incarnation 2 begins.", "agbox: It reported fail. It cannot be done.", "agbox: The agent is FAILED.", "is FAILED: It cannot be done.",
	} {
		if _, rest, found := strings.Cut(r.Stderr, want); !found {
			t.Errorf("%q is missing or not in its order:\n%s", want, r.Stderr)
		} else {
			r.Stderr = rest
		}
	}
	harness.WantSame(t, "the last line", in.Agbox(t, "agent", "attach", "--tail", "1", "-q", "fixer").Want(t, 1).Stdout, "run 2\n")
	r = in.Agbox(t, "agent", "spawn", "--in", "demo", "--attach", "--", "echo", "done").Want(t, 0)
	if r.Stdout != "done\n" || !strings.Contains(r.Stderr, "agbox: The agent is COMPLETED.") {
		t.Errorf("spawn --attach prints %q and says\n%s", r.Stdout, r.Stderr)
	}
	in.Agbox(t, "agent", "attach", "nobody").Want(t, 3)
	in.Agbox(t, "agent", "attach", "--tail", "x", "fixer").Want(t, 2)
}
