package contract

import (
	"fmt"
	"testing"

	"google.golang.org/grpc/codes"

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
