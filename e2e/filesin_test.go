package e2e

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agbox/agbox/client"
	"github.com/agbox/agbox/e2e/internal/harness"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/runtime"
)

// inside runs a script in a sandbox and returns what it prints.
func (in *install) inside(t *testing.T, box, script string) string {
	t.Helper()
	return in.Agbox(t, "exec", box, "--", "sh", "-c", script).Want(t, 0).Stdout
}

// from runs a command in a folder.
func (in *install) from(t *testing.T, dir string, env []string, args ...string) harness.Result {
	t.Helper()
	cmd := in.Command(harness.Bounded(t), "agbox", args...)
	cmd.Dir = dir
	cmd.Env = append(cmd.Env, env...)
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	_ = cmd.Run()
	return harness.Result{Args: cmd.Args, Stdout: stdout.String(), Stderr: stderr.String(), Code: cmd.ProcessState.ExitCode()}
}

func TestMountsAreReadOnlyUnlessTheyAreWritable(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	dir := in.write(t, "stuff", map[string]string{"a": "one\n", "rw/b": "two\n"})
	if err := os.Symlink(filepath.Join(dir, "rw"), filepath.Join(in.Home, "link")); err != nil {
		t.Fatal(err)
	}
	in.Create(t, "demo", harness.ImageBusybox,
		"--mount", dir+"/:/ro", "--mount", dir+"/rw/../rw:/rw:rw", "--mount", "~/link:/linked", "--mount", dir+"/a:/file")
	got := in.inside(t, "demo", `cat /ro/a /rw/b /linked/b /file; echo three >/rw/c && echo wrote; (echo x >/ro/x) 2>/dev/null || echo refused; (echo x >/linked/x) 2>/dev/null || echo refused`)
	harness.WantSame(t, "in the sandbox", got, "one\ntwo\ntwo\none\nwrote\nrefused\nrefused\n")
	wantFile(t, filepath.Join(dir, "rw", "c"), "three\n")
}

func TestTargetsInTheHomeOfTheUser(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	dir := in.write(t, "stuff", map[string]string{"a": "of the host\n"})
	config := in.write(t, "box", map[string]string{"agbox.yaml": "image: " + harness.ImageUser + `
mounts: ["../stuff:~/mounted"]
copies: [{source: ../stuff, target: ~/copied, owner: "0"}]
workspace: {source: ../stuff, target: ~/work/here}
`})
	in.Must(t, "create", "file", "--trust", "-f", filepath.Join(config, "agbox.yaml"))
	got := in.inside(t, "file", `pwd; cat a ~/mounted/a ~/copied/a; stat -c %U . ~/work ~/copied`)
	harness.WantSame(t, "by a file", got, "/home/agent/work/here\nof the host\nof the host\nof the host\nagent\nagent\nroot\n")
	in.Create(t, "flags", harness.ImageUser, "--user", "nobody", "--mount", dir+":~/m", "--copy", dir+":~/c", "--mount-workspace", dir+":~/w")
	got = in.inside(t, "flags", `pwd; cat /m/a /c/a a; stat -c %U /c`)
	harness.WantSame(t, "by flags, for a user whose home is /", got, "/w\nof the host\nof the host\nof the host\nnobody\n")
	r := in.Agbox(t, "create", "--image", harness.ImageUser, "--user", "nobody", "--mount", dir+":~/proc/x")
	if r.Code == 0 || !strings.Contains(r.Stderr, "Nothing can be put at ~/proc/x (/ is the home of the user)") {
		t.Errorf("a mount over the kernel's files: code %d, %s", r.Code, r.Stderr)
	}
	for _, c := range in.Inventory(t).Containers {
		if c.Role != runtime.RolePrimary {
			t.Errorf("the container %s is left", c.Name)
		}
	}
}

func TestDangerousMountsAreRefusedAndLeaveNothingBehind(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	dir := in.write(t, "stuff", map[string]string{"a": "", ".ssh/id": "key"})
	for name, to := range map[string]string{"keys": dir + "/.ssh", "root": "/", "docker": "/var/run/docker.sock", "data": in.Home + "/data", "dangling": "/none/at/all"} {
		if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	in.Must(t, "daemon", "start")
	for _, tc := range []struct{ source, says string }{
		{"/", "whole host"}, {"/proc", "kernel"}, {"/sys", "kernel"}, {"/dev", "devices"}, {"/var/run/docker.sock", "engine's socket"},
		{"/run", "engine's socket"}, {"/root", "whole home"}, {in.Home, "whole home"}, {in.Home + "/data", "agbox itself"}, {in.Home + "/run/agboxd.sock", "agbox itself"},
		{dir + "/.ssh", "credentials"}, {dir + "/a/../.ssh/id", "credentials"}, {dir + "/keys/", "symbolic link"}, {dir + "/keys/id", "symbolic link"},
		{dir + "/root", "symbolic link"}, {dir + "/root/etc/shadow", "symbolic link"}, {dir + "/docker", "symbolic link"}, {dir + "/data", "symbolic link"},
		{dir + "/dangling", "leads nowhere"}, {dir + "/none", "does not exist"},
	} {
		r := in.Agbox(t, "create", "--image", harness.ImageBusybox, "--mount", tc.source+":/x")
		if r.Code == 0 || !strings.Contains(r.Stderr, "mounts[0].source: ") || !strings.Contains(r.Stderr, tc.says) {
			t.Errorf("%s: exit code %d, stderr %q, want %q", tc.source, r.Code, r.Stderr, tc.says)
		}
	}
	if got := in.Must(t, "ls", "--deleted", "-q"); got != "" {
		t.Errorf("there are sandboxes: %s", got)
	}
	in.Create(t, "forced", harness.ImageBusybox, "--mount", dir+"/keys:/x", "--allow-dangerous-mounts")
	harness.WantSame(t, "the forced mount", in.inside(t, "forced", "cat /x/id"), "key")
}

// vouch prints a description of a tree: its files with checksums, modes, times and links.
const vouch = `find . -exec stat -c '%n %F %a %Y' {} + | sort; find . -type l | sort | while read -r l; do echo "$l -> $(readlink "$l")"; done; find . -type f -exec sha256sum {} + | sort`

func outside(t *testing.T, dir string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "sh", "-c", vouch)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return string(out)
}

func TestAWorkspaceIsCopiedAsItIs(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	dir := in.write(t, "project", map[string]string{"run.sh": "#!/bin/sh\necho ran\n", "src/deep/x": "x", "empty": "", "name with space": "y"})
	if err := os.Chmod(filepath.Join(dir, "run.sh"), 0o750); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("../nowhere", filepath.Join(dir, "src", "dangling")); err != nil {
		t.Fatal(err)
	}
	old := time.Unix(1e9, 0)
	for _, name := range []string{"src/deep/x", "src/deep", "src", "empty"} {
		if err := os.Chtimes(filepath.Join(dir, name), old, old); err != nil {
			t.Fatal(err)
		}
	}
	in.Create(t, "demo", harness.ImageDebian, "--workspace", dir, "--", "sh", "-c", "./run.sh; sleep 1000")
	harness.WantSame(t, "the workspace", in.inside(t, "demo", "pwd; LC_ALL=C; export LC_ALL;"+vouch), "/workspace\n"+outside(t, dir))
	// The sandbox's own command starts when its files are there.
	harness.Eventually(t, "the main command has run", func() bool {
		return strings.Contains(in.Agbox(t, "logs", "demo/main").Stdout, "ran\n")
	})
	in.inside(t, "demo", "rm run.sh; echo new >made")
	if _, err := os.Stat(filepath.Join(dir, "made")); err == nil {
		t.Error("a copy writes to its source")
	}
	in.Must(t, "stop", "demo")
	in.Must(t, "start", "demo")
	harness.WantSame(t, "after a restart", in.inside(t, "demo", "cat made; ls run.sh 2>/dev/null || echo gone"), "new\ngone\n")
}

func TestAMountedWorkspaceIsTheFolderItself(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	dir := in.write(t, "project", map[string]string{"a": "one\n"})
	in.Create(t, "demo", harness.ImageBusybox, "--mount-workspace", dir+":/code")
	harness.WantSame(t, "inside", in.inside(t, "demo", "pwd; cat a; echo two >b"), "/code\none\n")
	wantFile(t, filepath.Join(dir, "b"), "two\n")
}

func TestCopiesLeaveOutAndBelongToWhomTheSpecSays(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	dir := in.write(t, "project", map[string]string{
		".gitignore": "*.log\n/build/\n!keep.log\n", "a.c": "", "a.log": "", "keep.log": "", "build/x": "", "sub/build/y": "", "sub/z.tmp": "",
	})
	in.createFrom(t, fmt.Sprintf(`
image: agbox-test/user:latest
workspace: {source: %[1]s, use_gitignore: true, exclude_patterns: ["*.tmp"]}
copies:
  - {source: %[1]s, target: /srv/made/here, exclude_patterns: ["*", "!*.c"], owner: "7:8"}
  - {source: %[1]s/a.c, target: /tmp/b.c}
post_create: ["ls -A > /tmp/seen"]
`, dir))
	got := in.inside(t, "demo", "find . -type f | sort; stat -c %U . a.c | sort -u; id -un; find /srv/made -type f; stat -c '%u:%g' /srv/made /srv/made/here /srv/made/here/a.c /tmp/b.c; grep -c . /tmp/seen")
	who := strings.TrimSpace(in.inside(t, "demo", "id -un"))
	if who == "root" {
		t.Fatal("the image has no user of its own")
	}
	harness.WantSame(t, "inside", got, "./.gitignore\n./a.c\n./keep.log\n./sub/build/y\n"+who+"\n"+who+"\n/srv/made/here/a.c\n0:0\n7:8\n7:8\n0:0\n4\n")
}

// big makes a folder of many bytes that cannot be compressed.
func big(t *testing.T, dir string, files, size int) {
	t.Helper()
	source := rand.NewChaCha8([32]byte{1})
	buf := make([]byte, size)
	for i := range files {
		_, _ = source.Read(buf)
		name := filepath.Join(dir, fmt.Sprintf("d%d", i%7), fmt.Sprintf("f%d", i))
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, buf, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// sums prints one checksum for a tree of files.
const sums = "find . -type f | LC_ALL=C sort | xargs sha256sum"

func sumOf(t *testing.T, dir string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "sh", "-c", sums)
	cmd.Dir = dir
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	return digest(string(out))
}

func digest(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

// awaitCopy returns when a copy has begun, or when everything was copied before that was
// visible.
func awaitCopy(t *testing.T, c *client.Client, box string) {
	t.Helper()
	for ev, err := range c.Events(harness.Bounded(t), box, 0) {
		if err != nil {
			t.Fatal(err)
		}
		if ev.GetSandboxPhase().GetPhase() == "copy" || ev.GetEventType() == agboxv1.EventType_SANDBOX_FILES_COPIED {
			return
		}
	}
	t.Fatal("nothing is copied")
}

func TestABigCopySurvivesADaemonThatIsKilledInIt(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	dir := filepath.Join(in.Home, "big")
	big(t, dir, 200, 1<<20)
	c, box := in.begin(t, fmt.Sprintf("image: agbox-test/busybox:latest\nworkspace: {source: %s}\npost_create: ['find . -type f | wc -l >/tmp/count']\n", dir))
	for kill := range 3 {
		awaitCopy(t, c, box)
		for range 3 * kill { // to hit different stages; nothing depends on the exact one
			in.Must(t, "ls")
		}
		in.KillDaemon(t)
		in.Must(t, "daemon", "start")
	}
	began := time.Now()
	if _, err := c.WaitReady(harness.Bounded(t), box); err != nil {
		t.Fatal(err)
	}
	t.Logf("READY %s after the last start", time.Since(began).Round(time.Millisecond))
	if got := digest(in.inside(t, box, sums)); got != sumOf(t, dir) {
		t.Error("READY with another tree than the source's")
	}
	harness.WantSame(t, "what the hook saw", strings.TrimSpace(in.inside(t, box, "cat /tmp/count")), "200")
}

func TestASourceThatVanishesFailsTheSandboxAndLeavesNothing(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	dir := filepath.Join(in.Home, "big")
	big(t, dir, 200, 1<<20)
	c, box := in.begin(t, fmt.Sprintf("image: agbox-test/busybox:latest\nworkspace: {source: %s}\n", dir))
	awaitCopy(t, c, box)
	in.KillDaemon(t)
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	in.Must(t, "daemon", "start")
	_, err := c.WaitReady(harness.Bounded(t), box)
	if keptEvents(t, c, box)[agboxv1.EventType_SANDBOX_FILES_COPIED] > 0 {
		// Everything was copied before the kill, and the source is no longer needed.
		if err != nil {
			t.Error(err)
		}
		return
	}
	if err == nil || !strings.Contains(err.Error(), dir) || !strings.HasSuffix(err.Error(), ".") {
		t.Errorf("it ends with %v", err)
	}
	harness.Eventually(t, "nothing is left in the engine", func() bool { return in.Inventory(t).Empty() })
	sb, err := c.GetSandbox(harness.Bounded(t), box)
	if err != nil || sb.GetSandbox().GetState() != agboxv1.SandboxState_SANDBOX_STATE_FAILED ||
		sb.GetSandbox().GetErrorCode() != agboxv1.ErrorReason_HOST_PATH_UNUSABLE.String() {
		t.Errorf("%v, %v", sb.GetSandbox(), err)
	}
}

func TestACopyIsGivenUpWhenItsSandboxIsRemoved(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	dir := filepath.Join(in.Home, "big")
	big(t, dir, 200, 1<<20)
	c, box := in.begin(t, fmt.Sprintf("image: agbox-test/busybox:latest\nworkspace: {source: %s}\n", dir))
	awaitCopy(t, c, box)
	in.Must(t, "rm", "--wait", "-f", box)
	if !in.Inventory(t).Empty() {
		t.Error("something is left")
	}
}

func TestToolsBringInWhatIsHere(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	home := in.write(t, "people/me", map[string]string{
		".gitconfig": "[user]\n\tname = Me\n", ".ssh/known_hosts": "host key\n", ".config/gh/hosts.yml": "token\n",
		".claude/.credentials.json": "{\"login\":1}", ".claude.json": "{}", ".codex/auth.json": "{}",
	})
	agent, err := net.Listen("unix", filepath.Join(home, "agent.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer agent.Close()
	go func() { // ends with the listener
		for {
			c, err := agent.Accept()
			if err != nil {
				return
			}
			_, _ = c.Write([]byte("from the agent\n"))
			_ = c.Close()
		}
	}()
	env := []string{"HOME=" + home, "SSH_AUTH_SOCK=" + filepath.Join(home, "agent.sock")}
	in.from(t, "/", env, "create", "demo", "--image", harness.ImageDebian, "--tool", "git", "--tool", "gh", "--tool", "ssh-agent", "--tool", "claude", "--tool", "npm", "--tool", "apt").Want(t, 0)
	got := in.inside(t, "demo", `cat /etc/gitconfig /etc/ssh/ssh_known_hosts $GH_CONFIG_DIR/hosts.yml ~/.claude/.credentials.json; echo; perl -MIO::Socket::UNIX -e 'print IO::Socket::UNIX->new($ENV{SSH_AUTH_SOCK})->getline'; (echo x >>/etc/gitconfig) 2>/dev/null || echo read-only; echo mine >~/.claude/.credentials.json; echo cached >$npm_config_cache/c; head -n 1 /etc/apt/apt.conf.d/99agbox-cache`)
	harness.WantSame(t, "inside", got, "[user]\n\tname = Me\nhost key\ntoken\n{\"login\":1}\nfrom the agent\nread-only\nDir::Cache::archives \"/.agbox/tools/apt/\";\n")
	wantFile(t, filepath.Join(home, ".claude/.credentials.json"), "{\"login\":1}")

	in.from(t, "/", env, "create", "second", "--image", harness.ImageUser, "--tool", "npm").Want(t, 0)
	harness.WantSame(t, "the cache in another sandbox, as another user", in.inside(t, "second", `cat $npm_config_cache/c; echo 2 >$npm_config_cache/d && echo wrote`), "cached\nwrote\n")

	r := in.from(t, "/", env, "create", "--image", harness.ImageBusybox, "--tool", "opencode", "--tool", "frob")
	if r.Code == 0 || !strings.Contains(r.Stderr, "builtin_tools[0]: The logins of opencode cannot be brought in") || !strings.Contains(r.Stderr, "builtin_tools[1]: There is no built-in tool \"frob\"") {
		t.Errorf("exit code %d, stderr %q", r.Code, r.Stderr)
	}
	in.from(t, "/", env, "create", "third", "--image", harness.ImageBusybox, "--tool", "opencode", "-e", "OPENAI_API_KEY=k").Want(t, 0)
	list := in.from(t, "/", env, "tools", "ls", "-o", "json").Want(t, 0).Stdout
	if !strings.Contains(list, filepath.Join(home, ".codex/auth.json")) {
		t.Errorf("the tools are %s", list)
	}
	if left := in.Must(t, "ls", "-q"); len(strings.Fields(left)) != 3 {
		t.Errorf("there are %s", left)
	}
}

func TestToolProjectionsAreNotTheCallersToSay(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	in.Must(t, "daemon", "start")
	_, err := in.Client(t).CreateSandbox(harness.Bounded(t), &agboxv1.CreateSandboxRequest{CreateSpec: &agboxv1.CreateSpec{
		Image: harness.ImageBusybox,
		ToolProjections: []*agboxv1.ToolProjection{{
			Tool: "git", Kind: agboxv1.ProjectionKind_PROJECTION_KIND_MOUNT, Source: "/etc", Target: "/x",
		}},
	}})
	if err == nil || !strings.Contains(err.Error(), "tool_projections") {
		t.Errorf("got %v", err)
	}
	if got := in.Must(t, "ls", "-q"); got != "" {
		t.Errorf("there is %s", slices.Collect(strings.FieldsSeq(got)))
	}
}
