package main

import (
	"strings"
	"testing"

	"google.golang.org/grpc"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// Input waits while another client types. Without a message, that would look like a
// command that hangs.
func TestAPipeToACommandAtWhichSomebodyTypesIsToldSo(t *testing.T) {
	for typist, want := range map[string]string{
		"ann_desk-x1": "You are watching; ann on desk types.", "": "", // nobody types: the command has ended
	} {
		d, socket := serveScripted(t)
		agbox(t, socket, "create", "demo", "--image", "good")
		agbox(t, socket, "exec", "-d", "--name", "job", "demo", "wait")
		e := d.execs[0]
		e.Stdin = true
		d.attached = func(stream grpc.BidiStreamingServer[agboxv1.AttachExecRequest, agboxv1.AttachExecResponse]) error {
			_ = stream.Send(&agboxv1.AttachExecResponse{Item: &agboxv1.AttachExecResponse_Attached{
				Attached: &agboxv1.Attached{Exec: e, Cursor: &agboxv1.LogCursor{}, Typist: typist}}})
			return stream.Send(&agboxv1.AttachExecResponse{Item: &agboxv1.AttachExecResponse_End{
				End: &agboxv1.LogEnd{Exec: &agboxv1.ExecStatus{State: agboxv1.ExecState_EXEC_STATE_FINISHED}}}})
		}
		code, _, said := agbox(t, socket, "attach", "job")
		if code != 0 || !strings.Contains(said, want) || want == "" && said != "" {
			t.Errorf("typist %q: code %d, said %q", typist, code, said)
		}
		if want != "" && !strings.Contains(said, "--take-over "+e.GetExecId()) {
			t.Errorf("how to type instead is not said: %q", said)
		}
	}
}
