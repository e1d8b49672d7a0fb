package contract

import (
	"fmt"
	"strings"
	"testing"

	"github.com/docker/docker/api/types/network"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/agbox/agbox/e2e/internal/harness"
)

// wholeIDs deletes a sandbox again and again whose id others begin with and are named by. A
// sandbox that is being deleted or is deleted is accepted again.
func wholeIDs(t *testing.T, w *world) {
	first := fields{"sandbox_id": "job-1"}
	w.createFrom(t, fields{"sandbox_id": "job-1", "create_spec": fields{"image": harness.ImageBusybox}})
	w.createFrom(t, fields{"sandbox_id": "job-10", "create_spec": fields{"image": harness.ImageBusybox}})
	gone := w.subscribe(t, "SubscribeSandboxEvents", first)
	w.call(t, "DeleteSandbox", first)
	w.call(t, "DeleteSandbox", first)
	gone.until(t, eventIs("SANDBOX_DELETED"))
	w.in.Must(t, "rename", "job-10", "job-1") // a name that was an id
	for range 2 {
		if a := w.call(t, "DeleteSandbox", first); a.text("accepted") != "true" {
			t.Errorf("another delete answers %v", a.values)
		}
	}
	for method, request := range map[string]fields{
		"StopSandbox": first, "ResumeSandbox": first, "CreateExec": {"sandbox_id": "job-1", "command": []string{"true"}},
	} {
		if _, err := w.try(t, method, request); method != "StopSandbox" && err == nil {
			t.Errorf("%s of a deleted sandbox succeeds", method)
		}
	}
	if state := w.call(t, "GetSandbox", first).text("sandbox.state"); state != "SANDBOX_STATE_DELETED" {
		t.Errorf("job-1 is %s", state)
	}
	if state := w.call(t, "GetSandbox", fields{"sandbox_id": "job-10"}).text("sandbox.state"); state != "SANDBOX_STATE_READY" {
		t.Errorf("job-10 is %s", state)
	}
	if out := w.shell(t, "job-10", "echo lives"); out != "lives\n" {
		t.Errorf("job-10 says %q", out)
	}
}

// noNames asks for sandboxes and execs by what is no id.
func noNames(t *testing.T, w *world) {
	id := w.in.Create(t, "called", harness.ImageBusybox)
	w.call(t, "CreateExec", fields{"sandbox_id": id, "exec_id": "turn-10", "command": []string{"sleep", "1000000"}})
	for _, text := range []string{"called", id[:6]} {
		for _, method := range []string{"GetSandbox", "StopSandbox", "DeleteSandbox", "ResumeSandbox", "SubscribeSandboxEvents"} {
			if r := w.refuse(t, method, fields{"sandbox_id": text}); r.code != codes.NotFound || r.reason != "SANDBOX_NOT_FOUND" || r.metadata["sandbox_id"] != text {
				t.Errorf("%s of %s gives %+v", method, text, r)
			}
		}
		if r := w.refuse(t, "CreateExec", fields{"sandbox_id": text, "command": []string{"true"}}); r.code != codes.NotFound {
			t.Errorf("CreateExec in %s gives %+v", text, r)
		}
	}
	for _, text := range []string{"turn-1", "turn", fmt.Sprintf("%s/turn-10", id), fmt.Sprintf("%s/turn-1", id)} {
		for _, method := range []string{"GetExec", "CancelExec"} {
			if r := w.refuse(t, method, fields{"exec_id": text}); r.code != codes.NotFound || r.reason != "EXEC_NOT_FOUND" || r.metadata["exec_id"] != text {
				t.Errorf("%s of %s gives %+v", method, text, r)
			}
		}
	}
	if state := w.call(t, "GetExec", fields{"exec_id": "turn-10"}).text("exec.state"); state != "EXEC_STATE_RUNNING" {
		t.Errorf("turn-10 is %s", state)
	}
}

// engineNames looks at the engine for the names of the published contract.
func engineNames(t *testing.T, w *world) {
	cache := fields{"name": "side_car", "image": harness.ImageBusybox, "command": []string{"sleep", "1000000"}}
	for _, id := range []string{"Names_of-1", strings.Repeat("Names_", 33) + "-1", ""} {
		request := fields{"create_spec": fields{"image": harness.ImageBusybox, "services": []fields{cache}}}
		if id != "" {
			request["sandbox_id"] = id
		}
		id = w.createFrom(t, request)
		for _, name := range []string{"agbox-primary-" + id, "agbox-svc-" + id + "-side_car"} {
			if _, err := harness.DockerAPI.ContainerInspect(harness.Bounded(t), name); err != nil {
				t.Errorf("the container %s: %v", name, err)
			}
		}
		if _, err := harness.DockerAPI.NetworkInspect(harness.Bounded(t), "agbox-net-"+id, network.InspectOptions{}); err != nil {
			t.Errorf("the network of %s: %v", id, err)
		}
		w.call(t, "StopSandbox", fields{"sandbox_id": id})
		w.await(t, id, "SANDBOX_STATE_STOPPED")
		w.call(t, "ResumeSandbox", fields{"sandbox_id": id})
		w.await(t, id, "SANDBOX_STATE_READY")
	}
}

// notFound is the reason of an id that nothing has, by the name of the field.
var notFound = map[protoreflect.Name]string{
	"sandbox_id": "SANDBOX_NOT_FOUND", "sandbox_ids": "SANDBOX_NOT_FOUND", "exec_id": "EXEC_NOT_FOUND",
	"agent_id": "AGENT_NOT_FOUND", "agent_ids": "AGENT_NOT_FOUND", "from_agent": "AGENT_NOT_FOUND", "parent": "AGENT_NOT_FOUND",
}

// chosen are the ids that callers choose for what they create.
var chosen = map[protoreflect.FullName]bool{
	"agbox.v1.CreateSandboxRequest.sandbox_id": true, "agbox.v1.CreateExecRequest.exec_id": true, "agbox.v1.SpawnAgentRequest.agent_id": true,
}

// filledIn is a message that the daemon fills in, and refuses in a request.
const filledIn = "agbox.v1.DerivedSpec"

// needed are values of fields that a request needs beside the id, as JSON.
var needed = map[protoreflect.Name]any{
	"path": "/x", "new_path": "/y", "command": []string{"true"}, "signal": 15, "name": "n", "service": "db", "hold": "h", "text": "x", "resource": "file:/x",
	"verdict": 1, "spec": fields{"command": []string{"true"}},
}

// reference is a field of a request that says which sandbox, exec or agent is meant.
type reference struct {
	method protoreflect.MethodDescriptor
	path   []protoreflect.FieldDescriptor
}

func (r reference) field() protoreflect.FieldDescriptor { return r.path[len(r.path)-1] }

func (r reference) String() string {
	words := []string{string(r.method.Name())}
	for _, f := range r.path {
		words = append(words, string(f.Name()))
	}
	return strings.Join(words, ".")
}

// references returns those of a call, also in the messages of its request.
func references(t *testing.T, m protoreflect.MethodDescriptor, in protoreflect.MessageDescriptor, above []protoreflect.FieldDescriptor) (all []reference) {
	t.Helper()
	for i := range in.Fields().Len() {
		f := in.Fields().Get(i)
		at := append(above[:len(above):len(above)], f)
		_, known := notFound[f.Name()]
		switch {
		case chosen[f.FullName()], f.IsMap(), f.Kind() == protoreflect.EnumKind, f.Kind() == protoreflect.BoolKind:
		case f.Kind() == protoreflect.MessageKind && f.Message().FullName() == filledIn:
		case f.Kind() == protoreflect.MessageKind && f.Message().ParentFile().Package() == protoPackage:
			all = append(all, references(t, m, f.Message(), at)...)
		case known && f.Kind() == protoreflect.StringKind:
			all = append(all, reference{m, at})
		case strings.HasSuffix(string(f.Name()), "_id"), strings.HasSuffix(string(f.Name()), "_ids"):
			t.Errorf("%s: whose id is %s? Tell it in notFound or chosen", m.Name(), f.FullName())
		}
	}
	return all
}

// request returns a request in bytes in which the field is id.
func (r reference) request(t *testing.T, sandbox, id string) []byte {
	t.Helper()
	value := any(id)
	if r.field().IsList() {
		value = []string{id}
	}
	var message fields
	for i := len(r.path) - 1; i >= 0; i-- {
		message = fields{}
		in := r.path[i].ContainingMessage()
		for j := range in.Fields().Len() {
			f := in.Fields().Get(j)
			if have, ok := needed[f.Name()]; ok && !f.IsMap() && f.ContainingOneof() == nil {
				message[string(f.Name())] = have
			}
		}
		if r.method.Name() == "SpawnAgent" && i == 0 {
			message["sandbox_id"] = sandbox
		}
		message[string(r.path[i].Name())] = value
		value = message
	}
	raw, err := proto.Marshal(new(publishedClient).request(t, r.method, message))
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// TestCallsTakeWholeIDs gives the beginning of an id and a name to each field of each call that
// says what is meant, also to those that a later version adds.
func TestCallsTakeWholeIDs(t *testing.T) {
	in := harness.New(t)
	in.Must(t, "create", "called-box", "--id", "job-10", "--image", harness.ImageBusybox)
	w := &world{publishedClient: connect(t, in.Socket()), in: in}
	w.call(t, "CreateExec", fields{"sandbox_id": "job-10", "exec_id": "turn-10", "command": []string{"sleep", "1000000"}})
	in.Must(t, "agent", "spawn", "called-agent", "--id", "robot-10", "--in", "job-10", "--", "sleep", "1000000")
	shown := func() string {
		box := w.call(t, "GetSandbox", fields{"sandbox_id": "job-10"})
		return box.text("sandbox.state") + box.text("sandbox.last_event_sequence") + in.Must(t, "agent", "inspect", "robot-10")
	}
	harness.Eventually(t, "the agent works", func() bool { return strings.Contains(in.Must(t, "agent", "ls"), "EXECUTING") })
	before := shown()
	texts := map[string][]string{
		"SANDBOX_NOT_FOUND": {"job-1", "called-box", "job-100"},
		"EXEC_NOT_FOUND":    {"turn-1", "job-10/turn-1", "turn-100"},
		"AGENT_NOT_FOUND":   {"robot-1", "called-agent", "robot-100"},
	}
	count := 0
	for _, m := range servedMethods(t, w.conn) {
		if m.ParentFile().Package() != protoPackage || m.Name() == "Resolve" {
			continue
		}
		for _, r := range references(t, m, m.Input(), nil) {
			count++
			want := notFound[r.field().Name()]
			for _, text := range texts[want] {
				err := answerTo(t, w.conn, path(m), r.request(t, "job-10", text))
				if got := refused(err); got.code != codes.NotFound || got.reason != want {
					t.Errorf("%s = %q gives %v, %q: %s", r, text, got.code, got.reason, got.message)
				}
			}
		}
	}
	if count < 50 {
		t.Errorf("only %d fields name something", count)
	}
	if after := shown(); after != before {
		t.Errorf("something has changed:\n%s\nbefore:\n%s", after, before)
	}
	endsNothingElse(t, w)
}

// endsNothingElse ends twice what has an id with which the id of a living one begins, and what
// has an id that a living one has as its name.
func endsNothingElse(t *testing.T, w *world) {
	twice := func(method string, request fields, first, second codes.Code) {
		t.Helper()
		for _, m := range servedMethods(t, w.conn) {
			if string(m.Name()) != method {
				continue
			}
			raw, err := proto.Marshal(w.request(t, m, request))
			if err != nil {
				t.Fatal(err)
			}
			for i, want := range []codes.Code{first, second} {
				if r := refused(answerTo(t, w.conn, path(m), raw)); r.code != want {
					t.Errorf("call %d of %s(%v) gives %v: %s", i+1, method, request, r.code, r.message)
				}
			}
			return
		}
		t.Errorf("there is no call %s", method)
	}
	w.run(t, "job-10", "true")
	w.call(t, "CreateExec", fields{"sandbox_id": "job-10", "exec_id": "turn-1", "command": []string{"true"}})
	w.in.Must(t, "logs", "-f", "turn-1")
	twice("CancelExec", fields{"exec_id": "turn-1"}, codes.FailedPrecondition, codes.FailedPrecondition)
	w.in.Must(t, "agent", "spawn", "robot-1", "--id", "robot-1x", "--in", "job-10", "--", "sleep", "1000000") // its name was an id
	w.in.Must(t, "agent", "spawn", "ended", "--id", "robot-1", "--in", "job-10", "--", "true")
	w.in.Must(t, "agent", "attach", "robot-1")
	twice("DeleteAgent", fields{"agent_id": "robot-1"}, codes.OK, codes.NotFound)
	twice("KillAgent", fields{"agent_id": "robot-1"}, codes.NotFound, codes.NotFound)
	w.in.Must(t, "create", "job-2", "--id", "job-3", "--image", harness.ImageBusybox)
	w.in.Must(t, "create", "other", "--id", "job-2", "--image", harness.ImageBusybox)
	w.call(t, "StopSandbox", fields{"sandbox_id": "job-2"})
	w.await(t, "job-2", "SANDBOX_STATE_STOPPED")
	twice("DeleteSandbox", fields{"sandbox_id": "job-2"}, codes.OK, codes.OK)
	w.await(t, "job-2", "SANDBOX_STATE_DELETED")
	twice("DeleteSandbox", fields{"sandbox_id": "job-2"}, codes.OK, codes.OK)
	for _, id := range []string{"job-3", "job-10"} {
		if state := w.call(t, "GetSandbox", fields{"sandbox_id": id}).text("sandbox.state"); state != "SANDBOX_STATE_READY" {
			t.Errorf("%s is %s", id, state)
		}
	}
	if state := w.call(t, "GetExec", fields{"exec_id": "turn-10"}).text("exec.state"); state != "EXEC_STATE_RUNNING" {
		t.Errorf("turn-10 is %s", state)
	}
	for _, id := range []string{"robot-10", "robot-1x"} {
		if shown := w.in.Must(t, "agent", "inspect", id); !strings.Contains(shown, "EXECUTING") {
			t.Errorf("%s is:\n%s", id, shown)
		}
	}
}
