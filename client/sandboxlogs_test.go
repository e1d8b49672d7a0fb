package client

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"google.golang.org/grpc/codes"
)

// boxOf is a sandbox with running execs and no further events.
func boxOf(execs ...*agboxv1.ExecStatus) *script {
	return &script{
		get: func(*agboxv1.GetSandboxRequest) (*agboxv1.GetSandboxResponse, error) {
			return &agboxv1.GetSandboxResponse{Sandbox: &agboxv1.SandboxHandle{SandboxId: "box"}}, nil
		},
		active: func(*agboxv1.ListActiveExecsRequest) (*agboxv1.ListActiveExecsResponse, error) {
			return &agboxv1.ListActiveExecsResponse{Execs: execs}, nil
		},
		events: func(_ *agboxv1.SubscribeSandboxEventsRequest, s eventStream) error {
			<-s.Context().Done()
			return nil
		},
	}
}

// An exec that was removed meanwhile is skipped. One whose log cannot be read is
// reported, and does not block the others.
func TestALogThatCannotBeReadIsNotLeftOutInSilence(t *testing.T) {
	execs := []*agboxv1.ExecStatus{{ExecId: "forgotten"}, {ExecId: "broken"}, {ExecId: "good"}}
	box := boxOf(execs...)
	box.list = func(*agboxv1.ListExecsRequest) (*agboxv1.ListExecsResponse, error) {
		return &agboxv1.ListExecsResponse{Execs: execs}, nil
	}
	box.logs = func(in *agboxv1.FollowExecLogsRequest, s logStream) error {
		switch in.GetExecId() {
		case "forgotten":
			return reject(codes.NotFound, agboxv1.ErrorReason_EXEC_NOT_FOUND, "There is no such exec.")
		case "broken":
			_ = s.Send(chunk(stdout, 0, "one"))
			return reject(codes.DataLoss, agboxv1.ErrorReason_LOG_UNREADABLE, "The log is damaged.")
		}
		return s.Send(logEnd(&agboxv1.ExecStatus{}))
	}
	box.events = func(*agboxv1.SubscribeSandboxEventsRequest, eventStream) error { return nil } // the sandbox is deleted
	c := serve(t, box).client()
	for _, follow := range []bool{false, true} {
		got := make(map[string]SandboxLogItem)
		for item, err := range c.FollowSandboxLogs(t.Context(), "box", SandboxLogOptions{Follow: follow}) {
			if err != nil {
				t.Fatal(err)
			}
			if item.End != nil {
				got[item.Exec.GetExecId()] = item
			}
		}
		broken, good := got["broken"], got["good"]
		if len(got) != 2 || broken.End.GetNotice() != "The log is damaged." || broken.Cursor.Stdout != 3 || good.End.GetNotice() != "" {
			t.Errorf("follow %v: got %v", follow, got)
		}
	}
}

// Once the position of a tail is known it stays, even after a turn without output. Output
// between two turns would not be in a later tail.
func TestATailKeepsItsPlaceBetweenTurns(t *testing.T) {
	var execs []*agboxv1.ExecStatus
	for i := range sandboxStreams + 1 {
		execs = append(execs, &agboxv1.ExecStatus{ExecId: fmt.Sprint("e", i), State: agboxv1.ExecState_EXEC_STATE_RUNNING})
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var mu sync.Mutex // guards placed
	placed := make(map[string]bool)
	box := boxOf(execs...)
	box.logs = func(in *agboxv1.FollowExecLogsRequest, s logStream) error {
		mu.Lock()
		known := placed[in.GetExecId()]
		placed[in.GetExecId()] = in.TailLines == nil
		mu.Unlock()
		switch {
		case known: // the next turn of this exec
			if in.TailLines != nil || in.GetCursor().GetStdoutOffset() != 10 {
				t.Errorf("asked again for %v", in)
			}
			stop()
		case in.TailLines != nil: // a repeated call in the same turn knows the position
			_ = s.Send(&agboxv1.FollowExecLogsResponse{Item: &agboxv1.FollowExecLogsResponse_Moved{
				Moved: &agboxv1.LogCursor{StdoutOffset: 10}}})
			return reject(codes.Unavailable, agboxv1.ErrorReason_DAEMON_STOPPING, "agboxd is stopping.")
		}
		<-s.Context().Done()
		return nil
	}
	for item, err := range serve(t, box).client().FollowSandboxLogs(ctx, "box", SandboxLogOptions{Follow: true, TailLines: new(uint64)}) {
		if ctx.Err() == nil {
			t.Errorf("got %v, %v", item, err)
		}
	}
}

// An exec that was running, one that starts, and one of which only the end was seen are
// read once each. Nothing about them is kept.
func TestWhatHasEndedIsReadOnceAndForgotten(t *testing.T) {
	box := boxOf(&agboxv1.ExecStatus{ExecId: "before"})
	box.execOf = func(in *agboxv1.GetExecRequest) (*agboxv1.GetExecResponse, error) {
		return &agboxv1.GetExecResponse{Exec: &agboxv1.ExecStatus{ExecId: in.GetExecId()}}, nil
	}
	box.events = func(_ *agboxv1.SubscribeSandboxEventsRequest, s eventStream) error {
		for i, what := range []struct {
			exec string
			kind agboxv1.EventType
		}{
			{"new", agboxv1.EventType_EXEC_STARTED}, {"before", agboxv1.EventType_EXEC_FAILED},
			{"new", agboxv1.EventType_EXEC_FINISHED}, {"seen", agboxv1.EventType_EXEC_CANCELLED},
		} {
			ev := event(i+1, 0)
			ev.EventType, ev.Details = what.kind, &agboxv1.SandboxEvent_Exec{Exec: &agboxv1.ExecEventDetails{ExecId: what.exec}}
			_ = s.Send(ev)
		}
		return nil
	}
	var read record
	box.logs = func(in *agboxv1.FollowExecLogsRequest, s logStream) error {
		read.add(in.GetExecId())
		return s.Send(logEnd(&agboxv1.ExecStatus{}))
	}
	g := newGathering(serve(t, box).client(), SandboxLogOptions{Follow: true})
	var taking sync.WaitGroup
	taking.Go(func() {
		for range g.items {
		}
	})
	id := "box"
	err := g.watch(t.Context(), t.Context(), &id)
	g.readers.Wait()
	close(g.items)
	taking.Wait()
	words := strings.Fields(read.String())
	slices.Sort(words)
	if err != nil || !slices.Equal(words, []string{"before", "new", "seen"}) || len(g.known) != 0 {
		t.Errorf("read %v, kept %v, %v", words, g.known, err)
	}
}

// TestOutputGoesOnWhereAnExecWasLost: nothing of it is given twice, also if the first reader is slower
// than the events.
func TestOutputGoesOnWhereAnExecWasLost(t *testing.T) {
	running := &agboxv1.ExecStatus{ExecId: "x", State: agboxv1.ExecState_EXEC_STATE_RUNNING}
	box := boxOf(running)
	box.execOf = func(*agboxv1.GetExecRequest) (*agboxv1.GetExecResponse, error) {
		return &agboxv1.GetExecResponse{Exec: running}, nil
	}
	told := make(chan struct{})
	box.events = func(_ *agboxv1.SubscribeSandboxEventsRequest, s eventStream) error {
		for i, kind := range []agboxv1.EventType{agboxv1.EventType_EXEC_FAILED, agboxv1.EventType_EXEC_FOUND, agboxv1.EventType_EXEC_FINISHED} {
			ev := event(i+1, 0)
			ev.EventType = kind
			ev.Details = &agboxv1.SandboxEvent_Exec{Exec: &agboxv1.ExecEventDetails{ExecId: "x", MayReturn: i == 0}}
			_ = s.Send(ev)
		}
		close(told)
		return nil
	}
	var mu sync.Mutex // guards cursors
	var cursors []uint64
	box.logs = func(in *agboxv1.FollowExecLogsRequest, s logStream) error {
		at := in.GetCursor().GetStdoutOffset()
		mu.Lock()
		cursors = append(cursors, at)
		mu.Unlock()
		<-told
		_ = s.Send(chunk(stdout, int(at), "one"))
		return s.Send(logEnd(running))
	}
	var got strings.Builder
	for item, err := range serve(t, box).client().FollowSandboxLogs(t.Context(), "box", SandboxLogOptions{Follow: true}) {
		if err != nil {
			t.Fatal(err)
		}
		got.Write(item.Data)
	}
	if !slices.Equal(cursors, []uint64{0, 3}) || got.String() != "oneone" {
		t.Errorf("read from %v, got %q; want from 0 and then from 3", cursors, &got)
	}
}
