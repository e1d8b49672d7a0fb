package client

import (
	"iter"
	"net"
	"path"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// Where the connection breaks before the answer, a call reaches the daemon again only if that does no
// harm. Each method has a row: the option is easily forgotten.
func TestOnlyHarmlessCallsAreRepeated(t *testing.T) {
	var mu sync.Mutex
	asked := make(map[string]int) // requests of one row by method; guarded by mu
	h := &host{t: t, socket: filepath.Join(shortDir(t), "d.sock")}
	h.server = grpc.NewServer(grpc.UnknownServiceHandler(func(_ any, s grpc.ServerStream) error {
		method, _ := grpc.MethodFromServerStream(s)
		mu.Lock()
		defer mu.Unlock()
		asked[path.Base(method)]++
		switch asked[path.Base(method)] {
		case 1:
			h.cutter.cut()
			return nil
		case 2:
			return s.SendMsg(new(emptypb.Empty))
		}
		return status.Error(codes.FailedPrecondition, "asked too often")
	}))
	listener, err := net.Listen("unix", h.socket)
	if err != nil {
		t.Fatal(err)
	}
	h.cutter = &cutter{Listener: listener}
	h.served.Go(func() { _ = h.server.Serve(h.cutter) })
	t.Cleanup(h.kill)

	const once, twice = 1, 2
	c, ctx, o := h.client(), t.Context(), FileOptions{}
	tested := make(map[string]bool)
	for _, row := range []struct {
		method string
		times  int
		call   func() error
	}{
		{"Ping", twice, func() error { return errorOf(c.Ping(ctx)) }},
		{"UpgradeDaemon", once, func() error { return errorOf(c.UpgradeDaemon(ctx, "/agboxd")) }},
		{"Doctor", twice, func() error { return errorOf(c.Doctor(ctx, false)) }},
		{"Doctor", once, func() error { return errorOf(c.Doctor(ctx, true)) }},
		{"Doctor", once, func() error { return errorOf(c.AdoptEngine(ctx, false)) }},
		{"Resolve", twice, func() error { return errorOf(c.Candidates(ctx, 0, "x")) }},
		{"ListImages", twice, func() error { return errorOf(c.ListImages(ctx)) }},
		{"RemoveImage", once, func() error { return c.RemoveImage(ctx, "x", false) }},

		{"ResolveSpec", twice, func() error { return errorOf(c.ResolveSpec(ctx, new(agboxv1.CreateSandboxRequest))) }},
		{"CreateSandbox", twice, func() error { return errorOf(c.CreateSandbox(ctx, new(agboxv1.CreateSandboxRequest))) }},
		{"GetSandbox", twice, func() error { return errorOf(c.GetSandbox(ctx, "x")) }},
		{"ListSandboxes", twice, func() error { return errorOf(c.ListSandboxes(ctx, ListOptions{})) }},
		{"ListProcesses", twice, func() error { return errorOf(c.Processes(ctx, "x")) }},
		{"ResumeSandbox", twice, func() error { return c.ResumeSandbox(ctx, "x") }},
		{"StopSandbox", twice, func() error { return c.StopSandbox(ctx, "x") }},
		{"StopSandbox", twice, func() error { return c.StopSandboxNow(ctx, "x") }},
		{"RestartSandbox", twice, func() error { return c.RestartSandbox(ctx, "x", false) }},
		{"RenameSandbox", twice, func() error { return c.RenameSandbox(ctx, "x", "y") }},
		{"DeleteSandbox", twice, func() error { return c.DeleteSandbox(ctx, "x") }},
		{"DeleteSandboxes", once, func() error { return errorOf(c.DeleteSandboxes(ctx, nil)) }},

		{"CreateExec", twice, func() error { return errorOf(c.CreateExec(ctx, new(agboxv1.CreateExecRequest))) }},
		{"GetExec", twice, func() error { return errorOf(c.GetExec(ctx, "x")) }},
		{"ListExecs", twice, func() error { return endOf(c.ListExecs(ctx, "x")) }},
		{"ListActiveExecs", twice, func() error { return errorOf(c.ListActiveExecs(ctx, "x")) }},
		{"CancelExec", twice, func() error { return c.CancelExec(ctx, "x", DefaultGrace) }},
		{"SignalExec", once, func() error { return c.SignalExec(ctx, "x", syscall.SIGTERM) }},

		{"Stat", twice, func() error { return errorOf(c.StatFile(ctx, "x", "/a", false, o)) }},
		{"List", twice, func() error { return endOf(c.ListFiles(ctx, "x", "/a", o)) }},
		{"ListUncovered", twice, func() error { return errorOf(c.Uncovered(ctx, "x")) }},
		{"MakeDirectory", twice, func() error { return c.MakeDirectory(ctx, "x", "/a", true, o) }},
		{"MakeDirectory", once, func() error { return c.MakeDirectory(ctx, "x", "/a", false, o) }},
		{"Remove", once, func() error { return c.RemoveFile(ctx, "x", "/a", false, o) }},
		{"Move", once, func() error { return c.MoveFile(ctx, "x", "/a", "/b", false, o) }},

		{"SpawnAgent", twice, func() error { return errorOf(c.SpawnAgent(ctx, new(agboxv1.SpawnAgentRequest))) }},
		{"GetAgent", twice, func() error { return errorOf(c.GetAgent(ctx, "x")) }},
		{"ListAgents", twice, func() error { return errorOf(c.ListAgents(ctx, new(agboxv1.ListAgentsRequest))) }},
		{"KillAgent", twice, func() error { return errorOf(c.KillAgentAs(ctx, new(agboxv1.KillAgentRequest))) }},
		{"PauseAgent", twice, func() error { return errorOf(c.PauseAgent(ctx, "x", "m")) }},
		{"ResumeAgent", once, func() error { return errorOf(c.ResolveAgent(ctx, "x", 0)) }},
		{"ResumeAgent", once, func() error { return errorOf(c.DecideAgent(ctx, "x", 0, "m")) }},
		{"DrainAgents", twice, func() error { return errorOf(c.DrainAgents(ctx, new(agboxv1.DrainAgentsRequest))) }},
		{"DeleteAgent", twice, func() error { return c.DeleteAgent(ctx, "x") }},
		{"ReapAgents", twice, func() error { return errorOf(c.ReapAgents(ctx)) }},
		{"CloseHold", twice, func() error { return errorOf(c.CloseHold(ctx, "x", "h")) }},
		{"ListLeases", twice, func() error { return errorOf(c.Leases(ctx, "x")) }},
		{"BreakLease", once, func() error { return errorOf(c.BreakLease(ctx, "x", "r")) }},
		{"ListCheckpoints", twice, func() error { return errorOf(c.ListCheckpoints(ctx, "x")) }},
		{"SendMessage", twice, func() error { return errorOf(c.SendMessage(ctx, "x", "", "t")) }},
		{"SendMessage", twice, func() error { return errorOf(c.SendOnStream(ctx, "s", "", "", "t")) }},
		{"ReadInbox", twice, func() error { return endOf(c.Inbox(ctx, "x")) }},
		{"ReadInbox", twice, func() error { return c.AcknowledgeInbox(ctx, 1) }},
	} {
		err := row.call()
		mu.Lock()
		times := asked[row.method]
		clear(asked)
		mu.Unlock()
		if times != row.times || (err == nil) != (row.times == twice) {
			t.Errorf("%s reached the daemon %d times, want %d; the call ended with %v", row.method, times, row.times, err)
		}
		tested[row.method] = true
	}
	for _, service := range []grpc.ServiceDesc{agboxv1.SandboxService_ServiceDesc, agboxv1.AgentService_ServiceDesc, agboxv1.FileService_ServiceDesc} {
		for _, m := range service.Methods { // without streams
			if !tested[m.MethodName] {
				t.Errorf("%s/%s has no row", service.ServiceName, m.MethodName)
			}
		}
	}
}

func errorOf[T any](_ T, err error) error { return err }

// endOf reads a sequence up to its end or its error.
func endOf[T any](items iter.Seq2[T, error]) (err error) {
	for _, err = range items {
	}
	return err
}
