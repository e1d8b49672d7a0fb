package main

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// serveStates is a daemon with the sandboxes up, stopped and failed.
func serveStates(t *testing.T) (*scripted, string) {
	t.Helper()
	d, socket := serveScripted(t)
	for _, name := range []string{"up", "stopped", "failed"} {
		agbox(t, socket, "create", name, "--id", name+"1", "--image", "good")
	}
	agbox(t, socket, "stop", "stopped")
	d.boxes[2].State = agboxv1.SandboxState_SANDBOX_STATE_FAILED
	return d, socket
}

func states(d *scripted) string {
	words := make([]string, len(d.boxes))
	for i, h := range d.boxes {
		words[i] = sandboxState(h)
	}
	return strings.Join(words, " ")
}

func TestPruneRemovesWhatDoesNotRun(t *testing.T) {
	d, socket := serveStates(t)
	if code, out, errs := agbox(t, socket, "prune"); code != codeUsage || out != "" || !strings.Contains(errs, "Sandboxes to remove: 2. Without a terminal agbox prune needs -f.") {
		t.Errorf("without a terminal: code %d, %q, %q", code, out, errs)
	}
	if got := states(d); got != "ready stopped failed" {
		t.Errorf("then they are %s", got)
	}
	if code, out, errs := agbox(t, socket, "prune", "-f"); code != 0 || out != "stopped1\nfailed1\n" || errs != "" {
		t.Errorf("code %d, %q, %q", code, out, errs)
	}
	if got := states(d); got != "ready deleted deleted" {
		t.Errorf("then they are %s", got)
	}
	if code, out, errs := agbox(t, socket, "prune"); code != 0 || out != "" || errs != "agbox: No sandbox is stopped or has failed.\n" {
		t.Errorf("again: code %d, %q, %q", code, out, errs)
	}
}

// Only what agbox has built and nothing uses goes, with all its names.
func TestImagePruneRemovesWhatAgboxHasBuiltAndNothingUses(t *testing.T) {
	d, socket := serveScripted(t)
	d.images = []*agboxv1.Image{
		{Id: "sha256:1", Names: []string{"mine:1"}},
		{Id: "sha256:2", Names: []string{"built:1", "built:2"}, Built: true},
		{Id: "sha256:3", Names: []string{"used:1"}, Built: true, Used: true},
	}
	left := func(want string) {
		t.Helper()
		var names []string
		for _, i := range d.images {
			names = append(names, i.GetNames()...)
		}
		if got := strings.Join(names, " "); got != want {
			t.Errorf("left are %s, want %s", got, want)
		}
	}
	if code, out, errs := agbox(t, socket, "image", "prune"); code != codeUsage || out != "" || !strings.Contains(errs, "Images to remove: 1. Without a terminal agbox image prune needs -f.") {
		t.Errorf("without a terminal: code %d, %q, %q", code, out, errs)
	}
	left("mine:1 built:1 built:2 used:1")
	if code, out, errs := agbox(t, socket, "image", "prune", "-f"); code != 0 || out != "built:1\nbuilt:2\n" || errs != "" {
		t.Errorf("code %d, %q, %q", code, out, errs)
	}
	left("mine:1 used:1")
}

func TestStopAndRemoveAll(t *testing.T) {
	d, socket := serveStates(t)
	if code, out, errs := agbox(t, socket, "stop", "--all"); code != 0 || out != "up1\n" || errs != "" {
		t.Errorf("stop: code %d, %q, %q", code, out, errs)
	}
	for _, words := range []string{"stop --all up", "rm --all up", "rm --all --label a=b"} {
		if code, _, errs := agbox(t, socket, strings.Fields(words)...); code != codeUsage || !strings.Contains(errs, "--all") {
			t.Errorf("%s: code %d, %q", words, code, errs)
		}
	}
	if got := states(d); got != "stopped stopped failed" {
		t.Errorf("then they are %s", got)
	}
	if code, out, errs := agbox(t, socket, "rm", "--all"); code != 0 || out != "up1\nstopped1\nfailed1\n" || errs != "" {
		t.Errorf("rm: code %d, %q, %q", code, out, errs)
	}
	if got := states(d); got != "deleted deleted deleted" {
		t.Errorf("then they are %s", got)
	}
}

func TestRestartIsOneCall(t *testing.T) {
	d, socket := serveStates(t)
	for _, name := range []string{"up", "stopped"} {
		before := len(d.events)
		if code, out, errs := agbox(t, socket, "restart", name); code != 0 || out != name+"1\n" || errs != "" {
			t.Errorf("%s: code %d, %q, %q", name, code, out, errs)
		}
		last := d.events[before:]
		if len(last) != 2 || last[0].GetEventType() != agboxv1.EventType_SANDBOX_STOPPED || last[1].GetEventType() != agboxv1.EventType_SANDBOX_READY {
			t.Errorf("%s: events %v", name, last)
		}
	}
}

func TestEventsSinceATime(t *testing.T) {
	d, socket := serveScripted(t)
	agbox(t, socket, "create", "demo", "--id", "box1", "--image", "good")
	for i, ev := range d.events {
		ev.OccurredAt = timestamppb.New(theTime.Add(time.Duration(i) * time.Minute))
	}
	for _, words := range []string{"events demo --since 1m", "events --since 1m", "events --since 2026-05-04T12:02"} { // it is 12:03
		code, out, errs := agbox(t, socket, strings.Fields(words)...)
		if lines := strings.Split(out, "\n"); code != 0 || len(lines) != len(d.events)-2+1 || !strings.HasPrefix(lines[0], "2026-05-04T12:02:00.000Z  demo  3 ") {
			t.Errorf("%s: code %d, %q, %q", words, code, out, errs)
		}
	}
	if code, _, errs := agbox(t, socket, "events", "--since", "soon"); code != codeUsage || !strings.Contains(errs, `--since "soon" is not a time`) {
		t.Errorf("code %d, %q", code, errs)
	}
}

func TestThePortOfASandboxIsAnAddress(t *testing.T) {
	_, socket := serveScripted(t)
	agbox(t, socket, "create", "demo", "--image", "ports")
	for words, want := range map[string]string{
		"port demo 80": "127.0.0.1:4080\n[::1]:4080\n", "port demo 80/tcp": "127.0.0.1:4080\n[::1]:4080\n", "port demo 53/udp": "127.0.0.1:4053\n",
	} {
		if code, out, errs := agbox(t, socket, strings.Fields(words)...); code != 0 || out != want {
			t.Errorf("%s: code %d, %q, %q", words, code, out, errs)
		}
	}
	for words, want := range map[string]int{"port demo 53": codeNotFound, "port demo 81": codeNotFound, "port demo x": codeUsage, "port demo 0": codeUsage, "port demo 80/": codeUsage, "port demo 99": codeNotFound} {
		if code, out, errs := agbox(t, socket, strings.Fields(words)...); code != want || out != "" {
			t.Errorf("%s: code %d, %q, %q", words, code, out, errs)
		}
	}
}
