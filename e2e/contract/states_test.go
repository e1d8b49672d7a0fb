package contract

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/agbox/agbox/e2e/internal/harness"
)

// inState makes a sandbox and brings it into a state.
func (w *world) inState(t *testing.T, state string) string {
	t.Helper()
	id := w.create(t, fields{"image": harness.ImageBusybox})
	switch state {
	case "STOPPED":
		w.call(t, "StopSandbox", fields{"sandbox_id": id})
	case "DELETED":
		w.call(t, "DeleteSandbox", fields{"sandbox_id": id})
	case "FAILED":
		if err := harness.DockerAPI.ContainerKill(harness.Bounded(t), "agbox-primary-"+id, "KILL"); err != nil {
			t.Fatal(err)
		}
	}
	w.await(t, id, "SANDBOX_STATE_"+state)
	return id
}

// statesAllow makes each call in each state. What is refused must change nothing.
func statesAllow(t *testing.T, w *world) {
	const ok, invalid, notReady = "", "SANDBOX_INVALID_STATE", "SANDBOX_NOT_READY"
	for state, want := range map[string]map[string]string{
		"READY":   {"StopSandbox": ok, "ResumeSandbox": ok, "DeleteSandbox": ok, "CreateExec": ok},
		"STOPPED": {"StopSandbox": ok, "ResumeSandbox": ok, "DeleteSandbox": ok, "CreateExec": notReady},
		"FAILED":  {"StopSandbox": invalid, "ResumeSandbox": ok, "DeleteSandbox": ok, "CreateExec": notReady},
		"DELETED": {"StopSandbox": invalid, "ResumeSandbox": invalid, "DeleteSandbox": ok, "CreateExec": notReady},
	} {
		for method, reason := range want {
			t.Run(method+" "+state, func(t *testing.T) {
				t.Parallel()
				id := w.inState(t, state)
				before := w.call(t, "GetSandbox", fields{"sandbox_id": id}).text("sandbox.last_event_sequence")
				request := fields{"sandbox_id": id}
				if method == "CreateExec" {
					request["command"] = []string{"true"}
				}
				_, err := w.try(t, method, request)
				if r := refused(err); r.reason != reason || (err == nil) != (reason == ok) || reason != ok && r.code != codes.FailedPrecondition {
					t.Errorf("%s gives %+v, want %q", method, r, reason)
				}
				// What is refused, and what is already so, has no event.
				same := reason != ok || method == "StopSandbox" && state == "STOPPED" || method == "ResumeSandbox" && state == "READY" || state == "DELETED"
				if after := w.call(t, "GetSandbox", fields{"sandbox_id": id}).text("sandbox.last_event_sequence"); same && after != before {
					t.Errorf("%s has the event %s after %s", method, after, before)
				}
			})
		}
	}
}

// history reads the events of a life from several places.
func history(t *testing.T, w *world) {
	id := w.create(t, fields{"image": harness.ImageBusybox})
	live := w.subscribe(t, "SubscribeSandboxEvents", fields{"sandbox_id": id})
	replayed := live.until(t, eventIs("SANDBOX_READY"))
	w.run(t, id, "true")
	w.call(t, "StopSandbox", fields{"sandbox_id": id})
	w.await(t, id, "SANDBOX_STATE_STOPPED")
	w.call(t, "ResumeSandbox", fields{"sandbox_id": id})
	w.await(t, id, "SANDBOX_STATE_READY")
	w.call(t, "DeleteSandbox", fields{"sandbox_id": id})
	all := append(replayed, live.until(t, eventIs("SANDBOX_DELETED"))...)
	if _, err := live.next(t); !errors.Is(err, io.EOF) {
		t.Errorf("after SANDBOX_DELETED the stream gives %v", err)
	}
	seen := map[string]bool{}
	for i, ev := range all {
		if ev.text("sequence") != strconv.Itoa(i+1) || ev.text("sandbox_id") != id || ev.text("event_id") == "" || seen[ev.text("event_id")] || ev.text("occurred_at") == "" {
			t.Errorf("event %d is %v", i+1, ev.values)
		}
		if replay := i < len(replayed); ev.text("replay") != strconv.FormatBool(replay) || ev.text("snapshot") != "false" {
			t.Errorf("event %d says replay %s and snapshot %s", i+1, ev.text("replay"), ev.text("snapshot"))
		}
		seen[ev.text("event_id")] = true
	}
	states := map[string]string{
		"SANDBOX_ACCEPTED": "PENDING", "SANDBOX_READY": "READY", "SANDBOX_STOPPED": "STOPPED", "SANDBOX_DELETE_REQUESTED": "DELETING", "SANDBOX_DELETED": "DELETED",
	}
	for _, ev := range all {
		if want := states[ev.text("event_type")]; want != "" && ev.text("sandbox_state") != "SANDBOX_STATE_"+want {
			t.Errorf("%s says %s, want %s", ev.text("event_type"), ev.text("sandbox_state"), want)
		}
	}
	for _, from := range []int{0, 1, 3, len(all) - 1} {
		events := w.subscribe(t, "SubscribeSandboxEvents", fields{"sandbox_id": id, "from_sequence": strconv.Itoa(from)}).until(t, eventIs("SANDBOX_DELETED"))
		if len(events) != len(all)-from || events[0].text("event_id") != all[from].text("event_id") || events[0].text("replay") != "true" {
			t.Errorf("from %d on there are %d events, want %d", from, len(events), len(all)-from)
		}
	}
	if _, err := w.subscribe(t, "SubscribeSandboxEvents", fields{"sandbox_id": id, "from_sequence": strconv.Itoa(len(all))}).next(t); !errors.Is(err, io.EOF) {
		t.Errorf("from the last event of a deleted sandbox on the stream gives %v", err)
	}
	if r := w.refuse(t, "SubscribeSandboxEvents", fields{"sandbox_id": id, "from_sequence": strconv.Itoa(len(all) + 1)}); r.reason != "SANDBOX_EVENT_SEQUENCE_EXPIRED" {
		t.Errorf("from beyond the last event on: %+v", r)
	}
}

// execLives has commands that end in all ways.
func execLives(t *testing.T, w *world) {
	id := w.create(t, fields{"image": harness.ImageBusybox})
	events := w.subscribe(t, "SubscribeSandboxEvents", fields{"sandbox_id": id})
	events.until(t, eventIs("SANDBOX_READY"))
	ended := func(exec string) answer {
		t.Helper()
		all := events.until(t, func(ev answer) bool {
			return ev.text("exec.exec_id") == exec && ev.text("exec.exec_state") != "EXEC_STATE_RUNNING"
		})
		if !slices.ContainsFunc(all, func(ev answer) bool {
			return ev.text("event_type") == "EXEC_STARTED" && ev.text("exec.exec_id") == exec
		}) {
			t.Errorf("%s has ended and not started: %v", exec, all)
		}
		return all[len(all)-1]
	}
	for _, c := range []struct {
		command         []string
		event, state    string
		code, errorCode string
		cancelled       bool
	}{
		{[]string{"true"}, "EXEC_FINISHED", "EXEC_STATE_FINISHED", "0", "", false},
		{[]string{"sh", "-c", "exit 3"}, "EXEC_FINISHED", "EXEC_STATE_FINISHED", "3", "", false},
		{[]string{"sh", "-c", "kill -9 $$"}, "EXEC_FINISHED", "EXEC_STATE_FINISHED", "137", "", false},
		{[]string{"no-such-command"}, "EXEC_FAILED", "EXEC_STATE_FAILED", "127", "COMMAND_NOT_FOUND", false},
		{[]string{"sleep", "1000000"}, "EXEC_CANCELLED", "EXEC_STATE_CANCELLED", "", "CANCELLED_BY_REQUEST", true},
	} {
		exec := w.call(t, "CreateExec", fields{"sandbox_id": id, "command": c.command}).text("exec_id")
		if c.cancelled {
			w.call(t, "CancelExec", fields{"exec_id": exec})
		}
		ev := ended(exec)
		status := w.call(t, "GetExec", fields{"exec_id": exec})
		if ev.text("event_type") != c.event || ev.text("exec.exec_state") != c.state || status.text("exec.state") != c.state || ev.text("exec.error_code") != c.errorCode {
			t.Errorf("%v ends with %v and %v", c.command, ev.values, status.values)
		}
		if c.code != "" && (ev.text("exec.exit_code") != c.code || status.text("exec.exit_code") != c.code) {
			t.Errorf("%v has the exit codes %s and %s, want %s", c.command, ev.text("exec.exit_code"), status.text("exec.exit_code"), c.code)
		}
		if (c.errorCode != "") != (status.text("exec.error") != "") || status.text("exec.sandbox_id") != id || len(status.at("exec.command").([]any)) != len(c.command) {
			t.Errorf("%v is %v", c.command, status.values)
		}
	}
	created := w.call(t, "CreateExec", fields{"sandbox_id": id, "command": []string{"sh", "-c", "pwd; echo $A; echo err >&2"}, "cwd": "/tmp", "env_overrides": fields{"A": "b c"}})
	ended(created.text("exec_id"))
	for path, want := range map[string]string{created.text("stdout_log_path"): "/tmp\nb c\n", created.text("stderr_log_path"): "err\n"} {
		if got, err := os.ReadFile(path); err != nil || string(got) != want {
			t.Errorf("%s has %q (%v), want %q", path, got, err, want)
		}
	}
	running := w.call(t, "CreateExec", fields{"sandbox_id": id, "command": []string{"sleep", "1000000"}}).text("exec_id")
	if all := w.call(t, "ListActiveExecs", fields{}).texts("execs", "exec_id"); !slices.Contains(all, running) {
		t.Errorf("the running execs of all sandboxes are %v, without %s", all, running)
	}
	w.call(t, "StopSandbox", fields{"sandbox_id": id})
	if ev := ended(running); ev.text("exec.exec_state") == "EXEC_STATE_FINISHED" || ev.text("exec.error_code") != "SANDBOX_STOPPED_UNDER_EXEC" {
		t.Errorf("an exec whose sandbox is stopped ends with %v", ev.values)
	}
	w.await(t, id, "SANDBOX_STATE_STOPPED")
	if all := w.call(t, "ListActiveExecs", fields{"sandbox_id": id}).texts("execs", "exec_id"); len(all) != 0 {
		t.Errorf("a stopped sandbox has the execs %v", all)
	}
}

// selections lists and deletes by labels.
func selections(t *testing.T, w *world) {
	made := map[string]string{}
	for name, labels := range map[string]fields{"a": {"case": "sel", "k": "1"}, "b": {"case": "sel", "k": "2"}, "c": {"case": "sel", "k": "1", "x": ""}} {
		made[name] = w.create(t, fields{"image": harness.ImageBusybox, "labels": labels})
	}
	list := func(deleted bool, selector fields) string {
		t.Helper()
		ids := w.call(t, "ListSandboxes", fields{"label_selector": selector, "include_deleted": deleted}).texts("sandboxes", "sandbox_id")
		var names []string
		for name, id := range made {
			if slices.Contains(ids, id) {
				names = append(names, name)
			}
		}
		if len(names) != len(ids) && len(selector) > 0 {
			t.Errorf("%v lists others: %v", selector, ids)
		}
		slices.Sort(names)
		return strings.Join(names, "")
	}
	w.call(t, "DeleteSandbox", fields{"sandbox_id": made["a"]})
	w.await(t, made["a"], "SANDBOX_STATE_DELETED")
	for _, c := range []struct {
		deleted  bool
		selector fields
		want     string
	}{
		{false, fields{"case": "sel"}, "bc"}, {true, fields{"case": "sel"}, "abc"}, {true, fields{"case": "sel", "k": "1"}, "ac"},
		{false, fields{"case": "sel", "x": ""}, "c"}, {false, fields{"case": "sel", "k": "3"}, ""}, {false, fields{}, "bc"}, {true, fields{}, "abc"},
	} {
		if got := list(c.deleted, c.selector); got != c.want {
			t.Errorf("%v, deleted %t: %q, want %q", c.selector, c.deleted, got, c.want)
		}
	}
	none := w.call(t, "DeleteSandboxes", fields{"label_selector": fields{"case": "sel", "k": "3"}})
	if none.text("deleted_count") != "0" || len(none.at("deleted_sandbox_ids").([]any)) != 0 {
		t.Errorf("nothing fits, and deleted is %v", none.values)
	}
	both := w.call(t, "DeleteSandboxes", fields{"label_selector": fields{"case": "sel"}})
	want := []string{made["b"], made["c"]}
	slices.Sort(want)
	if both.text("deleted_count") != "2" || fmt.Sprint(both.at("deleted_sandbox_ids")) != fmt.Sprint(want) {
		t.Errorf("deleted is %v, want %v", both.values, want)
	}
}

// greetings checks the answer to Ping, and ids at the border of what is allowed.
func greetings(t *testing.T, w *world) {
	ping := w.call(t, "Ping", fields{})
	if ping.text("daemon") != "agboxd" || ping.text("version") == "" {
		t.Errorf("Ping answers %v", ping.values)
	}
	for _, id := range []string{"a b", "../x", ".hidden", "-dash", "_x", "a/b", "é", "a\nb", strings.Repeat("x", 201)} {
		r := w.refuse(t, "CreateSandbox", fields{"sandbox_id": id, "create_spec": fields{"image": harness.ImageBusybox}})
		if r.code != codes.InvalidArgument || r.reason != "INVALID_REQUEST" {
			t.Errorf("the id %q gives %+v", id, r)
		}
	}
	failed := w.call(t, "CreateSandbox", fields{"create_spec": fields{"image": "agbox-test/no-such-image:latest"}}).text("sandbox.sandbox_id")
	events := w.subscribe(t, "SubscribeSandboxEvents", fields{"sandbox_id": failed}).until(t, eventIs("SANDBOX_FAILED"))
	ev, box := events[len(events)-1], w.call(t, "GetSandbox", fields{"sandbox_id": failed})
	if code := ev.text("sandbox_phase.error_code"); code == "" || box.text("sandbox.error_code") != code || box.text("sandbox.error_message") == "" ||
		box.text("sandbox.error_message") != ev.text("sandbox_phase.error_message") || box.text("sandbox.state") != "SANDBOX_STATE_FAILED" {
		t.Errorf("a sandbox without an image is %v after %v", box.values, ev.values)
	}
}
