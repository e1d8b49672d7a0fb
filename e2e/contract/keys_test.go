package contract

import (
	"fmt"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/agbox/agbox/e2e/internal/harness"
)

func takenIDs(t *testing.T, w *world) {
	spec := fields{"image": harness.ImageBusybox}
	box := fields{"sandbox_id": "taken_box", "create_spec": spec}
	id := w.createFrom(t, box)
	if r := w.refuse(t, "CreateSandbox", box); r.code != codes.AlreadyExists || r.reason != "SANDBOX_ID_ALREADY_EXISTS" || r.metadata["sandbox_id"] != id {
		t.Errorf("the same id with the same spec gives %+v", r)
	}
	exec := fields{"sandbox_id": id, "exec_id": "taken_exec", "command": []string{"true"}}
	w.call(t, "CreateExec", exec)
	if r := w.refuse(t, "CreateExec", exec); r.code != codes.AlreadyExists || r.reason != "EXEC_ID_ALREADY_EXISTS" || r.metadata["exec_id"] != "taken_exec" {
		t.Errorf("the same id with the same command gives %+v", r)
	}
}

// The field of the request key, which the published messages do not have.
const (
	sandboxKeyField = 61
	execKeyField    = 59
)

// keyed makes a call with a request key.
func (w *world) keyed(t *testing.T, name string, field protowire.Number, key string, request fields) (answer, refusal) {
	t.Helper()
	m := w.method(t, name)
	in, out := w.request(t, m, request), dynamicpb.NewMessage(m.Output())
	in.ProtoReflect().SetUnknown(protowire.AppendString(protowire.AppendTag(nil, field, protowire.BytesType), key))
	err := w.conn.Invoke(harness.Bounded(t), fmt.Sprintf("/%s/%s", w.service.FullName(), name), in, out)
	if err != nil {
		return answer{}, refused(err)
	}
	return read(t, name, out), refusal{}
}

func requestKeys(t *testing.T, w *world) {
	create := func(key string, request fields) (string, refusal) {
		a, r := w.keyed(t, "CreateSandbox", sandboxKeyField, key, request)
		if r.code != codes.OK {
			return "", r
		}
		return a.text("sandbox.sandbox_id"), r
	}
	request := fields{"create_spec": fields{"image": harness.ImageBusybox}}
	id, _ := create("key/1", request)
	for range 2 {
		if again, r := create("key/1", request); again != id || id == "" {
			t.Errorf("the same key gives %q (%+v), first %q", again, r, id)
		}
		w.await(t, id, "SANDBOX_STATE_READY")
	}
	if other, _ := create("key/2", request); other == id || other == "" {
		t.Errorf("another key gives %q", other)
	}
	for _, other := range []fields{
		{"create_spec": fields{"image": harness.ImageUser}},
		{"create_spec": fields{"image": harness.ImageBusybox}, "sandbox_id": "another_id"},
	} {
		if got, r := create("key/1", other); r.code != codes.AlreadyExists || r.reason != "REQUEST_KEY_REUSED" || r.metadata["sandbox_id"] != id {
			t.Errorf("the key with %v gives %q, %+v", other, got, r)
		}
	}
	if got, r := create("a key", request); r.reason != "INVALID_REQUEST" {
		t.Errorf("a key with a space gives %q, %+v", got, r)
	}
	w.execKeys(t, id)
	w.call(t, "DeleteSandbox", fields{"sandbox_id": id})
	w.await(t, id, "SANDBOX_STATE_DELETED")
	if again, r := create("key/1", request); again != id {
		t.Errorf("after its deletion the key gives %q (%+v), want %q", again, r, id)
	}
}

func (w *world) execKeys(t *testing.T, sandbox string) {
	create := func(key string, request fields) (string, refusal) {
		a, r := w.keyed(t, "CreateExec", execKeyField, key, request)
		if r.code != codes.OK {
			return "", r
		}
		return a.text("exec_id"), r
	}
	request := fields{"sandbox_id": sandbox, "command": []string{"sh", "-c", "echo ran >>/tmp/runs"}}
	id, _ := create("key/1", request)
	if again, r := create("key/1", request); again != id || id == "" {
		t.Errorf("the same key gives the exec %q (%+v), first %q", again, r, id)
	}
	w.in.Must(t, "logs", "-f", id)
	if got := w.shell(t, sandbox, "cat /tmp/runs"); got != "ran\n" {
		t.Errorf("the command of two requests with one key wrote %q", got)
	}
	for _, other := range []fields{
		{"sandbox_id": sandbox, "command": []string{"true"}},
		{"sandbox_id": sandbox, "command": request["command"], "exec_id": "another_id"},
	} {
		if got, r := create("key/1", other); r.code != codes.AlreadyExists || r.reason != "REQUEST_KEY_REUSED" || r.metadata["exec_id"] != id {
			t.Errorf("the key of an exec with %v gives %q, %+v", other, got, r)
		}
	}
	w.call(t, "StopSandbox", fields{"sandbox_id": sandbox})
	w.await(t, sandbox, "SANDBOX_STATE_STOPPED")
	if again, r := create("key/1", request); again != id {
		t.Errorf("in a stopped sandbox the same key gives the exec %q (%+v), first %q", again, r, id)
	}
}
