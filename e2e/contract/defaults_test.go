package contract

import (
	"os"
	"os/user"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/agbox/agbox/e2e/internal/harness"
)

// uuid is what the published daemon generates (version 4).
var uuid = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)

func generatedIDs(t *testing.T, w *world) {
	id := w.create(t, fields{"image": harness.ImageBusybox})
	exec := w.call(t, "CreateExec", fields{"sandbox_id": id, "command": []string{"true"}}).text("exec_id")
	if !uuid.MatchString(id) || !uuid.MatchString(exec) {
		t.Errorf("the sandbox has the id %q and the exec %q, want UUIDs of version 4", id, exec)
	}
}

// homeInSources names files below the home of the caller, which the request cannot say.
func homeInSources(t *testing.T, w *world) {
	who, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp(who.HomeDir, "agbox-contract-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "a"), []byte("at home\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	source := "~/" + filepath.Base(dir)
	id := w.create(t, fields{
		"image":         harness.ImageBusybox,
		"mounts":        []fields{{"source": source, "target": "/mounted"}},
		"copies":        []fields{{"source": source + "/a", "target": "/copied"}},
		"builtin_tools": []string{"git", "npm", "uv", "apt", "opencode"}, // with what there is
	})
	if got := w.shell(t, id, "cat /mounted/a /copied"); got != "at home\nat home\n" {
		t.Errorf("the sandbox has %q of the home", got)
	}
	inYAML := w.createFrom(t, fields{"config_yaml": []byte("image: " + harness.ImageBusybox + "\nmounts: [{source: " + source + ", target: /m}]\n")})
	if got := w.shell(t, inYAML, "cat /m/a"); got != "at home\n" {
		t.Errorf("a sandbox of YAML has %q of the home", got)
	}
}

// strictSpecs are accepted from clients of ours and refused by the published contract.
func strictSpecs(t *testing.T, w *world) {
	dir := t.TempDir()
	companion := func(more fields) []fields {
		all := fields{"name": "db", "image": harness.ImageBusybox}
		for key, value := range more {
			all[key] = value
		}
		return []fields{all}
	}
	for what, c := range map[string]struct {
		spec fields
		says string
	}{
		"a mount and a copy at one target": {fields{"mounts": []fields{{"source": dir, "target": "/w"}}, "copies": []fields{{"source": dir, "target": "/w"}}}, "/w"},
		"host_port 0":                      {fields{"ports": []fields{{"container_port": 80}}}, "host_port must be between 1 and 65535"},
		"an empty word":                    {fields{"command": []string{"sleep", ""}}, "command[1]"},
		"an empty word of a companion":     {fields{"services": companion(fields{"command": []string{"sleep", ""}})}, "companion_containers[0].command[1]"},
		"hooks without a healthcheck":      {fields{"services": companion(fields{"post_start_on_primary": []string{"true"}})}, "must define healthcheck"},
		"a companion without an image":     {fields{"services": []fields{{"name": "db"}}}, "companion_containers[0]"},
	} {
		c.spec["image"] = harness.ImageBusybox
		r := w.refuse(t, "CreateSandbox", fields{"create_spec": c.spec})
		if r.code != codes.InvalidArgument || r.reason != "INVALID_REQUEST" || !strings.Contains(r.message, c.says) || strings.Contains(r.message, "services[") {
			t.Errorf("%s gives %v: %q, want %q", what, r.code, r.message, c.says)
		}
	}
}

func reasonsOfEnds(t *testing.T, w *world) {
	id := w.create(t, fields{"image": harness.ImageBusybox})
	w.call(t, "StopSandbox", fields{"sandbox_id": id})
	w.await(t, id, "SANDBOX_STATE_STOPPED")
	w.call(t, "DeleteSandbox", fields{"sandbox_id": id})
	events := w.subscribe(t, "SubscribeSandboxEvents", fields{"sandbox_id": id}).until(t, eventIs("SANDBOX_DELETED"))
	for typ, want := range map[string]string{
		"SANDBOX_STOP_REQUESTED": "stop_requested", "SANDBOX_STOPPED": "stop_requested",
		"SANDBOX_DELETE_REQUESTED": "delete_requested", "SANDBOX_DELETED": "delete_requested",
	} {
		if got := events[slices.IndexFunc(events, eventIs(typ))].text("sandbox_phase.reason"); got != want {
			t.Errorf("%s has the reason %q, want %s", typ, got, want)
		}
	}
}

// deletedOnce deletes by label what a first call is deleting already.
func deletedOnce(t *testing.T, w *world) {
	labelled := fields{"image": harness.ImageBusybox, "labels": fields{"of": "deletedOnce"}}
	first, second := w.create(t, labelled), w.create(t, labelled)
	w.call(t, "DeleteSandbox", fields{"sandbox_id": first})
	got := w.call(t, "DeleteSandboxes", fields{"label_selector": labelled["labels"]})
	if ids, _ := got.at("deleted_sandbox_ids").([]any); len(ids) != 1 || ids[0] != second || got.text("deleted_count") != "1" {
		t.Errorf("what is deleted is %v (%s), want only %s", ids, got.text("deleted_count"), second)
	}
}

// companionsFirst has companions that run, that cannot, and that never become healthy.
func companionsFirst(t *testing.T, w *world) {
	id := w.call(t, "CreateSandbox", fields{"create_spec": fields{"image": harness.ImageBusybox, "services": []fields{
		{"name": "cache", "image": harness.ImageBusybox, "command": []string{"sleep", "1000000"}},
		{"name": "nowhere", "image": "agbox-test/no-such-image:latest"},
		neverHealthy,
	}}}).text("sandbox.sandbox_id")
	events := w.subscribe(t, "SubscribeSandboxEvents", fields{"sandbox_id": id}).until(t, eventIs("SANDBOX_READY"))
	for typ, want := range map[string]string{"SANDBOX_SERVICE_READY": "cache", "SANDBOX_SERVICE_FAILED": "nowhere"} {
		if i := slices.IndexFunc(events, eventIs(typ)); i < 0 || events[i].text("service.name") != want {
			t.Errorf("before SANDBOX_READY there is no %s of %s: %v", typ, want, events)
		}
	}
}

func publishedLifetimes(t *testing.T, w *world) {
	id := w.create(t, fields{"image": harness.ImageBusybox})
	shown := w.in.Must(t, "inspect", id)
	for _, want := range []string{"idle_ttl: 10m", "cleanup_ttl: 360h"} {
		if !strings.Contains(shown, want) {
			t.Errorf("a sandbox that leaves it out has no %q:\n%s", want, shown)
		}
	}
	ours := strings.TrimSpace(w.in.Must(t, "create", "--no-wait", "--image", harness.ImageBusybox))
	if shown := w.in.Must(t, "inspect", ours); strings.Contains(shown, "idle_ttl") || strings.Contains(shown, "cleanup_ttl") {
		t.Errorf("a sandbox of ours has them:\n%s", shown)
	}
	// It is deleted once it was stopped for that time, with the reason of the setting.
	w.in.Must(t, "create", "soon-gone", "--id", "soon-gone-id", "--cleanup-ttl", "200ms", "--image", harness.ImageBusybox)
	w.in.Must(t, "stop", "soon-gone")
	events := w.subscribe(t, "SubscribeSandboxEvents", fields{"sandbox_id": "soon-gone-id"}).until(t, eventIs("SANDBOX_DELETED"))
	if got := events[len(events)-1].text("sandbox_phase.reason"); got != "cleanup_ttl" {
		t.Errorf("it is deleted with the reason %q", got)
	}
}
