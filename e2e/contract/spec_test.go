package contract

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/agbox/agbox/e2e/internal/harness"
)

func idleTTL(t *testing.T, w *world) {
	never := w.create(t, fields{"image": harness.ImageBusybox, "idle_ttl": "0s"})
	inYAML := w.createFrom(t, fields{"config_yaml": []byte("image: " + harness.ImageBusybox + "\nidle_ttl: \"0\"\n")})
	soon := w.call(t, "CreateSandbox", fields{"create_spec": fields{"image": harness.ImageBusybox, "idle_ttl": "0.2s"}}).text("sandbox.sandbox_id")
	// The published daemon gives this reason, of the request and of the stop.
	events := w.subscribe(t, "SubscribeSandboxEvents", fields{"sandbox_id": soon}).until(t, eventIs("SANDBOX_STOPPED"))
	asked := events[slices.IndexFunc(events, eventIs("SANDBOX_STOP_REQUESTED"))]
	if got := asked.text("sandbox_phase.reason"); got != "idle_ttl" {
		t.Errorf("the reason of an idle stop is %q, want idle_ttl", got)
	}
	for _, id := range []string{never, inYAML} {
		if state := w.call(t, "GetSandbox", fields{"sandbox_id": id}).text("sandbox.state"); state != "SANDBOX_STATE_READY" {
			t.Errorf("a sandbox whose idle_ttl is 0 is %s", state)
		}
	}
}

func homeInTargets(t *testing.T, w *world) {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o755); err != nil { // the agent of the image reads it
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "a"), []byte("of the host\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for image, home := range map[string]string{harness.ImageUser: "/home/agent", harness.ImageBusybox: "/root", harness.ImageScratch: "/"} {
		id := w.create(t, fields{
			"image":  image,
			"mounts": []fields{{"source": dir, "target": "~/deep/mounted"}},
			"copies": []fields{{"source": dir, "target": "~/copied"}},
		})
		if image == harness.ImageScratch { // it has no /etc/passwd, and no shell either
			for _, file := range []string{"/deep/mounted/a", "/copied/a"} {
				w.in.Agbox(t, "cp", id+":"+file, filepath.Join(t.TempDir(), "a")).Want(t, 0)
			}
			continue
		}
		got := w.shell(t, id, "cd; pwd; cat deep/mounted/a copied/a; find copied ! -user $(id -u)")
		if want := home + "\nof the host\nof the host\n"; got != want {
			t.Errorf("%s: got %q, want %q", image, got, want)
		}
	}
}

// neverHealthy is a companion that would hold up whoever waits for it.
var neverHealthy = fields{
	"name": "never-healthy", "image": harness.ImageBusybox, "command": []string{"sleep", "1000000"},
	"healthcheck": fields{"test": []string{"CMD", "false"}, "interval": "0.5s", "retries": 1000},
}

func companionsDoNotGate(t *testing.T, w *world) {
	id := w.create(t, fields{"image": harness.ImageBusybox, "services": []fields{neverHealthy}})
	if names := w.call(t, "GetSandbox", fields{"sandbox_id": id}).texts("sandbox.services", "name"); !slices.Equal(names, []string{"never-healthy"}) {
		t.Errorf("the sandbox has the companions %v", names)
	}
	// A service that READY waits for says required explicitly.
	w.in.Must(t, "create", "gated", "--no-wait", "--image", harness.ImageBusybox, "--service", "needed="+harness.ImageBusybox)
	if shown := w.in.Must(t, "inspect", "gated"); !strings.Contains(shown, "required: true") {
		t.Errorf("a service of the command line does not say that it is required:\n%s", shown)
	}
}

const companionYAML = `
image: ` + harness.ImageBusybox + `
companion_containers:
  zeta:
    image: ` + harness.ImageBusybox + `
    command: [sleep, "1000000"]
    healthcheck: {test: [CMD, "false"], interval: 1s, start_period: 20s, start_interval: 1s, retries: 1000}
    post_start_on_primary: ["echo never"]
  alpha_1:
    image: ` + harness.ImageBusybox + `
    envs: {KEY: value}
    command: [sleep, "1000000"]
    cpu_limit: "1"
    memory_limit: "64m"
`

func companionMap(t *testing.T, w *world) {
	id := w.createFrom(t, fields{"config_yaml": []byte(companionYAML)})
	box := w.call(t, "GetSandbox", fields{"sandbox_id": id})
	if names := box.texts("sandbox.services", "name"); !slices.Equal(names, []string{"alpha_1", "zeta"}) {
		t.Errorf("the sandbox has the companions %v, want them by name", names)
	}
	if got := box.text("sandbox.services.0.envs.KEY"); got != "value" {
		t.Errorf("the environment of alpha_1 is %q", got)
	}
}
