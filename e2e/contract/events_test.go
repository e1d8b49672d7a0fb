package contract

import (
	"slices"
	"strings"
	"testing"

	"github.com/agbox/agbox/e2e/internal/harness"
)

// exactType is our own field with the exact type of an event.
const exactType = 51

// eventTypes makes a sandbox emit all of our own event types.
func eventTypes(t *testing.T, w *world) {
	id := w.createFrom(t, fields{
		"config_yaml": []byte("revival: revive\n"),
		"create_spec": fields{
			"image": harness.ImageBusybox, "copies": []fields{{"source": t.TempDir(), "target": "/copied"}},
			"services": []fields{{"name": "companion", "image": harness.ImageBusybox, "command": []string{"sleep", "1000000"}}},
		},
	})
	events := w.subscribe(t, "SubscribeSandboxEvents", fields{"sandbox_id": id})
	var ready, companion bool
	all := events.until(t, func(ev answer) bool {
		ready = ready || eventIs("SANDBOX_READY")(ev)
		companion = companion || eventIs("SANDBOX_SERVICE_READY")(ev)
		return ready && companion
	})
	if err := harness.DockerAPI.ContainerKill(harness.Bounded(t), "agbox-primary-"+id, "KILL"); err != nil {
		t.Fatal(err)
	}
	all = append(all, events.until(t, eventIs("SANDBOX_READY"))...)
	w.call(t, "StopSandbox", fields{"sandbox_id": id})
	all = append(all, events.until(t, eventIs("SANDBOX_STOPPED"))...)
	w.call(t, "ResumeSandbox", fields{"sandbox_id": id})
	resumed := events.until(t, eventIs("SANDBOX_READY"))
	all = append(all, resumed...)
	if got := resumed[0].text("event_type"); got != "SANDBOX_ACCEPTED" {
		t.Errorf("a resume begins with %s, want SANDBOX_ACCEPTED", got)
	}
	w.in.Must(t, "rename", id, "renamed-"+id)
	all = append(all, events.until(t, func(ev answer) bool { return ev.extra(t, exactType) == 54 })...)
	for own, want := range map[uint64]string{50: "SANDBOX_ACCEPTED", 51: "SANDBOX_PREPARING", 52: "SANDBOX_PREPARING", 53: "SANDBOX_PREPARING", 54: "SANDBOX_PREPARING"} {
		i := slices.IndexFunc(all, func(ev answer) bool { return ev.extra(t, exactType) == own })
		if i < 0 {
			t.Errorf("no event says that its exact type is %d", own)
		} else if got := all[i].text("event_type"); got != want {
			t.Errorf("the event of exact type %d is sent as %s, want %s", own, got, want)
		}
	}
	for _, ev := range all {
		if ev.text("event_type") == "SANDBOX_PREPARING" && ev.text("sandbox_phase.phase") == "" {
			t.Errorf("an event SANDBOX_PREPARING says no phase: %v", ev.values)
		}
	}
	// Our own client asks for the exact types.
	shown := w.in.Must(t, "events", id)
	for _, own := range []string{"SANDBOX_RESUME_REQUESTED", "SANDBOX_REVIVED", "SANDBOX_SERVICE_STARTED", "SANDBOX_FILES_COPIED", "SANDBOX_RENAMED"} {
		if !strings.Contains(shown, own) {
			t.Errorf("agbox events does not show %s:\n%s", own, shown)
		}
	}
}

func eventIs(typ string) func(answer) bool {
	return func(ev answer) bool { return ev.text("event_type") == typ }
}

func snapshotIsNewestEvent(t *testing.T, w *world) {
	id := w.create(t, fields{"image": harness.ImageBusybox})
	w.run(t, id, "true")
	first := w.call(t, "CreateExec", fields{"sandbox_id": id, "command": []string{"sleep", "1000000"}}).text("exec_id")
	second := w.call(t, "CreateExec", fields{"sandbox_id": id, "command": []string{"sleep", "1000000"}}).text("exec_id")
	newest := w.call(t, "GetSandbox", fields{"sandbox_id": id}).text("sandbox.last_event_sequence")
	var last answer
	w.subscribe(t, "SubscribeSandboxEvents", fields{"sandbox_id": id}).
		until(t, func(ev answer) bool { last = ev; return ev.text("sequence") == newest })
	events := w.subscribe(t, "SubscribeSandboxEvents", fields{"sandbox_id": id, "from_sequence": newest, "include_current_snapshot": true})
	got, err := events.next(t)
	if err != nil {
		t.Fatal(err)
	}
	for _, field := range []string{"event_id", "sequence", "event_type", "occurred_at", "sandbox_state", "exec.exec_id"} {
		if got.text(field) != last.text(field) {
			t.Errorf("%s of the snapshot is %q, that of the newest event %q", field, got.text(field), last.text(field))
		}
	}
	if got.text("snapshot") != "true" || got.text("replay") != "true" || got.text("exec.exec_id") != second {
		t.Errorf("the snapshot is %v", got.values)
	}
	// One follows for each running exec.
	var running []string
	for range 2 {
		ev, err := events.next(t)
		if err != nil {
			t.Fatal(err)
		}
		if ev.text("snapshot") != "true" || ev.text("event_type") != "EXEC_STARTED" || ev.text("sequence") != newest || ev.text("exec.exec_state") != "EXEC_STATE_RUNNING" {
			t.Errorf("the snapshot of an exec is %v", ev.values)
		}
		running = append(running, ev.text("exec.exec_id"))
	}
	if !slices.Contains(running, first) || !slices.Contains(running, second) {
		t.Errorf("the snapshot has the execs %v, want %s and %s", running, first, second)
	}
	w.call(t, "CancelExec", fields{"exec_id": first})
	if ev, err := events.next(t); err != nil || ev.text("event_type") != "EXEC_CANCELLED" || ev.text("snapshot") != "false" {
		t.Errorf("what comes after the snapshot is %v (%v)", ev.values, err)
	}
}
