package e2e

import (
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/agbox/agbox/e2e/internal/harness"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// attachCall is AttachExec without our client package.
type attachCall struct {
	t *testing.T
	grpc.BidiStreamingClient[agboxv1.AttachExecRequest, agboxv1.AttachExecResponse]
	first *agboxv1.Attached
}

func attachRaw(t *testing.T, api agboxv1.SandboxServiceClient, open *agboxv1.AttachOpen) *attachCall {
	t.Helper()
	stream, err := api.AttachExec(harness.Bounded(t))
	if err != nil {
		t.Fatal(err)
	}
	c := &attachCall{t: t, BidiStreamingClient: stream}
	c.sends(&agboxv1.AttachExecRequest{Item: &agboxv1.AttachExecRequest_Open{Open: open}})
	c.first = c.next(func(m *agboxv1.AttachExecResponse) bool { return m.GetAttached() != nil }).GetAttached()
	return c
}

func (c *attachCall) sends(m *agboxv1.AttachExecRequest) {
	c.t.Helper()
	if err := c.Send(m); err != nil {
		c.t.Fatal(err)
	}
}

func (c *attachCall) types(offset uint64, text string) {
	c.t.Helper()
	c.sends(&agboxv1.AttachExecRequest{Item: &agboxv1.AttachExecRequest_Input{Input: &agboxv1.InputChunk{Offset: offset, Data: []byte(text)}}})
}

// next returns the next message of a kind and skips others.
func (c *attachCall) next(is func(*agboxv1.AttachExecResponse) bool) *agboxv1.AttachExecResponse {
	c.t.Helper()
	for {
		m, err := c.Recv()
		if err != nil {
			c.t.Fatal(err)
		}
		if is(m) {
			return m
		}
	}
}

func (c *attachCall) ack() *agboxv1.InputAck {
	c.t.Helper()
	return c.next(func(m *agboxv1.AttachExecResponse) bool { return m.GetAck() != nil }).GetAck()
}

func (c *attachCall) right() *agboxv1.InputChanged {
	c.t.Helper()
	return c.next(func(m *agboxv1.AttachExecResponse) bool { return m.GetInput() != nil }).GetInput()
}

func TestInputWithoutTheRightIsRefusedVisiblyAndNotLost(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	box := in.Create(t, "demo", harness.ImageBusybox)
	conn, err := grpc.NewClient("unix:"+in.Socket(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	api := agboxv1.NewSandboxServiceClient(conn)

	typist := attachRaw(t, api, &agboxv1.AttachOpen{
		Create: &agboxv1.CreateExecRequest{SandboxId: box, ExecId: "x1", Command: []string{"sh", "-c", "read a; read b; echo $a $b; exit 3"}, Stdin: true},
		Input:  agboxv1.InputMode_INPUT_MODE_IF_FREE, Writer: "first",
	})
	if !typist.first.GetInput() || typist.first.GetCreated().GetExecId() != "x1" {
		t.Fatalf("attached as %v", typist.first)
	}
	typist.types(0, "one\n")
	if ack := typist.ack(); ack.GetOffset() != 4 {
		t.Errorf("got %v", ack)
	}
	typist.types(0, "one\ntwo") // the daemon has the earlier input already
	if ack := typist.ack(); ack.GetOffset() != 7 {
		t.Errorf("got %v", ack)
	}

	second := attachRaw(t, api, &agboxv1.AttachOpen{ExecId: "x1", Input: agboxv1.InputMode_INPUT_MODE_IF_FREE, Writer: "second"})
	if second.first.GetInput() || second.first.GetTypist() != "first" {
		t.Errorf("attached as %v", second.first)
	}
	second.types(0, "intruder\n")
	if ack := second.ack(); ack.GetOffset() != 0 {
		t.Errorf("input without the right was acknowledged: %v", ack)
	}
	if changed := second.right(); changed.GetGranted() || changed.GetTypist() != "first" {
		t.Errorf("told %v", changed)
	}
	if err := typist.CloseSend(); err != nil { // leaves, and gives up its seat
		t.Fatal(err)
	}
	taker := attachRaw(t, api, &agboxv1.AttachOpen{ExecId: "x1", Input: agboxv1.InputMode_INPUT_MODE_TAKE_OVER, Writer: "taker"})
	taker.types(0, "fold\n")
	end := taker.next(func(m *agboxv1.AttachExecResponse) bool { return m.GetEnd() != nil }).GetEnd()
	if end.GetExec().GetExitCode() != 3 {
		t.Errorf("ended as %v", end)
	}
	in.Agbox(t, "logs", "x1").Want(t, 0).WantOutput(t, "one twofold\n", "")

	for name, open := range map[string]*agboxv1.AttachOpen{
		"nothing":                 {},
		"both":                    {ExecId: "x1", Create: &agboxv1.CreateExecRequest{SandboxId: box, Command: []string{"true"}}},
		"typing without a name":   {ExecId: "x1", Input: agboxv1.InputMode_INPUT_MODE_SHARED},
		"a cursor and a tail":     {ExecId: "x1", Cursor: &agboxv1.LogCursor{}, TailLines: new(uint64)},
		"a writer that is a path": {ExecId: "x1", Writer: "../x"},
	} {
		stream, err := api.AttachExec(harness.Bounded(t))
		if err != nil {
			t.Fatal(err)
		}
		_ = stream.Send(&agboxv1.AttachExecRequest{Item: &agboxv1.AttachExecRequest_Open{Open: open}})
		if _, err := stream.Recv(); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: %v", name, err)
		}
	}
	gap := attachRaw(t, api, &agboxv1.AttachOpen{
		Create: &agboxv1.CreateExecRequest{SandboxId: box, ExecId: "x2", Command: []string{"cat"}, Stdin: true},
		Input:  agboxv1.InputMode_INPUT_MODE_IF_FREE, Writer: "first",
	})
	gap.types(5, "x")
	if _, err := gap.Recv(); status.Code(err) != codes.InvalidArgument {
		t.Errorf("a gap in the input gave %v", err)
	}
}
