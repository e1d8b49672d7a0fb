package attacks

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/agbox/agbox/e2e/internal/engine"
	"github.com/agbox/agbox/e2e/internal/harness"
	"github.com/agbox/agbox/runtime/docker"
)

// remapping returns installs of several users on an engine that gives containers user
// namespaces.
func remapping(t *testing.T) func(who *syscall.Credential) *harness.Install {
	t.Helper()
	p := engine.New(t, []string{harness.ImageBusybox}, engine.RemapUsers())
	look, err := docker.New(docker.Options{Host: p.Host()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = look.Close() })
	if err := os.Chmod(p.Socket(), 0o666); err != nil {
		t.Fatal(err)
	}
	return func(who *syscall.Credential) *harness.Install {
		return harness.New(t, harness.On(p.Host(), look), func(in *harness.Install) { in.Who = who })
	}
}

func TestMountsInUserNamespacesGiveTheRightsOfEverybody(t *testing.T) {
	t.Parallel()
	Row(t, 11, "root in a sandbox with a user namespace changes files of a user of the host that it mounts")
	in := remapping(t)(nil)
	dir := write(t, in, "project", map[string]string{"open": "all may read", "closed": "nobody may read"})
	if err := errors.Join(os.Chmod(in.Home, 0o755), os.Chmod(filepath.Join(dir, "closed"), 0o600)); err != nil {
		t.Fatal(err)
	}
	box := in.Create(t, "box", harness.ImageBusybox, "--mount-workspace", dir+":/w")
	if said := in.Must(t, "exec", box, "--", "sh", "-c", "cat /w/open; cat /w/closed || echo; rm -f /w/open; echo x > /w/new; ls /w"); said != "all may read\nclosed\nopen" {
		t.Errorf("the sandbox says %q", said)
	}
	// Root in there cannot make a cover in a folder that it may not enter.
	shut := write(t, in, "shut", map[string]string{"agbox.yaml": "image: x\n"})
	if err := os.Chmod(shut, 0o700); err != nil {
		t.Fatal(err)
	}
	r := in.Agbox(t, "create", "shut", "--image", harness.ImageBusybox, "--mount-workspace", shut+":/w")
	if r.Code == 0 || !strings.Contains(r.Stderr, "Docker may not mount "+shut+"/agbox.yaml in the container") {
		t.Errorf("a folder that root may not look into gives %d: %s", r.Code, r.Stderr)
	}
}

func TestSandboxesWorkInUserNamespaces(t *testing.T) {
	t.Parallel()
	Row(t, 11, "the engine gives containers user namespaces: root in a sandbox is nobody on the host")
	install := remapping(t)
	for _, who := range []*syscall.Credential{nil, {Uid: memberOfDocker + 2, Gid: memberOfDocker + 2}} {
		wantWorkingSandbox(t, install(who))
	}
}

// wantWorkingSandbox uses a sandbox in a user namespace from its creation to its removal.
func wantWorkingSandbox(t *testing.T, in *harness.Install) {
	t.Helper()
	box := in.Create(t, "box", harness.ImageBusybox)
	if said := in.Must(t, "exec", box, "--", "sh", "-c", "id -u; cat /proc/self/uid_map"); !strings.HasPrefix(said, "0\n") || !strings.Contains(said, "900000000") {
		t.Errorf("in the sandbox, id and map of users are %q", said)
	}
	file := filepath.Join(in.Home, "file")
	if err := os.WriteFile(file, []byte("content\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	in.Must(t, "cp", file, box+":/root/copied")
	if said := in.Must(t, "exec", box, "--", "stat", "-c", "%u:%g", "/root/copied"); said != "0:0" {
		t.Errorf("a copied file belongs to %s", said)
	}
	in.Must(t, "cp", box+":/root/copied", file+".back")
	job := in.Must(t, "exec", "-d", box, "--", "sh", "-c", "echo begun; exec sleep 1000")
	in.KillDaemon(t)
	in.Must(t, "daemon", "start")
	in.Must(t, "kill", job)
	if said := in.Agbox(t, "logs", "-f", job).Stdout; said != "begun\n" {
		t.Errorf("the log has %q", said)
	}
	ending := in.Must(t, "exec", "-d", box, "--", "sh", "-c", "trap 'exit 7' TERM; while :; do sleep 0.1; done")
	in.Must(t, "exec", box, "--", "sh", "-c", "for s in TERM INT QUIT SEGV KILL; do kill -$s 1; done")
	if said := in.Must(t, "ps", "-q"); said != ending {
		t.Errorf("after signals for PID 1 these commands run: %q", said)
	}
	in.Must(t, "stop", box)
	if r := in.Agbox(t, "wait", ending); strings.TrimSpace(r.Stdout) != "7" {
		t.Errorf("a command that its sandbox's stop ended says %q, %s", r.Stdout, r.Stderr)
	}
	in.Must(t, "start", box)
	if said := in.Must(t, "exec", box, "--", "cat", "/root/copied"); said != "content" {
		t.Errorf("after another start the copied file has %q", said)
	}
	if said := in.Agbox(t, "doctor").Want(t, 0).Stdout; !strings.Contains(said, "root in a sandbox is user 900000000 on the host, which is the better wall") {
		t.Errorf("doctor says %q", said)
	}
	in.Must(t, "exec", box, "--", "sh", "-c", "for d in /.agbox/link /var/log/agents-sandbox; do mkdir -p $d/a/b; chmod 0 $d/a; done")
	in.Must(t, "rm", "--wait", "-f", "--keep-logs", box)
	if said := in.Agbox(t, "logs", job).Stdout; said != "begun\n" {
		t.Errorf("after the removal the log has %q", said)
	}
	if _, err := os.Lstat(filepath.Join(in.Home, "data", "guest", box)); !os.IsNotExist(err) {
		t.Errorf("the folder of a removed sandbox: %v", err)
	}
}
