package client

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
)

type attachStream = grpc.BidiStreamingServer[agboxv1.AttachExecRequest, agboxv1.AttachExecResponse]

// echoing is an exec that echoes its input, as a terminal does. It outlives its
// connections.
type echoing struct {
	mu   sync.Mutex // guards the fields below
	got  []byte
	eofs int
	// opened has the first message of each connection.
	opened []*agboxv1.AttachOpen
	sizes  []string
	// cut breaks the connection after every this many bytes; 0 means never.
	every int
	cut   func()
	// looking is true while the client may not type.
	looking bool
}

func (e *echoing) serve(s attachStream) error {
	m, err := s.Recv()
	if err != nil {
		return err
	}
	open := m.GetOpen()
	e.mu.Lock()
	e.opened = append(e.opened, open)
	count, granted := uint64(len(e.got)), !e.looking
	e.mu.Unlock()
	at := open.GetCursor().GetStdoutOffset()
	_ = s.Send(&agboxv1.AttachExecResponse{Item: &agboxv1.AttachExecResponse_Attached{Attached: &agboxv1.Attached{
		Exec: &agboxv1.ExecStatus{ExecId: "e"}, Input: granted, InputOffset: count, Cursor: open.GetCursor(), Typist: "other-1",
	}}})
	for {
		if at, err = e.echo(s, at); err != nil {
			return err
		}
		m, err := s.Recv()
		if err != nil {
			return err
		}
		if done, err := e.take(s, m); done || err != nil {
			return err
		}
	}
}

// echo sends the output from an offset on.
func (e *echoing) echo(s attachStream, at uint64) (uint64, error) {
	e.mu.Lock()
	rest := bytes.Clone(e.got[at:])
	e.mu.Unlock()
	if len(rest) == 0 {
		return at, nil
	}
	err := s.Send(&agboxv1.AttachExecResponse{Item: &agboxv1.AttachExecResponse_Chunk{
		Chunk: &agboxv1.LogChunk{Stream: stdout, Offset: at, Data: rest}}})
	return at + uint64(len(rest)), err
}

func (e *echoing) take(s attachStream, m *agboxv1.AttachExecRequest) (done bool, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if size := m.GetResize(); size != nil {
		e.sizes = append(e.sizes, fmt.Sprintf("%dx%d", size.GetRows(), size.GetColumns()))
		return false, nil
	}
	in := m.GetInput()
	if in == nil || in.GetOffset() > uint64(len(e.got)) {
		return true, reject(codes.InvalidArgument, agboxv1.ErrorReason_INVALID_REQUEST, "There is a gap.")
	}
	before := len(e.got)
	known := min(uint64(len(e.got))-in.GetOffset(), uint64(len(in.GetData())))
	e.got = append(e.got, in.GetData()[known:]...)
	if e.every > 0 && len(e.got)/e.every != before/e.every {
		e.cut() // the input has arrived, but the client does not know
		<-s.Context().Done()
		return true, nil
	}
	if err := s.Send(&agboxv1.AttachExecResponse{Item: &agboxv1.AttachExecResponse_Ack{
		Ack: &agboxv1.InputAck{Offset: uint64(len(e.got)), Eof: in.GetEof()}}}); err != nil {
		return true, err
	}
	if !in.GetEof() {
		return false, nil
	}
	e.eofs++
	e.mu.Unlock()
	_, err = e.echo(s, uint64(before))
	e.mu.Lock()
	if err == nil {
		err = s.Send(&agboxv1.AttachExecResponse{Item: &agboxv1.AttachExecResponse_End{End: &agboxv1.LogEnd{
			Exec: &agboxv1.ExecStatus{ExecId: "e", State: agboxv1.ExecState_EXEC_STATE_FINISHED, ExitCode: 7}}}})
	}
	return true, err
}

func TestInputAndOutputAreWholeThoughTheConnectionBreaksAgainAndAgain(t *testing.T) {
	e := &echoing{every: 300_000}
	h := serve(t, &script{attach: e.serve})
	e.cut = func() { h.cutter.cut() }
	s, err := h.client().AttachExec(t.Context(), AttachOptions{Exec: "e", Input: agboxv1.InputMode_INPUT_MODE_IF_FREE, Writer: "me"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Detach()
	s.Resize(30, 90)
	var want bytes.Buffer
	var typing sync.WaitGroup
	for i := range 200_000 {
		fmt.Fprintf(&want, "line %d\n", i)
	}
	typing.Go(func() {
		for rest := want.Bytes(); len(rest) > 0; {
			n := min(len(rest), 70_000)
			if _, err := s.Write(rest[:n]); err != nil {
				t.Error(err)
				return
			}
			rest = rest[n:]
		}
		_ = s.CloseWrite()
	})
	var got bytes.Buffer
	code := int32(0)
	for item, err := range s.Items() {
		if err != nil {
			t.Fatal(err)
		}
		got.Write(item.Data)
		if item.End != nil {
			code = item.End.GetExec().GetExitCode()
		}
	}
	typing.Wait()
	if !bytes.Equal(e.got, want.Bytes()) || e.eofs != 1 {
		t.Errorf("%d bytes arrived and %d ends, want %d and 1", len(e.got), e.eofs, want.Len())
	}
	if !bytes.Equal(got.Bytes(), want.Bytes()) || code != 7 {
		t.Errorf("%d bytes came back, want %d; code %d", got.Len(), want.Len(), code)
	}
	if len(e.opened) < 5 {
		t.Fatalf("there were %d connections only", len(e.opened))
	}
	for i, o := range e.opened {
		if o.GetTyped() != (i > 0) || o.GetWriter() != e.opened[0].GetWriter() || !strings.HasPrefix(o.GetWriter(), "me-") {
			t.Errorf("connection %d opened with %v", i, o)
		}
	}
	if len(e.sizes) != len(e.opened) || e.sizes[0] != "30x90" {
		t.Errorf("sizes %v over %d connections, want one each", e.sizes, len(e.opened))
	}
}

func TestWhoLooksOnDoesNotTypeAndIsTold(t *testing.T) {
	grant := make(chan bool)
	e := &echoing{looking: true}
	h := serve(t, &script{attach: func(s attachStream) error {
		done := make(chan error, 1)
		go func() { done <- e.serve(s) }()
		for {
			select {
			case granted := <-grant:
				_ = s.Send(&agboxv1.AttachExecResponse{Item: &agboxv1.AttachExecResponse_Input{
					Input: &agboxv1.InputChanged{Granted: granted, Typist: "other-2"}}})
			case err := <-done:
				return err
			}
		}
	}})
	changed := make(chan string, 8)
	s, err := h.client().AttachExec(t.Context(), AttachOptions{
		Exec: "e", Input: agboxv1.InputMode_INPUT_MODE_IF_FREE,
		OnInput: func(granted bool, typist string) { changed <- fmt.Sprint(granted, " ", typist) },
	})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Detach()
	if s.Attached().GetInput() || s.Attached().GetTypist() != "other-1" || s.MayType() {
		t.Errorf("attached as %v", s.Attached())
	}
	if _, err := s.Type([]byte("x")); !errors.Is(err, ErrNotTypist) {
		t.Errorf("typing gave %v", err)
	}
	wrote := make(chan error, 1)
	go func() {
		_, err := s.Write([]byte("patient"))
		_ = s.CloseWrite()
		wrote <- err
	}()
	grant <- true
	if got := <-changed; got != "true other-2" || !s.MayType() {
		t.Errorf("told %q", got)
	}
	var got bytes.Buffer
	for item, err := range s.Items() {
		if err != nil {
			t.Fatal(err)
		}
		got.Write(item.Data)
	}
	if err := <-wrote; err != nil || got.String() != "patient" {
		t.Errorf("got %q, %v", got.String(), err)
	}
	if _, err := s.Write([]byte("late")); !errors.Is(err, ErrInputClosed) {
		t.Errorf("writing after the end gave %v", err)
	}
}

func TestDetachEndsEverythingThatWaits(t *testing.T) {
	e := &echoing{looking: true}
	h := serve(t, &script{attach: e.serve})
	s, err := h.client().AttachExec(t.Context(), AttachOptions{Exec: "e", Input: agboxv1.InputMode_INPUT_MODE_IF_FREE})
	if err != nil {
		t.Fatal(err)
	}
	wrote, read := make(chan error, 1), make(chan error, 1)
	go func() {
		_, err := s.Write([]byte("x"))
		wrote <- err
	}()
	go func() {
		var last error
		for _, err := range s.Items() {
			last = err
		}
		read <- last
	}()
	s.Detach()
	if err := <-wrote; !errors.Is(err, ErrDetached) {
		t.Errorf("Write gave %v", err)
	}
	if err := <-read; !errors.Is(err, ErrDetached) {
		t.Errorf("Items gave %v", err)
	}
}

func TestACommandThatDoesNotReadIsToldToWhoWrites(t *testing.T) {
	h := serve(t, &script{attach: func(s attachStream) error {
		_, _ = s.Recv()
		_ = s.Send(&agboxv1.AttachExecResponse{Item: &agboxv1.AttachExecResponse_Attached{Attached: &agboxv1.Attached{
			Exec: &agboxv1.ExecStatus{ExecId: "e"}, Input: true}}})
		_, _ = s.Recv()
		_ = s.Send(&agboxv1.AttachExecResponse{Item: &agboxv1.AttachExecResponse_Ack{Ack: &agboxv1.InputAck{Closed: true}}})
		<-s.Context().Done()
		return nil
	}})
	s, err := h.client().AttachExec(t.Context(), AttachOptions{Exec: "e", Input: agboxv1.InputMode_INPUT_MODE_IF_FREE})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Detach()
	if n, err := s.Write(make([]byte, 3<<20)); !errors.Is(err, ErrInputClosed) || n > inputBuffer {
		t.Errorf("wrote %d bytes, %v", n, err)
	}
}

// The restarted daemon counts bytes for which the client got no acknowledgement, only the
// notice that the input is closed.
func TestASessionOutlivesTheDaemonAfterItsCommandHasClosedItsInput(t *testing.T) {
	h := serve(t, &script{})
	var connections atomic.Int32
	h.script.attach = func(s attachStream) error {
		first := connections.Add(1) == 1
		_, _ = s.Recv()
		attached := &agboxv1.Attached{Exec: &agboxv1.ExecStatus{ExecId: "e"}, Input: true}
		if !first {
			attached.InputOffset = 5
		}
		_ = s.Send(&agboxv1.AttachExecResponse{Item: &agboxv1.AttachExecResponse_Attached{Attached: attached}})
		if first {
			_, _ = s.Recv()
		}
		_ = s.Send(&agboxv1.AttachExecResponse{Item: &agboxv1.AttachExecResponse_Ack{Ack: &agboxv1.InputAck{Offset: 5, Closed: true}}})
		if first {
			return reject(codes.Unavailable, agboxv1.ErrorReason_DAEMON_STOPPING, "agboxd is stopping.")
		}
		return s.Send(&agboxv1.AttachExecResponse{Item: &agboxv1.AttachExecResponse_End{End: &agboxv1.LogEnd{
			Exec: &agboxv1.ExecStatus{ExecId: "e", State: agboxv1.ExecState_EXEC_STATE_FINISHED, ExitCode: 7}}}})
	}
	s, err := h.client().AttachExec(t.Context(), AttachOptions{Exec: "e", Input: agboxv1.InputMode_INPUT_MODE_IF_FREE})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Detach()
	if _, err := s.Write([]byte("0123456789")); err != nil {
		t.Fatal(err)
	}
	code := int32(0)
	for item, err := range s.Items() {
		if err != nil {
			t.Fatal(err)
		}
		code = item.End.GetExec().GetExitCode()
	}
	if code != 7 || connections.Load() != 2 {
		t.Errorf("code %d after %d connections", code, connections.Load())
	}
}

// The command ends while the client attaches again: the daemon has no count of its input.
func TestASessionWhoseInputIsClosedWhenItAttachesAgainHearsItsEnd(t *testing.T) {
	h := serve(t, &script{})
	var connections atomic.Int32
	end := make(chan struct{})
	h.script.attach = func(s attachStream) error {
		_, _ = s.Recv()
		attached := &agboxv1.Attached{Exec: &agboxv1.ExecStatus{ExecId: "e"}, Input: true}
		if connections.Add(1) > 1 {
			attached.Input, attached.InputClosed = false, true
		}
		_ = s.Send(&agboxv1.AttachExecResponse{Item: &agboxv1.AttachExecResponse_Attached{Attached: attached}})
		if attached.GetInput() {
			_, _ = s.Recv()
			_ = s.Send(&agboxv1.AttachExecResponse{Item: &agboxv1.AttachExecResponse_Ack{Ack: &agboxv1.InputAck{Offset: 6}}})
			return reject(codes.Unavailable, agboxv1.ErrorReason_DAEMON_STOPPING, "agboxd is stopping.")
		}
		<-end
		return s.Send(&agboxv1.AttachExecResponse{Item: &agboxv1.AttachExecResponse_End{End: &agboxv1.LogEnd{
			Exec: &agboxv1.ExecStatus{ExecId: "e", State: agboxv1.ExecState_EXEC_STATE_FINISHED, ExitCode: 5}}}})
	}
	s, err := h.client().AttachExec(t.Context(), AttachOptions{
		Exec: "e", Input: agboxv1.InputMode_INPUT_MODE_IF_FREE,
		OnInput: func(granted bool, typist string) { t.Errorf("told of the right to type: %v %q", granted, typist) },
	})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Detach()
	if _, err := s.Write([]byte("hello\n")); err != nil {
		t.Fatal(err)
	}
	for err == nil { // until it has attached again
		_, err = s.Write([]byte("more"))
	}
	if !errors.Is(err, ErrInputClosed) {
		t.Errorf("writing to a closed input gave %v", err)
	}
	close(end)
	code := int32(0)
	for item, err := range s.Items() {
		if err != nil {
			t.Fatal(err)
		}
		code = item.End.GetExec().GetExitCode()
	}
	if code != 5 || connections.Load() != 2 {
		t.Errorf("code %d after %d connections", code, connections.Load())
	}
}

// A slow reader is connected again at once. But if the failed connection delivered no
// output, the daemon is short of something, and a new connection would fail too.
func TestASessionGoesOnAfterOverloadOnlyWhereItGotOutput(t *testing.T) {
	var opened []*agboxv1.AttachOpen
	h := serve(t, &script{attach: func(s attachStream) error {
		m, err := s.Recv()
		if err != nil {
			return err
		}
		opened = append(opened, m.GetOpen())
		_ = s.Send(&agboxv1.AttachExecResponse{Item: &agboxv1.AttachExecResponse_Attached{Attached: &agboxv1.Attached{
			Exec: &agboxv1.ExecStatus{ExecId: "e"}, Cursor: m.GetOpen().GetCursor()}}})
		switch len(opened) {
		case 1:
			_ = s.Send(&agboxv1.AttachExecResponse{Item: &agboxv1.AttachExecResponse_Chunk{Chunk: chunk(stdout, 0, "one").GetChunk()}})
		case 2: // the answer to every connection after the command has closed its input
			_ = s.Send(&agboxv1.AttachExecResponse{Item: &agboxv1.AttachExecResponse_Ack{Ack: &agboxv1.InputAck{Closed: true}}})
		default:
			return s.Send(&agboxv1.AttachExecResponse{Item: &agboxv1.AttachExecResponse_End{End: &agboxv1.LogEnd{}}})
		}
		return reject(codes.ResourceExhausted, agboxv1.ErrorReason_OVERLOADED, "Raise the limit.")
	}})
	s, err := h.client().AttachExec(t.Context(), AttachOptions{Exec: "e"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Detach()
	got := ""
	var last error
	for item, err := range s.Items() {
		got, last = got+string(item.Data), err
	}
	if got != "one" || !errors.Is(last, ErrExhausted) || last.Error() != "Raise the limit." {
		t.Errorf("got %q, %v", got, last)
	}
	if len(opened) != 2 || opened[1].GetCursor().GetStdoutOffset() != 3 {
		t.Errorf("opened with %v", opened)
	}
}

// Another client may have taken over while the connection was broken. The client asks to
// keep its right, and the daemon knows whether it still has it.
func TestASessionTakesOverOnce(t *testing.T) {
	var asked record
	h := serve(t, &script{attach: func(s attachStream) error {
		m, err := s.Recv()
		if err != nil {
			return err
		}
		n := asked.add(fmt.Sprintf("%v/%v", m.GetOpen().GetInput(), m.GetOpen().GetTyped()))
		_ = s.Send(&agboxv1.AttachExecResponse{Item: &agboxv1.AttachExecResponse_Attached{Attached: &agboxv1.Attached{
			Exec: &agboxv1.ExecStatus{ExecId: "e"}, Input: n == 1}}})
		if n < 3 {
			return reject(codes.Unavailable, agboxv1.ErrorReason_DAEMON_STOPPING, "agboxd is stopping.")
		}
		return s.Send(&agboxv1.AttachExecResponse{Item: &agboxv1.AttachExecResponse_End{End: &agboxv1.LogEnd{}}})
	}})
	s, err := h.client().AttachExec(t.Context(), AttachOptions{Exec: "e", Input: agboxv1.InputMode_INPUT_MODE_TAKE_OVER})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Detach()
	for _, err := range s.Items() {
		if err != nil {
			t.Fatal(err)
		}
	}
	if want := "INPUT_MODE_TAKE_OVER/false INPUT_MODE_IF_FREE/true INPUT_MODE_IF_FREE/false"; asked.String() != want {
		t.Errorf("asked %v, want %s", &asked, want)
	}
}

func TestAttachingToNothingFailsAtOnce(t *testing.T) {
	h := serve(t, &script{attach: func(attachStream) error {
		return reject(codes.NotFound, agboxv1.ErrorReason_EXEC_NOT_FOUND, "There is no such exec.")
	}})
	if _, err := h.client().AttachExec(t.Context(), AttachOptions{Exec: "e"}); !errors.Is(err, ErrNotFound) {
		t.Errorf("got %v", err)
	}
}

func TestTheEndOfTheCommandEndsAWriteThatWaits(t *testing.T) {
	h := serve(t, &script{attach: func(s attachStream) error {
		_, _ = s.Recv()
		_ = s.Send(&agboxv1.AttachExecResponse{Item: &agboxv1.AttachExecResponse_Attached{Attached: &agboxv1.Attached{
			Exec: &agboxv1.ExecStatus{ExecId: "e"}}}})
		return s.Send(&agboxv1.AttachExecResponse{Item: &agboxv1.AttachExecResponse_End{End: &agboxv1.LogEnd{
			Exec: &agboxv1.ExecStatus{ExecId: "e", State: agboxv1.ExecState_EXEC_STATE_FINISHED}}}})
	}})
	s, err := h.client().AttachExec(t.Context(), AttachOptions{Exec: "e", Input: agboxv1.InputMode_INPUT_MODE_IF_FREE})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Detach()
	wrote := make(chan error, 1)
	go func() {
		_, err := s.Write([]byte("x"))
		wrote <- err
	}()
	for item, err := range s.Items() {
		if err != nil || item.End == nil {
			t.Errorf("got %v, %v", item, err)
		}
	}
	if err := <-wrote; !errors.Is(err, ErrInputClosed) {
		t.Errorf("Write gave %v", err)
	}
}
