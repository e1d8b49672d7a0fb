package contract

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/agbox/agbox/e2e/internal/harness"
)

func execSequence(t *testing.T, w *world) {
	id := w.create(t, fields{"image": harness.ImageBusybox})
	running := fields{"exec_id": w.call(t, "CreateExec", fields{"sandbox_id": id, "command": []string{"sleep", "1000000"}}).text("exec_id")}
	w.run(t, id, "true") // events of something else
	newest := w.call(t, "GetSandbox", fields{"sandbox_id": id}).text("sandbox.last_event_sequence")
	cursor := w.call(t, "GetExec", running).text("exec.last_event_sequence")
	listed := w.call(t, "ListActiveExecs", fields{"sandbox_id": id}).text("execs.0.last_event_sequence")
	if cursor != newest || listed != newest {
		t.Errorf("last_event_sequence of the exec is %s, in a list %s, the newest event of its sandbox has %s", cursor, listed, newest)
	}
	events := w.subscribe(t, "SubscribeSandboxEvents", fields{"sandbox_id": id, "from_sequence": cursor})
	w.call(t, "CancelExec", running)
	if ev, err := events.next(t); err != nil || ev.text("event_type") != "EXEC_CANCELLED" || ev.text("exec.exec_id") != running["exec_id"] {
		t.Errorf("the first event after it is %v (%v), want the end of the exec", ev.values, err)
	}
}

func mainCommandIsHidden(t *testing.T, w *world) {
	id := w.create(t, fields{"image": harness.ImageEntrypoint})
	if ids := w.call(t, "ListActiveExecs", fields{"sandbox_id": id}).texts("execs", "exec_id"); len(ids) != 0 {
		t.Errorf("nobody has asked for an exec, and ListActiveExecs has %v", ids)
	}
	// If requested, it is included.
	if shown := w.in.Must(t, "ps", id); !strings.Contains(shown, "main-"+id) {
		t.Errorf("agbox ps does not show it:\n%s", shown)
	}
	if shown := w.in.Must(t, "events", id); !strings.Contains(shown, "main-"+id) {
		t.Errorf("agbox events does not show it:\n%s", shown)
	}
	snapshot, err := w.subscribe(t, "SubscribeSandboxEvents", fields{"sandbox_id": id, "include_current_snapshot": true}).next(t)
	if err != nil || snapshot.text("event_type") != "SANDBOX_READY" {
		t.Errorf("the newest event is %v (%v), want SANDBOX_READY", snapshot.values, err)
	}
	w.run(t, id, "true")
	w.call(t, "DeleteSandbox", fields{"sandbox_id": id})
	for _, ev := range w.subscribe(t, "SubscribeSandboxEvents", fields{"sandbox_id": id}).until(t, eventIs("SANDBOX_DELETED")) {
		if strings.HasPrefix(ev.text("exec.exec_id"), "main-") {
			t.Errorf("the events have the image's own command: %v", ev.values)
		}
	}
}

func secondCancel(t *testing.T, w *world) {
	id := w.create(t, fields{"image": harness.ImageBusybox})
	exec := fields{"exec_id": w.call(t, "CreateExec", fields{"sandbox_id": id, "command": []string{"sleep", "1000000"}}).text("exec_id")}
	cursor := w.call(t, "GetExec", exec).text("exec.last_event_sequence")
	ref := fmt.Sprint(exec["exec_id"])
	w.in.Agbox(t, "kill", ref).Want(t, 0)
	w.subscribe(t, "SubscribeSandboxEvents", fields{"sandbox_id": id, "from_sequence": cursor}).until(t, eventIs("EXEC_CANCELLED"))
	w.in.Agbox(t, "kill", ref).Want(t, 0)
	// In the API it is an error.
	if r := w.refuse(t, "CancelExec", exec); r.reason != "EXEC_ALREADY_TERMINAL" {
		t.Errorf("CancelExec of an exec that has ended gives %+v", r)
	}
}

func listsAreNewestFirst(t *testing.T, w *world) {
	var boxes, execs []string
	for range 3 {
		boxes = append(boxes, w.create(t, fields{"image": harness.ImageBusybox, "labels": fields{"case": "newest-first"}}))
	}
	for range 3 {
		execs = append(execs, w.call(t, "CreateExec", fields{"sandbox_id": boxes[0], "command": []string{"sleep", "1000000"}}).text("exec_id"))
	}
	slices.Reverse(boxes)
	slices.Reverse(execs)
	list := fields{"label_selector": fields{"case": "newest-first"}}
	if got := w.call(t, "ListSandboxes", list).texts("sandboxes", "sandbox_id"); !slices.Equal(got, boxes) {
		t.Errorf("ListSandboxes has %v, want the newest first: %v", got, boxes)
	}
	if got := w.call(t, "ListActiveExecs", fields{"sandbox_id": boxes[2]}).texts("execs", "exec_id"); !slices.Equal(got, execs) {
		t.Errorf("ListActiveExecs has %v, want the newest first: %v", got, execs)
	}
	// Deleted ones are in their place in the order.
	w.call(t, "DeleteSandbox", fields{"sandbox_id": boxes[1]})
	w.await(t, boxes[1], "SANDBOX_STATE_DELETED")
	list["include_deleted"] = true
	if got := w.call(t, "ListSandboxes", list).texts("sandboxes", "sandbox_id"); !slices.Equal(got, boxes) {
		t.Errorf("with the deleted one ListSandboxes has %v, want %v", got, boxes)
	}
}

func idsOf200(t *testing.T, w *world) {
	long := strings.Repeat("Long_", 40)
	for i, id := range []string{"a_b1", long, long[:199] + "-"} {
		companion := fields{"name": "db", "image": harness.ImageBusybox, "command": []string{"sleep", "1000000"}}
		w.call(t, "CreateSandbox", fields{"sandbox_id": id, "create_spec": fields{"image": harness.ImageBusybox, "services": []fields{companion}}})
		w.await(t, id, "SANDBOX_STATE_READY")
		exec := id[:len(id)-1] + fmt.Sprint(i)
		created := w.call(t, "CreateExec", fields{"sandbox_id": id, "exec_id": exec, "command": []string{"true"}})
		w.in.Must(t, "logs", "-f", exec)
		if code := w.call(t, "GetExec", fields{"exec_id": exec}).text("exec.exit_code"); code != "0" || created.text("exec_id") != exec {
			t.Errorf("exec %s ended with %s", exec, code)
		}
		w.call(t, "StopSandbox", fields{"sandbox_id": id})
		w.await(t, id, "SANDBOX_STATE_STOPPED")
		w.call(t, "DeleteSandbox", fields{"sandbox_id": id})
		w.await(t, id, "SANDBOX_STATE_DELETED")
	}
	if r := w.refuse(t, "CreateSandbox", fields{"sandbox_id": long + "x", "create_spec": fields{"image": harness.ImageBusybox}}); r.reason != "INVALID_REQUEST" {
		t.Errorf("an id of 201 characters gives %+v", r)
	}
}

func commandKeepsEntrypoint(t *testing.T, w *world) {
	id := w.create(t, fields{"image": harness.ImageEntrypoint, "command": []string{"of the caller", "second"}})
	got := w.shell(t, id, "while [ ! -s /tmp/entrypoint.txt ]; do sleep 0.05; done; cat /tmp/entrypoint.txt")
	if want := "of the caller\nsecond\n"; got != want {
		t.Errorf("the entrypoint was given %q, want %q", got, want)
	}
}

func hostIDs(t *testing.T, w *world) {
	want := fmt.Sprintf("%d:%d\n", os.Getuid(), os.Getgid())
	id := w.create(t, fields{"image": harness.ImageBusybox})
	if got := w.shell(t, id, "echo $HOST_UID:$HOST_GID"); got != want {
		t.Errorf("HOST_UID and HOST_GID are %q, want %q", got, want)
	}
	id = w.create(t, fields{"image": harness.ImageBusybox, "envs": fields{"HOST_UID": "7"}})
	if got := w.shell(t, id, "echo $HOST_UID"); got != "7\n" {
		t.Errorf("HOST_UID of the caller is %q", got)
	}
}
