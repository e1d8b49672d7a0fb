package e2e

import (
	"errors"
	"io"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/agbox/agbox/client"
	"github.com/agbox/agbox/e2e/internal/harness"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

func TestASubscriberGetsTheSnapshotThenThePastThenWhatHappens(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	box := in.Create(t, "demo", harness.ImageBusybox)
	api := agboxv1.NewSandboxServiceClient(in.connect(t))
	stream, err := api.SubscribeSandboxEvents(harness.Bounded(t), &agboxv1.SubscribeSandboxEventsRequest{
		SandboxId: box, IncludeCurrentSnapshot: true})
	if err != nil {
		t.Fatal(err)
	}
	next := func() *agboxv1.SandboxEvent {
		t.Helper()
		event, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		return event
	}
	now := next()
	if !now.GetSnapshot() || now.GetSandboxState() != agboxv1.SandboxState_SANDBOX_STATE_READY || now.GetSequence() == 0 {
		t.Errorf("the first message is %v, want a snapshot of a ready sandbox", now)
	}
	for want := uint64(1); want <= now.GetSequence(); want++ {
		if past := next(); past.GetSequence() != want || !past.GetReplay() || past.GetSnapshot() || past.GetSandboxId() != box {
			t.Errorf("event %d of the past is %v", want, past)
		}
	}
	in.Agbox(t, "exec", "demo", "--", "sh", "-c", "exit 3").Want(t, 3)
	in.Must(t, "rm", "--wait", "demo")
	sequence := now.GetSequence()
	var types []agboxv1.EventType
	for {
		event, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		sequence++
		if event.GetSequence() != sequence || event.GetReplay() || event.GetSnapshot() {
			t.Errorf("live event %d is %v", sequence, event)
		}
		types = append(types, event.GetEventType())
	}
	want := []agboxv1.EventType{agboxv1.EventType_EXEC_STARTED, agboxv1.EventType_EXEC_FINISHED,
		agboxv1.EventType_SANDBOX_DELETE_REQUESTED, agboxv1.EventType_SANDBOX_DELETE_REQUESTED, agboxv1.EventType_SANDBOX_DELETED} // the second is SANDBOX_ENDED
	if len(types) != len(want) {
		t.Fatalf("what happened is %v, want %v", types, want)
	}
	for i := range want {
		if types[i] != want[i] {
			t.Errorf("event %d is %v, want %v", i, types[i], want[i])
		}
	}
}

func TestAWatcherOfAllSandboxesResumesAtItsPosition(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	in.Create(t, "one", harness.ImageScratch)
	two := in.Create(t, "two", harness.ImageScratch, "--label", "team=red")
	c := in.Client(t)
	all := watch(t, c, client.WatchOptions{}, "")
	seen := make(map[string]uint64)
	for _, m := range all {
		id := m.GetEvent().GetSandboxId()
		if seen[id]++; m.GetEvent().GetSequence() != seen[id] || !m.GetEvent().GetReplay() {
			t.Errorf("event %d of sandbox %s is %v", seen[id], id, m)
		}
	}
	if len(seen) != 2 || len(all) < 6 {
		t.Fatalf("the watch shows %v of two sandboxes", seen)
	}
	half := len(all) / 2
	rest := watch(t, c, client.WatchOptions{After: all[half-1].GetPosition()}, "")
	if len(rest) != len(all)-half || rest[0].GetPosition() != all[half].GetPosition() {
		t.Errorf("resumed after event %d of %d, the watch shows %v", half, len(all), rest)
	}
	for _, m := range watch(t, c, client.WatchOptions{Labels: map[string]string{"team": "red"}}, two) {
		if m.GetEvent().GetSandboxId() != two {
			t.Errorf("a watch of one sandbox shows %v", m)
		}
	}
}

// watch returns the events of a watch up to the newest current one, which is one of the
// sandbox if that is given.
func watch(t *testing.T, c *client.Client, o client.WatchOptions, sandbox string) []*agboxv1.WatchEventsResponse {
	t.Helper()
	boxes, err := c.ListSandboxes(harness.Bounded(t), client.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	missing := make(map[string]uint64)
	for _, box := range boxes {
		if sandbox == "" || box.GetSandboxId() == sandbox {
			missing[box.GetSandboxId()] = box.GetLastEventSequence()
		}
	}
	var seen []*agboxv1.WatchEventsResponse
	at := o.After
	for m, err := range c.WatchEvents(harness.Bounded(t), o) {
		if err != nil {
			t.Fatal(err)
		}
		if m.GetEvent() == nil {
			continue
		}
		if m.GetPosition() <= at {
			t.Errorf("position %d comes after %d", m.GetPosition(), at)
		}
		at = m.GetPosition()
		seen = append(seen, m)
		if id := m.GetEvent().GetSandboxId(); missing[id] == m.GetEvent().GetSequence() {
			delete(missing, id)
		}
		if len(missing) == 0 || at >= lastPosition(t, c) {
			break
		}
	}
	return seen
}

// lastPosition returns the position after which a watch sees only new events.
func lastPosition(t *testing.T, c *client.Client) uint64 {
	t.Helper()
	for m, err := range c.WatchEvents(harness.Bounded(t), client.WatchOptions{LiveOnly: true}) {
		if err != nil {
			t.Fatal(err)
		}
		return m.GetPosition()
	}
	return 0
}

func TestCursorsBeyondTheEndAreOutOfRange(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	box := in.Create(t, "demo", harness.ImageBusybox)
	job := in.Must(t, "exec", "-d", "demo", "--", "echo", "four")
	in.Must(t, "logs", "-f", job)
	api := agboxv1.NewSandboxServiceClient(in.connect(t))
	ctx := harness.Bounded(t)
	reason := func(name string) string {
		if name == "of one sandbox" {
			return agboxv1.ErrorReason_SANDBOX_EVENT_SEQUENCE_EXPIRED.String()
		}
		return agboxv1.ErrorReason_CURSOR_OUT_OF_RANGE.String()
	}
	for name, call := range map[string]func() error{
		"of one sandbox": func() error {
			stream, err := api.SubscribeSandboxEvents(ctx, &agboxv1.SubscribeSandboxEventsRequest{SandboxId: box, FromSequence: 1000})
			return first(err, func() error { _, err := stream.Recv(); return err })
		},
		"of all": func() error {
			stream, err := api.WatchEvents(ctx, &agboxv1.WatchEventsRequest{AfterPosition: 1 << 40})
			return first(err, func() error { _, err := stream.Recv(); return err })
		},
		"of a log": func() error {
			stream, err := api.FollowExecLogs(ctx, &agboxv1.FollowExecLogsRequest{ExecId: job, Cursor: &agboxv1.LogCursor{StdoutOffset: 6}})
			return first(err, func() error { _, err := stream.Recv(); return err })
		},
	} {
		if err := call(); status.Code(err) != codes.OutOfRange || reasonOf(err) != reason(name) {
			t.Errorf("a cursor %s beyond the end gives %v (%s)", name, err, reasonOf(err))
		}
	}
}

func first(err error, then func() error) error {
	if err != nil {
		return err
	}
	return then()
}
