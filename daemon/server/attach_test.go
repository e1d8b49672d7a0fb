package server

import (
	"context"
	"io"
	"log/slog"
	"os"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/internal/paths"
	"github.com/agbox/agbox/logs"
	"github.com/agbox/agbox/logs/notify"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/store"
)

// attachable answers calls about the exec "e" in the READY sandbox "a", which runs
// and has written something.
func attachable(t *testing.T) *execCalls {
	t.Helper()
	dir := t.TempDir()
	install := paths.Install{Data: dir, Config: dir, Run: dir}
	if err := os.MkdirAll(install.SandboxLogs("a"), 0o700); err != nil {
		t.Fatal(err)
	}
	db, err := store.Open(t.Context(), store.Options{Path: install.Database(), Sentinel: install.Sentinel()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	book, err := ledger.Open(t.Context(), db, time.Now, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	sb, err := book.Create(t.Context(), "a", &agboxv1.CreateSpec{Image: "img"})
	if err == nil {
		_, err = book.Emit(t.Context(), sb.Record, &agboxv1.SandboxEvent{EventType: agboxv1.EventType_SANDBOX_READY})
	}
	if err == nil {
		_, err = book.AcceptExec(t.Context(), &agboxv1.CreateExecRequest{SandboxId: "a", ExecId: "e", Command: []string{"cat"}}, "boot")
	}
	if err != nil {
		t.Fatal(err)
	}
	notifier, err := notify.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = notifier.Close() })
	folder, err := logs.OpenDir(install.SandboxLogs("a"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = folder.Close() })
	w, err := folder.Create("e", logs.WriterOptions{Owner: logs.KeepOwner})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.Close() })
	w.Write(logs.Stdout, time.Now(), []byte("hello"))
	return &execCalls{paths: install, ledger: book, logs: notifier, life: newLifetime()}
}

// stuckStream is the call of a client that says what it wants, takes the answer,
// and then takes nothing until the call is over.
type stuckStream struct {
	grpc.ServerStream
	ctx  context.Context
	open *agboxv1.AttachOpen
	sent int
	over chan struct{}
}

func (s *stuckStream) Context() context.Context { return s.ctx }

func (s *stuckStream) Send(*agboxv1.AttachExecResponse) error {
	if s.sent++; s.sent > 1 {
		<-s.over
		return io.EOF
	}
	return nil
}

func (s *stuckStream) Recv() (*agboxv1.AttachExecRequest, error) {
	if open := s.open; open != nil {
		s.open = nil
		return &agboxv1.AttachExecRequest{Item: &agboxv1.AttachExecRequest_Open{Open: open}}, nil
	}
	<-s.over
	return nil, context.Canceled
}

// There is news of its input too, which waits for its turn.
func TestATypistThatTakesNothingIsLeft(t *testing.T) {
	s := attachable(t)
	s.slowReader = time.Millisecond
	stream := &stuckStream{ctx: t.Context(), over: make(chan struct{}), open: &agboxv1.AttachOpen{
		ExecId: "e", Input: agboxv1.InputMode_INPUT_MODE_IF_FREE, Writer: "w",
	}}
	err := s.AttachExec(stream)
	if fault.ReasonOf(err) != agboxv1.ErrorReason_OVERLOADED {
		t.Errorf("%v, want OVERLOADED", err)
	}
	close(stream.over)
	s.life.receivers.Wait()
	s.life.senders.Wait()
}
