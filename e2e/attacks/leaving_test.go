package attacks

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agbox/agbox/e2e/internal/harness"
)

// write makes files below a folder of the install, which becomes a new project.
func write(t *testing.T, in *harness.Install, dir string, files map[string]string) string {
	t.Helper()
	root := filepath.Join(in.Home, dir)
	for name, content := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// from runs agbox in a folder.
func from(t *testing.T, in *harness.Install, dir string, args ...string) harness.Result {
	t.Helper()
	cmd := in.Command(harness.Bounded(t), "agbox", args...)
	cmd.Dir = dir
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	_ = cmd.Run()
	return harness.Result{Args: cmd.Args, Stdout: stdout.String(), Stderr: stderr.String(), Code: cmd.ProcessState.ExitCode()}
}

// inside runs a script in a sandbox and returns what it prints.
func inside(t *testing.T, in *harness.Install, box, script string) string {
	t.Helper()
	return in.Agbox(t, "exec", box, "--", "sh", "-c", script).Want(t, 0).Stdout
}

func TestNothingOfOthersAndOfTheSystemLeavesTheHost(t *testing.T) {
	t.Parallel()
	Row(t, 3, "mounts and copies of keys, of the system, of others and of agbox")
	in := harness.New(t)
	project := write(t, in, "project", map[string]string{"a": "one\n"})
	write(t, in, ".ssh", map[string]string{"id": "key\n"})
	write(t, in, "shared/elsewhere", map[string]string{".gnupg/ring": "key\n"})
	for name, to := range map[string]string{"keys": in.Home + "/.ssh", "passwords": "/etc/shadow", "programs": in.Bin} {
		if err := os.Symlink(to, filepath.Join(project, name)); err != nil {
			t.Fatal(err)
		}
	}
	in.Must(t, "daemon", "start")
	for _, tc := range []struct{ source, says string }{
		{in.Home + "/.ssh", "credentials in .ssh"}, {in.Home + "/.ssh/id", "credentials in .ssh"}, {in.Home + "/.aws", "credentials in .aws"},
		{in.Home + "/.docker/config.json", "credentials in .docker"}, {in.Home + "/.config/gcloud", "credentials in .config/gcloud"},
		{"/etc/shadow", "password hashes"}, {"/etc/hostname", "the system"}, {"/usr/share", "the system"}, {"/var/lib", "engine"}, {"/var/log", "the system"},
		{"/home/somebody/src", "home of another user"}, {in.Home, "whole home"}, {in.Home + "/shared/elsewhere", "credentials in it, in .gnupg"},
		{in.Home + "/data/ids.db", "agbox itself"}, {in.Bin + "/agboxd", "agbox itself"},
		{project + "/keys", "symbolic link"}, {project + "/keys/id", "symbolic link"}, {project + "/passwords", "symbolic link"}, {project + "/programs/agbox-init", "symbolic link"},
	} {
		for _, flags := range [][]string{{"--mount", tc.source + ":/x"}, {"--mount", tc.source + ":/x:rw"}, {"--copy", tc.source + ":/x"}, {"--workspace", tc.source}} {
			r := in.Agbox(t, append([]string{"create", "--image", harness.ImageBusybox}, flags...)...)
			if r.Code == 0 || !strings.Contains(r.Stderr, tc.says) || !strings.Contains(r.Stderr, "--allow-dangerous-mounts") {
				t.Errorf("%v: exit code %d, stderr %q, want %q", flags, r.Code, r.Stderr, tc.says)
			}
		}
	}
	if got := in.Must(t, "ls", "--deleted", "-q"); got != "" {
		t.Errorf("there are sandboxes: %s", got)
	}
	in.Create(t, "meant", harness.ImageBusybox, "--copy", in.Home+"/.ssh:/x", "--allow-dangerous-mounts")
	harness.WantSame(t, "the forced copy", inside(t, in, "meant", "cat /x/id"), "key\n")
	if text := in.Must(t, "inspect", "meant"); !strings.Contains(text, "dangerous copy of "+in.Home+"/.ssh") {
		t.Errorf("inspect does not name the forced copy:\n%s", text)
	}
}

func TestAFileMountsOnlyItsOwnFolderWritable(t *testing.T) {
	t.Parallel()
	Row(t, 3, "a sandbox file asks for a writable mount outside of its folder")
	in := harness.New(t)
	other := write(t, in, "other", map[string]string{"a": "one\n"})
	project := write(t, in, "project", map[string]string{"data/a": "two\n"})
	if err := os.Symlink(other, filepath.Join(project, "link")); err != nil {
		t.Fatal(err)
	}
	in.Must(t, "daemon", "start")
	for name, ask := range map[string]string{
		"by name": "mounts: [\"../other:/x:rw\"]", "by a link": "mounts: [\"./link:/x:rw\"]", "above": "mounts: [\"..:/x:rw\"]",
		"as workspace": "workspace: {source: ../other, mount: true}",
	} {
		write(t, in, "project", map[string]string{"agbox.yaml": "image: " + harness.ImageBusybox + "\n" + ask + "\n"})
		r := from(t, in, project, "create", "--trust")
		if r.Code == 0 || !strings.Contains(r.Stderr, "agbox.yaml:2") {
			t.Errorf("%s: exit code %d, stderr %q", name, r.Code, r.Stderr)
		}
	}
	if got := in.Must(t, "ls", "--deleted", "-q"); got != "" {
		t.Errorf("there are sandboxes: %s", got)
	}
	write(t, in, "project", map[string]string{"agbox.yaml": "image: " + harness.ImageBusybox + "\nmounts: [\"./data:/data:rw\", \"../other:/other\"]\n"})
	from(t, in, project, "create", "own", "--trust", "--mount", other+":/by-flag:rw").Want(t, 0)
	harness.WantSame(t, "what may be mounted", inside(t, in, "own", "cat /data/a /other/a; echo three >/by-flag/b; touch /other/c 2>/dev/null || echo refused"), "two\none\nrefused\n")
}
