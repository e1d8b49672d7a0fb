package attacks

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agbox/agbox/e2e/internal/harness"
)

// withPolicy gives an install a policy.
func withPolicy(t *testing.T, in *harness.Install, content string) (path string) {
	t.Helper()
	dir := write(t, in, "operator", map[string]string{"policy.yaml": content})
	path = filepath.Join(dir, "policy.yaml")
	write(t, in, "config", map[string]string{"agboxd.yaml": "policy: " + path + "\n"})
	return path
}

func TestAPolicyBoundsWhatAnybodyMayAskFor(t *testing.T) {
	t.Parallel()
	Row(t, 3, "more than the operator's policy allows, by flags")
	in := harness.New(t)
	open, other := write(t, in, "open", map[string]string{"a": "one\n", "Makefile": "all:\n", "secret/b": ""}), write(t, in, "other", map[string]string{"a": ""})
	withPolicy(t, in, "allow: {dangerous_mounts: false, devices: false, privileged: false, writable_config: false}\nmounts:\n  writable: ["+open+"]\n  read_only: []\n  denied: ["+open+"/secret]\ncovers: [Makefile]\n")
	in.Must(t, "daemon", "start")
	for _, flags := range [][]string{
		{"--allow-dangerous-mounts"}, {"--device", "/dev/null"}, {"--privileged"}, {"--cap-add", "SYS_ADMIN"}, {"--seccomp-unconfined"}, {"--writable-config"},
		{"--mount", other + ":/x"}, {"--mount", other + ":/x:rw"}, {"--copy", other + ":/x"}, {"--workspace", other}, {"--mount-workspace", other},
		{"--mount", open + "/secret:/x"}, {"--copy", open + "/secret/b:/x"}, {"--mount", open + ":/x"},
	} {
		r := in.Agbox(t, append([]string{"create", "--image", harness.ImageBusybox}, flags...)...)
		if r.Code == 0 || !strings.Contains(r.Stderr, "the operator's policy "+in.Home) && !strings.Contains(r.Stderr, "The operator's policy "+in.Home) {
			t.Errorf("%v: exit code %d, stderr %q", flags, r.Code, r.Stderr)
		}
	}
	if shown := in.Must(t, "policy", "show"); !strings.Contains(shown, "dangerous_mounts: false # line 1") || !strings.Contains(shown, "covers: [\"Makefile\"] # line 6") {
		t.Errorf("shown as\n%s", shown)
	}
	if err := os.RemoveAll(filepath.Join(open, "secret")); err != nil {
		t.Fatal(err)
	}
	in.Must(t, "daemon", "stop")
	withPolicy(t, in, "mounts: {writable: ["+open+"]}\ncovers: [Makefile]\ntrusted_folders: ["+in.Home+"/project]\n")
	in.Must(t, "daemon", "start")
	// What the policy names may be asked for by a file, and needs no question there.
	dir := write(t, in, "project", map[string]string{"agbox.yaml": "image: " + harness.ImageBusybox + "\nmounts: [\"../open:/x:rw\"]\n"})
	from(t, in, dir, "create", "demo").Want(t, 0)
	harness.WantSame(t, "what the policy opens and covers", inside(t, in, "demo", "touch /x/new; (echo x >/x/Makefile) 2>/dev/null || echo refused"), "refused\n")
}

func TestADaemonDoesNotStartWithAPolicyThatOthersCanChange(t *testing.T) {
	t.Parallel()
	Row(t, 3, "a policy that others than root can change")
	in := harness.New(t)
	path := withPolicy(t, in, "covers: [Makefile]\n")
	for says, change := range map[string]func() error{
		"others than its owner may write to": func() error { return os.Chmod(path, 0o666) },
		"belongs to user 1000":               func() error { return os.Chown(path, 1000, 0) },
	} {
		if err := change(); err != nil {
			t.Fatal(err)
		}
		if r := in.Agbox(t, "daemon", "start"); r.Code == 0 || !strings.Contains(r.Stderr, says) {
			t.Errorf("exit code %d, stderr %q, want %q", r.Code, r.Stderr, says)
		}
		if err := os.Chown(path, 0, 0); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAPolicyBoundsWhatWasCreatedBeforeIt(t *testing.T) {
	t.Parallel()
	Row(t, 3, "a sandbox from before the operator's policy is started again")
	in := harness.New(t)
	open, other := write(t, in, "open", map[string]string{"a": "one\n"}), write(t, in, "other", map[string]string{"a": ""})
	for name, flags := range map[string][]string{
		"device": {"--device", "/dev/null"}, "other": {"--mount", other + ":/x"}, "open": {"--mount", open + ":/x:rw"},
	} {
		in.Create(t, name, harness.ImageBusybox, flags...)
		in.Must(t, "stop", name)
	}
	in.Must(t, "daemon", "stop")
	withPolicy(t, in, "allow: {devices: false}\nmounts: {writable: ["+open+"], read_only: []}\n")
	in.Must(t, "daemon", "start")
	for name, says := range map[string]string{"device": "forbids security.devices by now", "other": "Mounting " + other + " is refused, because the operator's policy " + in.Home} {
		if r := in.Agbox(t, "start", name); r.Code == 0 || !strings.Contains(r.Stderr, says) {
			t.Errorf("%s: exit code %d, stderr %q, want %q", name, r.Code, r.Stderr, says)
		}
	}
	in.Must(t, "start", "open")
	harness.WantSame(t, "what the policy allows", inside(t, in, "open", "cat /x/a"), "one\n")
}
