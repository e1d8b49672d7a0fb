package daemon

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/store"
)

// Calls are told apart by the verb with which their names begin, so that the test below
// covers a new one. It fails if a verb is in neither list.
var (
	readingVerbs = []string{"Get", "List", "Read", "Watch", "Follow", "Subscribe", "Attach", "Wait", "Service", "Resolve", "Ping", "Stat", "Compare", "CopyOut", "Doctor"}
	actingVerbs  = []string{
		"Spawn", "Kill", "Drain", "Pause", "Resume", "Hold", "Close", "Reap", "Delete", "Send", "Break", "Write", "Make", "Remove", "Move", "CopyIn",
		"Advance", "Upgrade", "Create", "Stop", "Restart", "Rename", "Cancel", "Signal", "Run", "ExecIn", "Pull", "Build", "Set",
	}
)

func beginsWithOne(name protoreflect.Name, verbs []string) bool {
	for _, verb := range verbs {
		if rest, ok := strings.CutPrefix(string(name), verb); ok && (rest == "" || rest[0] >= 'A' && rest[0] <= 'Z') {
			return true
		}
	}
	return false
}

// readingCalls are the calls of the API that only read.
func readingCalls(t *testing.T) (calls []protoreflect.MethodDescriptor) {
	agboxv1.Files.RangeFilesByPackage(agboxv1.File_agbox_v1_service_proto.Package(), func(file protoreflect.FileDescriptor) bool {
		for i := range file.Services().Len() {
			methods := file.Services().Get(i).Methods()
			for j := range methods.Len() {
				m := methods.Get(j)
				reads, acts := beginsWithOne(m.Name(), readingVerbs), beginsWithOne(m.Name(), actingVerbs)
				if reads == acts {
					t.Errorf("%s: does it only read? Its verb must be in one of the lists", m.FullName())
				}
				if reads {
					calls = append(calls, m)
				}
			}
		}
		return true
	})
	return calls
}

// asked has values for fields of requests by their names. Calls about files are asked about
// a sandbox that is stopped: those about another wait for its supervisor.
var asked = map[protoreflect.Name]string{
	"sandbox_id": "box", "sandbox_ids": "box", "agent_id": "agent-1", "exec_id": "box/none", "stack": "crew", "parent": "agent-0", "class": "workers",
	"path": "/", "service": "db",
}

// requestsTo makes an empty request, one with ids only, and one with everything that selects.
func requestsTo(m protoreflect.MethodDescriptor) (list []proto.Message) {
	typ, err := agboxv1.Types.FindMessageByName(m.Input().FullName())
	if err != nil {
		panic(err) // the generated code registers it
	}
	for amount := range 3 {
		req := typ.New()
		fields := m.Input().Fields()
		for i := range fields.Len() {
			field := fields.Get(i)
			value, known := asked[field.Name()]
			if field.Name() == "sandbox_id" && m.Parent().Name() == "FileService" {
				value = "stopped"
			}
			isID := strings.HasSuffix(string(field.Name()), "_id")
			switch {
			case amount == 0 || amount == 1 && !isID:
			case known && field.IsList():
				req.Mutable(field).List().Append(protoreflect.ValueOfString(value))
			case known:
				req.Set(field, protoreflect.ValueOfString(value))
			case field.Kind() == protoreflect.BoolKind && field.Name() != "follow":
				req.Set(field, protoreflect.ValueOfBool(true))
			}
		}
		list = append(list, req.Interface())
	}
	return list
}

// call makes one call. A stream is read for a moment.
func call(ctx context.Context, conn *grpc.ClientConn, m protoreflect.MethodDescriptor, req proto.Message) error {
	typ, err := agboxv1.Types.FindMessageByName(m.Output().FullName())
	if err != nil {
		return err
	}
	name := fmt.Sprintf("/%s/%s", m.Parent().FullName(), m.Name())
	if !m.IsStreamingServer() {
		return conn.Invoke(ctx, name, req, typ.New().Interface())
	}
	ctx, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: m.IsStreamingClient()}, name)
	if err == nil {
		err = stream.SendMsg(req)
	}
	for err == nil {
		err = stream.RecvMsg(typ.New().Interface())
	}
	return nil // a follower ends with the time
}

// seedAgents fills the database of a daemon that does not run yet.
func (l *life) seedAgents(t *testing.T, n int) {
	t.Helper()
	db, err := store.Open(t.Context(), store.Options{Path: l.Paths.Database(), Sentinel: l.Paths.Sentinel()})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	book, err := ledger.Open(t.Context(), db, time.Now, l.Log)
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"box", "stopped"} {
		sb, err := book.Create(t.Context(), id, &agboxv1.CreateSpec{Image: "img"})
		events := []agboxv1.EventType{agboxv1.EventType_SANDBOX_READY}
		if id == "stopped" {
			events = append(events, agboxv1.EventType_SANDBOX_STOP_REQUESTED, agboxv1.EventType_SANDBOX_STOPPED)
		}
		for _, event := range events {
			if err == nil {
				sb, err = book.Emit(t.Context(), sb.Record, &agboxv1.SandboxEvent{EventType: event})
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for i := range n {
		a := ledger.NewAgent{ID: fmt.Sprintf("agent-%d", i), SandboxID: "box", Spec: &agboxv1.AgentSpec{Class: "workers", Command: []string{"true"}}}
		if i == 0 {
			a.Spec.Stack = &agboxv1.AgentStack{Name: "crew"}
		} else {
			a.Parent = "agent-0"
		}
		if _, err := book.SpawnAgent(t.Context(), a); err != nil {
			t.Fatal(err)
		}
	}
}

// A reader that takes a lock twice waits for ever if a writer comes in between, and with
// it everything else.
func TestReadersOfEveryKindGoOnWhileAgentsCommit(t *testing.T) {
	const agents, commits, writers = 40, 200, 4
	l := newLife(t)
	if err := os.MkdirAll(l.Paths.Data, 0o700); err != nil {
		t.Fatal(err)
	}
	l.seedAgents(t, agents)
	ready := make(chan struct{})
	l.at["agboxd is ready"] = func(error) { close(ready) }
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- Run(ctx, l.Config) }()
	defer func() {
		stop()
		if t.Failed() {
			return // a daemon that stands still does not end either
		}
		if err := <-ended; err != nil {
			t.Errorf("Run gives %v", err)
		}
	}()
	<-ready
	conn, err := grpc.NewClient("unix://"+l.Paths.Socket(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()

	// The watchdog: a daemon that stands still answers nobody. One on a busy machine answers
	// long before.
	watched, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	var done atomic.Bool
	var readers, acting sync.WaitGroup
	for _, m := range readingCalls(t) {
		requests := requestsTo(m)
		readers.Go(func() {
			for i := 0; !done.Load() && watched.Err() == nil; i++ {
				req := requests[i%len(requests)]
				switch err := call(watched, conn, m, req); status.Code(err) {
				case codes.DeadlineExceeded, codes.Internal, codes.Unknown:
					t.Errorf("%s {%v}: %v", m.FullName(), req, err)
					return
				}
			}
		})
	}
	calls := agboxv1.NewAgentServiceClient(conn)
	for w := range writers {
		acting.Go(func() {
			for i := range commits / writers {
				id := fmt.Sprintf("agent-%d", (w+writers*i)%agents)
				_, err := calls.SendMessage(watched, &agboxv1.SendMessageRequest{AgentId: id, Text: "note"})
				if err != nil {
					t.Errorf("a message to %s: %v", id, err)
					return
				}
			}
		})
	}
	acting.Wait()
	done.Store(true)
	readers.Wait()
}
