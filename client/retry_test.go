package client

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

type logStream = grpc.ServerStreamingServer[agboxv1.FollowExecLogsResponse]

func chunk(stream agboxv1.LogStream, offset int, data string) *agboxv1.FollowExecLogsResponse {
	return &agboxv1.FollowExecLogsResponse{Item: &agboxv1.FollowExecLogsResponse_Chunk{
		Chunk: &agboxv1.LogChunk{Stream: stream, Offset: uint64(offset), Data: []byte(data)}}}
}

func logEnd(e *agboxv1.ExecStatus) *agboxv1.FollowExecLogsResponse {
	return &agboxv1.FollowExecLogsResponse{Item: &agboxv1.FollowExecLogsResponse_End{End: &agboxv1.LogEnd{Exec: e}}}
}

const (
	stdout = agboxv1.LogStream_LOG_STREAM_STDOUT
	stderr = agboxv1.LogStream_LOG_STREAM_STDERR
)

// cutting is a writer that breaks the connection after each write.
type cutting struct {
	bytes.Buffer
	cut func()
}

func (c *cutting) Write(p []byte) (int, error) {
	defer c.cut()
	return c.Buffer.Write(p)
}

// The stream breaks after each chunk, in three ways, and each resumed stream starts a few
// bytes too early.
func TestOutputIsWholeWhenTheStreamBreaksAgainAndAgain(t *testing.T) {
	out, errs := strings.Repeat("0123456789", 80), strings.Repeat("abcdefg", 80)
	h := serve(t, &script{})
	var streams atomic.Int32
	h.script.logs = func(in *agboxv1.FollowExecLogsRequest, s logStream) error {
		opened := streams.Add(1)
		o, e := int(in.GetCursor().GetStdoutOffset()), int(in.GetCursor().GetStderrOffset())
		switch {
		case o < len(out):
			back := max(0, o-3)
			_ = s.Send(chunk(stdout, back, out[back:min(len(out), o+13)]))
		case e < len(errs):
			_ = s.Send(chunk(stderr, e, errs[e:min(len(errs), e+11)]))
		default:
			return s.Send(logEnd(&agboxv1.ExecStatus{State: agboxv1.ExecState_EXEC_STATE_FINISHED, ExitCode: 7}))
		}
		switch opened % 3 {
		case 0:
			return nil
		case 1:
			return reject(codes.Unavailable, agboxv1.ErrorReason_DAEMON_STOPPING, "agboxd is stopping.")
		}
		<-s.Context().Done()
		return nil
	}
	gotOut, gotErr := &cutting{cut: h.cutter.cut}, &cutting{cut: h.cutter.cut}
	// The pauses after this many losses in a row would take longer than this. One pause
	// does not, even on the slowest machine.
	status, err := h.client(WithReconnect(5*time.Second)).CopyOutput(t.Context(), "e", gotOut, gotErr)
	if err != nil {
		t.Fatal(err)
	}
	if gotOut.String() != out || gotErr.String() != errs || status.Code != 7 {
		t.Errorf("got %q, %q, code %d", gotOut.String(), gotErr.String(), status.Code)
	}
	if n := streams.Load(); n < 100 {
		t.Errorf("the stream was opened %d times only", n)
	}
}

func TestAGapInTheOutputIsAnError(t *testing.T) {
	h := serve(t, &script{logs: func(_ *agboxv1.FollowExecLogsRequest, s logStream) error {
		_ = s.Send(chunk(stdout, 0, "ab"))
		return s.Send(chunk(stdout, 5, "f"))
	}})
	var got bytes.Buffer
	_, err := h.client().CopyOutput(t.Context(), "e", &got, &got)
	var e *Error
	if !errors.As(err, &e) || e.Code != codes.DataLoss || got.String() != "ab" {
		t.Errorf("got %q, %v", got.String(), err)
	}
}

func dropped(stream agboxv1.LogStream, offset int, n uint64) *agboxv1.FollowExecLogsResponse {
	m := chunk(stream, offset, "")
	m.GetChunk().DroppedBytes = n
	return m
}

// The daemon does not know which gaps at a cursor were reported before the connection
// broke.
func TestMissingOutputIsToldOnceWhenTheStreamBreaks(t *testing.T) {
	calls := 0
	h := serve(t, &script{logs: func(in *agboxv1.FollowExecLogsRequest, s logStream) error {
		calls++
		switch calls {
		case 1:
			_ = s.Send(dropped(stderr, 0, 4))
			_ = s.Send(chunk(stdout, 0, "ab"))
			_ = s.Send(dropped(stdout, 2, 5))
			return reject(codes.Unavailable, agboxv1.ErrorReason_DAEMON_STOPPING, "The daemon is stopping.")
		case 2:
			_ = s.Send(dropped(stderr, 0, 4))
			_ = s.Send(dropped(stdout, 2, 5))
			_ = s.Send(dropped(stdout, 2, 1))
			return reject(codes.Unavailable, agboxv1.ErrorReason_DAEMON_STOPPING, "The daemon is stopping.")
		}
		_ = s.Send(dropped(stdout, 2, 6))
		_ = s.Send(chunk(stdout, 2, "c"))
		_ = s.Send(dropped(stdout, 3, 2))
		return s.Send(logEnd(&agboxv1.ExecStatus{}))
	}})
	var got []string
	for item, err := range h.client().FollowLogs(t.Context(), "e", LogOptions{}) {
		if err != nil {
			t.Fatal(err)
		}
		if item.End == nil {
			got = append(got, fmt.Sprintf("%d@%d:%s-%d", item.Stream, item.Offset, item.Data, item.Dropped))
		}
	}
	if want := []string{"2@0:-4", "1@0:ab-0", "1@2:-5", "1@2:-1", "1@2:c-0", "1@3:-2"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestAStaleCursorIsReportedAndNotSkipped(t *testing.T) {
	h := serve(t, &script{logs: func(*agboxv1.FollowExecLogsRequest, logStream) error {
		return reject(codes.OutOfRange, agboxv1.ErrorReason_CURSOR_OUT_OF_RANGE, "The cursor is too old.")
	}})
	var got []error
	for _, err := range h.client().FollowLogs(t.Context(), "e", LogOptions{Cursor: Cursor{Stdout: 9}}) {
		got = append(got, err)
	}
	if len(got) != 1 || !errors.Is(got[0], ErrOutOfRange) {
		t.Errorf("got %v", got)
	}
}

func TestASlowReaderThatWasDroppedGoesOn(t *testing.T) {
	h := serve(t, &script{logs: func(in *agboxv1.FollowExecLogsRequest, s logStream) error {
		if in.GetCursor().GetStdoutOffset() == 0 {
			_ = s.Send(chunk(stdout, 0, "one"))
			return reject(codes.ResourceExhausted, agboxv1.ErrorReason_OVERLOADED, "You read too slowly.")
		}
		_ = s.Send(chunk(stdout, 3, "two"))
		return s.Send(logEnd(&agboxv1.ExecStatus{State: agboxv1.ExecState_EXEC_STATE_FINISHED}))
	}})
	var got bytes.Buffer
	if _, err := h.client().CopyOutput(t.Context(), "e", &got, &got); err != nil || got.String() != "onetwo" {
		t.Errorf("got %q, %v", got.String(), err)
	}
}

func TestAReaderThatLeavesFreesTheStream(t *testing.T) {
	freed := make(chan struct{})
	h := serve(t, &script{logs: func(_ *agboxv1.FollowExecLogsRequest, s logStream) error {
		_ = s.Send(chunk(stdout, 0, "x"))
		<-s.Context().Done()
		close(freed)
		return s.Context().Err()
	}})
	for item, err := range h.client().FollowLogs(t.Context(), "e", LogOptions{Follow: true}) {
		if err != nil || string(item.Data) != "x" || item.Cursor.Stdout != 1 {
			t.Errorf("got %+v, %v", item, err)
		}
		break
	}
	<-freed
}

func TestRunReportsACommandThatCouldNotStart(t *testing.T) {
	var id string
	h := serve(t, &script{
		exec: func(in *agboxv1.CreateExecRequest) (*agboxv1.CreateExecResponse, error) {
			id = in.GetExecId()
			return &agboxv1.CreateExecResponse{ExecId: id}, nil
		},
		logs: func(in *agboxv1.FollowExecLogsRequest, s logStream) error {
			return s.Send(logEnd(&agboxv1.ExecStatus{ExecId: in.GetExecId(), State: agboxv1.ExecState_EXEC_STATE_FAILED,
				ExitCode: 127, ErrorCode: "COMMAND_NOT_FOUND", Error: "nope was not found."}))
		},
	})
	status, err := h.client().Run(t.Context(), &agboxv1.CreateExecRequest{SandboxId: "box", Command: []string{"nope"}}, nil, nil)
	var e *Error
	if !errors.As(err, &e) || e.Reason != "COMMAND_NOT_FOUND" || status.Code != 127 || e.Metadata["exec_id"] != id || id == "" {
		t.Errorf("got %+v, %v", status, err)
	}
}

type eventStream = grpc.ServerStreamingServer[agboxv1.SandboxEvent]

func event(seq int, state agboxv1.SandboxState) *agboxv1.SandboxEvent {
	return &agboxv1.SandboxEvent{EventId: fmt.Sprintf("box/%d", seq), Sequence: uint64(seq), SandboxId: "box", SandboxState: state}
}

func TestEventsGoOnAfterALossWithoutADuplicate(t *testing.T) {
	h := serve(t, &script{})
	var refs record
	h.script.events = func(in *agboxv1.SubscribeSandboxEventsRequest, s eventStream) error {
		refs.add(in.GetSandboxId())
		from := int(in.GetFromSequence())
		if from >= 6 {
			return nil
		}
		// A repeated event and two new ones.
		for seq := max(1, from); seq <= from+2; seq++ {
			_ = s.Send(event(seq, agboxv1.SandboxState_SANDBOX_STATE_PENDING))
		}
		<-s.Context().Done()
		return nil
	}
	var got []uint64
	for ev, err := range h.client().Events(t.Context(), "name", 0) {
		if err != nil {
			t.Fatal(err)
		}
		if got = append(got, ev.GetSequence()); len(got)%2 == 0 {
			h.cutter.cut()
		}
	}
	if fmt.Sprint(got) != "[1 2 3 4 5 6]" {
		t.Errorf("got %v", got)
	}
	if !strings.HasPrefix(refs.String(), "name box") {
		t.Errorf("the stream was opened for %q: the name was not pinned to its id", &refs)
	}
}

func TestAWatchOfNewEventsSkipsNothingAfterALoss(t *testing.T) {
	h := serve(t, &script{})
	var asked record
	h.script.watch = func(in *agboxv1.WatchEventsRequest, s grpc.ServerStreamingServer[agboxv1.WatchEventsResponse]) error {
		streams := asked.add(fmt.Sprintf("%d/%v", in.GetAfterPosition(), in.GetLiveOnly()))
		at := max(in.GetAfterPosition(), 40)
		_ = s.Send(&agboxv1.WatchEventsResponse{Position: at})
		if streams > 1 {
			_ = s.Send(&agboxv1.WatchEventsResponse{Position: at + 1, Event: event(int(at+1), 0)})
		}
		<-s.Context().Done()
		return nil
	}
	var got []uint64
	for m, err := range h.client().WatchEvents(t.Context(), WatchOptions{LiveOnly: true}) {
		if err != nil {
			t.Fatal(err)
		}
		if got = append(got, m.GetPosition()); len(got) == 3 {
			break
		}
		h.cutter.cut()
	}
	if fmt.Sprint(got) != "[40 41 42]" || asked.String() != "0/true 40/false 41/false" {
		t.Errorf("got %v, asked %v", got, &asked)
	}
}

// Events that are not selected also advance a watch. So the watch can resume if they are
// removed meanwhile.
func TestAWatchResumesAfterWhatItHasPassed(t *testing.T) {
	h := serve(t, &script{})
	var asked record
	h.script.watch = func(in *agboxv1.WatchEventsRequest, s grpc.ServerStreamingServer[agboxv1.WatchEventsResponse]) error {
		at := in.GetAfterPosition()
		_ = s.Send(&agboxv1.WatchEventsResponse{Position: at})
		if asked.add(fmt.Sprint(at)) == 1 {
			_ = s.Send(&agboxv1.WatchEventsResponse{Position: 41, Event: event(1, 0)})
			_ = s.Send(&agboxv1.WatchEventsResponse{Position: 120})
			return status.Error(codes.Unavailable, "stopping")
		}
		_ = s.Send(&agboxv1.WatchEventsResponse{Position: 121, Event: event(2, 0)})
		<-s.Context().Done()
		return nil
	}
	var got []uint64
	for m, err := range h.client().WatchEvents(t.Context(), WatchOptions{After: 40, Labels: map[string]string{"a": "b"}}) {
		if err != nil {
			t.Fatal(err)
		}
		if got = append(got, m.GetPosition()); len(got) == 3 {
			break
		}
	}
	if fmt.Sprint(got) != "[40 41 121]" || asked.String() != "40 120" {
		t.Errorf("got %v, asked %v", got, &asked)
	}
}

func TestPastEventsEndAtTheNewest(t *testing.T) {
	h := serve(t, &script{
		get: func(*agboxv1.GetSandboxRequest) (*agboxv1.GetSandboxResponse, error) {
			return &agboxv1.GetSandboxResponse{Sandbox: &agboxv1.SandboxHandle{SandboxId: "box", LastEventSequence: 3}}, nil
		},
		events: func(in *agboxv1.SubscribeSandboxEventsRequest, s eventStream) error {
			for seq := int(in.GetFromSequence()) + 1; seq <= 3; seq++ {
				_ = s.Send(event(seq, 0))
			}
			<-s.Context().Done()
			return nil
		},
		watch: func(in *agboxv1.WatchEventsRequest, s grpc.ServerStreamingServer[agboxv1.WatchEventsResponse]) error {
			at := in.GetAfterPosition()
			_ = s.Send(&agboxv1.WatchEventsResponse{Position: at, NewestPosition: 2})
			for ; at < 2; at++ {
				_ = s.Send(&agboxv1.WatchEventsResponse{Position: at + 1, Event: event(1, 0)})
			}
			<-s.Context().Done()
			return nil
		},
	})
	c := h.client()
	for after, want := range []int{3, 2, 1, 0} {
		var n int
		for _, err := range c.PastEvents(t.Context(), "box", uint64(after)) {
			if n++; err != nil {
				t.Fatal(err)
			}
		}
		if n != want {
			t.Errorf("after %d: %d events, want %d", after, n, want)
		}
	}
	for after, want := range []int{2, 1, 0} {
		var n int
		for _, err := range c.PastEventsOfAll(t.Context(), uint64(after)) {
			if n++; err != nil {
				t.Fatal(err)
			}
		}
		if n != want {
			t.Errorf("of all after %d: %d events, want %d", after, n, want)
		}
	}
}

func TestAStreamIsGivenUpWhenTheDaemonStaysAway(t *testing.T) {
	h := serve(t, &script{})
	h.script.logs = func(_ *agboxv1.FollowExecLogsRequest, s logStream) error {
		_ = h.cutter.Close() // nobody listens any more
		h.cutter.cut()
		return nil
	}
	var got bytes.Buffer
	_, err := h.client(WithReconnect(30*time.Millisecond)).CopyOutput(t.Context(), "e", &got, &got)
	if !errors.Is(err, ErrDaemonUnreachable) {
		t.Errorf("got %v", err)
	}
}

// A client that lost its connection asks for the missing output, not for the last lines
// at that time.
func TestATailGoesOnFromItsCursor(t *testing.T) {
	lines := uint64(3)
	var asked []*agboxv1.FollowExecLogsRequest
	h := serve(t, &script{logs: func(in *agboxv1.FollowExecLogsRequest, s logStream) error {
		asked = append(asked, in)
		switch len(asked) {
		case 1: // before the position is known
			return reject(codes.Unavailable, agboxv1.ErrorReason_DAEMON_STOPPING, "agboxd is stopping.")
		case 2:
			_ = s.Send(&agboxv1.FollowExecLogsResponse{Item: &agboxv1.FollowExecLogsResponse_Moved{
				Moved: &agboxv1.LogCursor{StdoutOffset: 10, StderrOffset: 5}}})
			_ = s.Send(chunk(stdout, 10, "ab"))
			return reject(codes.Unavailable, agboxv1.ErrorReason_DAEMON_STOPPING, "agboxd is stopping.")
		}
		_ = s.Send(chunk(stdout, 12, "cd"))
		return s.Send(logEnd(&agboxv1.ExecStatus{State: agboxv1.ExecState_EXEC_STATE_FINISHED}))
	}})
	got := ""
	for item, err := range h.client().FollowLogs(t.Context(), "e", LogOptions{Follow: true, TailLines: &lines}) {
		if err != nil {
			t.Fatal(err)
		}
		got += string(item.Data)
	}
	if got != "abcd" || len(asked) != 3 {
		t.Fatalf("got %q with %v", got, asked)
	}
	last := asked[2]
	if asked[1].GetTailLines() != lines || last.TailLines != nil || last.GetCursor().GetStdoutOffset() != 12 || last.GetCursor().GetStderrOffset() != 5 {
		t.Errorf("asked %v", asked)
	}
}

// A reader that stops in the middle of a message gets no more of it.
func TestBatchesAreReadInTheirOrderAndOnlyAsFarAsWanted(t *testing.T) {
	h := serve(t, &script{})
	h.script.logs = func(in *agboxv1.FollowExecLogsRequest, s logStream) error {
		if !in.GetBatch() {
			t.Error("no batches were asked for")
		}
		var batch agboxv1.LogBatch
		for i := range 3 {
			batch.Chunks = append(batch.Chunks, chunk(stdout, i, "o").GetChunk(), chunk(stderr, i, "e").GetChunk())
		}
		_ = s.Send(&agboxv1.FollowExecLogsResponse{Item: &agboxv1.FollowExecLogsResponse_Batch{Batch: &batch}})
		return s.Send(logEnd(&agboxv1.ExecStatus{}))
	}
	got := ""
	var last Cursor
	for item, err := range h.client().FollowLogs(t.Context(), "e", LogOptions{}) {
		if err != nil {
			t.Fatal(err)
		}
		got, last = got+string(item.Data), item.Cursor
		if len(got) == 5 {
			break
		}
	}
	if want := (Cursor{Stdout: 3, Stderr: 2}); got != "oeoeo" || last != want {
		t.Errorf("got %q up to %v", got, last)
	}
}
