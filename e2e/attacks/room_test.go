package attacks

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agbox/agbox/client"
	"github.com/agbox/agbox/e2e/internal/harness"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// buildCaller builds the program that calls a supervisor from inside its sandbox.
func buildCaller(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "caller")
	build := exec.Command("go", "build", "-trimpath", "-o", program, "./caller")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("the caller cannot be built: %v\n%s", err, out)
	}
	return program
}

// logFolder is the log folder of a sandbox on the host.
func logFolder(in *harness.Install, box string) string {
	return filepath.Join(in.Home, "data", "exec-logs", box)
}

// names returns what is in a folder.
func names(t *testing.T, folder string) []string {
	t.Helper()
	entries, err := os.ReadDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return all
}

func TestASandboxStartsNoExecsThroughItsOwnSocket(t *testing.T) {
	t.Parallel()
	Row(t, 9, "root in the sandbox asks the supervisor for 21,000 execs, each with files on the host")
	in := harness.New(t)
	box := in.Create(t, "box", harness.ImageBusybox)
	in.Must(t, "cp", buildCaller(t), box+":/caller")
	if said := in.Must(t, "exec", box, "--", "/caller", "21000"); !strings.HasPrefix(said, "started 0\n") {
		t.Errorf("the caller says %q", harness.Clip(said))
	}
	for _, name := range names(t, logFolder(in, box)) {
		if strings.HasPrefix(name, "flood-") {
			t.Fatalf("the log folder has %s", name)
		}
	}
	if said := in.Must(t, "exec", box, "--", "echo", "goes on"); said != "goes on" {
		t.Errorf("the sandbox says %q", said)
	}
}

// roomSettings are the settings of a daemon whose sandboxes may have 264 MiB and 10,000
// files in their folders.
const roomSettings = "max-sandbox-log: 8m\n"

// roomUser is a user without rights on the host.
const roomUser = 64322

// awaitFull waits until the daemon has stopped a sandbox because of its folders.
func awaitFull(t *testing.T, c *client.Client, box string) *agboxv1.SandboxHandle {
	t.Helper()
	var shown *agboxv1.GetSandboxResponse
	harness.Eventually(t, "the sandbox is stopped", func() (ok bool) {
		var err error
		shown, err = c.GetSandbox(harness.Bounded(t), box)
		return err == nil && shown.GetSandbox().GetState() == agboxv1.SandboxState_SANDBOX_STATE_STOPPED
	})
	h := shown.GetSandbox()
	if h.GetErrorCode() != agboxv1.ErrorReason_HOST_FOLDERS_FULL.String() || !strings.HasPrefix(h.GetErrorMessage(), "The daemon stopped it, because ") {
		t.Errorf("it was stopped for %q: %s", h.GetErrorCode(), h.GetErrorMessage())
	}
	return h
}

func TestASandboxThatFillsItsFoldersOnTheHostIsStopped(t *testing.T) {
	t.Parallel()
	for name, attack := range map[string]struct {
		words, script string
		// user runs the daemon without root.
		user bool
	}{
		"log":    {words: "root in the sandbox writes 12 GB into the log folder", script: "dd if=/dev/zero of=/var/log/agents-sandbox/fill bs=1M count=12000"},
		"socket": {words: "root in the sandbox writes 12 GB into the folder of the socket", script: "dd if=/dev/zero of=/.agbox/link/fill bs=1M count=12000"},
		"held":   {words: "root in the sandbox writes 12 GB into a file in the log folder that it has removed", script: "exec 3>/var/log/agents-sandbox/held; rm /var/log/agents-sandbox/held; dd if=/dev/zero bs=1M count=12000 >&3"},
		"append": {words: "root in the sandbox writes 12 GB into the log of a command; the daemon is not root", user: true, script: "for f in /var/log/agents-sandbox/*.stdout.log; do dd if=/dev/zero bs=1M count=12000 >>$f; done"},
		"files":  {words: "root in the sandbox makes 200,000 files in the log folder; the daemon is not root", user: true, script: "i=0; while [ $i -lt 200000 ]; do : >/var/log/agents-sandbox/$i; i=$((i+1)); done"},
	} {
		t.Run(name, func(t *testing.T) {
			Row(t, 9, attack.words)
			in := harness.New(t, func(in *harness.Install) {
				if attack.user {
					asMemberOfDocker(t, roomUser)(in)
				}
			})
			write(t, in, "config", map[string]string{"agboxd.yaml": roomSettings})
			box, neighbour := in.Create(t, "box", harness.ImageBusybox), in.Create(t, "neighbour", harness.ImageBusybox)
			c, daemon := in.Client(t), in.Status(t).PID
			shown, err := c.GetSandbox(harness.Bounded(t), box)
			if use := shown.GetHostFolders(); err != nil || use.GetMaxBytes() != 264<<20 || use.GetMaxFiles() != 10000 {
				t.Errorf("inspect shows %v, %v", use, err)
			}
			job := in.Must(t, "exec", "-d", neighbour, "--", "sh", "-c", "while [ ! -e /end ]; do echo tick; usleep 100000; done; echo end")
			kept := in.Must(t, "exec", "-d", box, "--", "echo", "kept")
			in.Agbox(t, "logs", "-f", kept).Want(t, 0)
			attacker := in.Must(t, "exec", "-d", box, "--", "sh", "-c", attack.script)
			h := awaitFull(t, c, box)

			// It is as if it had been stopped by a user, and says why.
			if e, err := c.GetExec(harness.Bounded(t), attacker); err != nil || e.GetState() == agboxv1.ExecState_EXEC_STATE_FINISHED && e.GetExitCode() == 0 {
				t.Errorf("the attack came to its end: %v, %v", e, err)
			}
			if r := in.Agbox(t, "exec", box, "--", "true"); r.Code == 0 || !strings.Contains(r.Stderr, h.GetErrorMessage()) {
				t.Errorf("an exec says %q", r.Stderr)
			}
			if r := in.Agbox(t, "doctor"); !strings.Contains(r.Stdout, h.GetErrorMessage()) {
				t.Errorf("doctor says %q", r.Stdout)
			}
			if r := in.Must(t, "ls"); !strings.Contains(r, "stopped (host folders full)") {
				t.Errorf("ls says %q", r)
			}
			var size int64
			left := names(t, logFolder(in, box))
			for _, name := range left {
				if info, err := os.Stat(filepath.Join(logFolder(in, box), name)); err == nil {
					size += info.Size()
				}
			}
			if len(left) > 20 || size > 264<<20 {
				t.Errorf("%d files with %d bytes are left", len(left), size)
			}
			in.Must(t, "start", box)
			if said := in.Must(t, "exec", box, "--", "echo", "again"); said != "again" {
				t.Errorf("after a start it says %q", said)
			}

			// Nobody else notices.
			in.Must(t, "exec", neighbour, "--", "touch", "/end")
			if out := in.Agbox(t, "logs", "-f", job).Want(t, 0).Stdout; !strings.HasSuffix(out, "tick\nend\n") {
				t.Errorf("the neighbour's command wrote %q", harness.Clip(out))
			}
			if now := in.Status(t).PID; now != daemon {
				t.Errorf("the daemon was process %v and is %v", daemon, now)
			}
		})
	}
}

func TestARemovalLeavesNothingOfASandboxInTheLogFolder(t *testing.T) {
	t.Parallel()
	Row(t, 9, "root in the sandbox leaves files and trees in the log folder, for after its removal")
	in := harness.New(t)
	box := in.Create(t, "box", harness.ImageBusybox)
	job := in.Must(t, "exec", "-d", box, "--", "sh", "-c",
		"cd /var/log/agents-sandbox && echo x >stranger && mkdir -p a/b/c.status && echo x >a/b/c.status/x && echo x >other.stdout.log && ln -s / root && echo made")
	in.Agbox(t, "logs", "-f", job).Want(t, 0)
	in.Must(t, "rm", "--wait", "-f", "--keep-logs", box)
	for _, name := range names(t, logFolder(in, box)) {
		if !strings.HasPrefix(name, job+".") {
			t.Errorf("the log folder has %s", name)
		}
	}
	if said := in.Must(t, "logs", job); said != "made" {
		t.Errorf("the log of the removed sandbox is %q", said)
	}
}

func TestASandboxThatHidesItsFoldersIsStopped(t *testing.T) {
	t.Parallel()
	Row(t, 9, "root in the sandbox closes the log folder to a daemon that is not root")
	in := harness.New(t, asMemberOfDocker(t, roomUser))
	box := in.Create(t, "box", harness.ImageBusybox)
	in.Must(t, "exec", "-d", box, "--", "sh", "-c", "cd / && chown 0:0 /var/log/agents-sandbox && chmod 700 /var/log/agents-sandbox")
	if h := awaitFull(t, in.Client(t), box); !strings.Contains(h.GetErrorMessage(), "cannot be counted") {
		t.Errorf("it says %s", h.GetErrorMessage())
	}
	in.Must(t, "start", box)
	if said := in.Must(t, "exec", box, "--", "echo", "again"); said != "again" {
		t.Errorf("after a start it says %q", said)
	}
}
