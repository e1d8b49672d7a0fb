package e2e

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/agbox/agbox/e2e/internal/harness"
	"github.com/agbox/agbox/runtime"
)

func TestTheOutputOfPostCreateIsShownAlsoWhenItFails(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	r := in.Agbox(t, "create", "demo", "--image", harness.ImageBusybox, "--post-create", "echo one; echo two >&2; exit 3").Want(t, 1)
	for _, want := range []string{"running command 1 of post_create", "\n  | one\n", "\n  | two\n", "exit code 3", "was removed"} {
		if !strings.Contains(r.Stderr, want) {
			t.Errorf("stderr has no %q: %q", want, r.Stderr)
		}
	}
	r = in.Agbox(t, "create", "demo", "--image", harness.ImageBusybox, "--post-create", "echo fine").Want(t, 0)
	if !strings.Contains(r.Stderr, "\n  | fine\n") || strings.Contains(r.Stdout, "fine") {
		t.Errorf("stdout %q, stderr %q", r.Stdout, r.Stderr)
	}
	in.Must(t, "rm", "demo")
}

func TestASandboxStandsForItsNewestCommand(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	in.Create(t, "demo", harness.ImageBusybox)
	in.Agbox(t, "exec", "--name", "first", "demo", "--", "echo", "one").Want(t, 0)
	in.Agbox(t, "exec", "--name", "second", "demo", "--", "sh", "-c", "echo two; exit 7").Want(t, 7)
	r := in.Agbox(t, "logs", "demo").Want(t, 0)
	harness.WantSame(t, "the newest output", r.Stdout, "two\n")
	if !strings.Contains(r.Stderr, "demo is a sandbox. Its newest command is ") {
		t.Errorf("stderr %q", r.Stderr)
	}
	harness.WantSame(t, "its exit code", in.Must(t, "wait", "demo"), "7")
	// Names of ended commands hold within their sandbox.
	harness.WantSame(t, "the first output", in.Must(t, "logs", "demo/first"), "one")
	harness.WantSame(t, "both exit codes", in.Must(t, "wait", "demo/second", "demo/first"), "7\n0")
	job := in.Must(t, "exec", "-d", "--name", "job", "demo", "--", "sleep", "1000")
	wait := in.Start(t, "wait", "demo/job") // also if it has ended before
	in.Must(t, "kill", "-9", job)
	if r := wait.Wait(t); r.Code != 0 || r.Stdout != "137\n" {
		t.Errorf("wait: %+v", r)
	}
	harness.WantSame(t, "its exit code", in.Must(t, "wait", job), "137")
	older := in.Must(t, "exec", "-d", "--name", "older", "demo", "--", "sleep", "1000")
	newer := in.Must(t, "exec", "-d", "--name", "newer", "demo", "--", "sleep", "1001")
	if r := in.Agbox(t, "kill", "demo").Want(t, 0); !strings.Contains(r.Stderr, "Its newest running command is "+newer+": sleep 1001") {
		t.Errorf("kill: %+v", r)
	}
	harness.WantSame(t, "its exit code", in.Must(t, "wait", newer), "143")
	in.Must(t, "kill", "-9", "demo")
	harness.WantSame(t, "the exit code of the older one", in.Must(t, "wait", older), "137")
}

func TestRunTakesTheFlagsOfDocker(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	dir := in.write(t, "project", map[string]string{"vars": "A=from file\nB=from file\n"})
	job := strings.TrimSpace(in.from(t, dir, nil, "run", "-d", "--name", "demo", "--env-file", "vars", "-e", "B=flag", "-v", ".:/src:rw", "-v", "data:/data",
		"-v", ".:/again", "--entrypoint", "sh -c", harness.ImageBusybox, "sh", "-c", `echo "$A, $B" >/src/out; touch /data/x; touch /again/x; exit 3`).Want(t, 0).Stdout)
	harness.WantSame(t, "the exit code", in.Must(t, "wait", job), "3")
	wantFile(t, dir+"/out", "from file, flag\n")
	in.Must(t, "exec", "demo", "test", "-e", "/data/x", "-a", "!", "-e", "/again/x")
	in.Must(t, "rm", "demo")
	refused(t, in.from(t, dir, nil, "run", "--network", "host", harness.ImageBusybox, "true"), 125, "private network")
}

func TestManySandboxesAreStoppedRestartedAndRemoved(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	one := in.Create(t, "one", harness.ImageBusybox, "-p", "127.0.0.1::80")
	two := in.Create(t, "two", harness.ImageBusybox)
	in.Must(t, "exec", "one", "touch", "/kept")
	harness.WantSame(t, "stop --all", in.Must(t, "stop", "--all"), two+"\n"+one)
	harness.WantSame(t, "stop --all, again", in.Must(t, "stop", "--all"), "")
	in.Agbox(t, "port", "one", "80").Want(t, 3)
	harness.WantSame(t, "restart", in.Must(t, "restart", "one"), one)
	harness.WantSame(t, "restart, again", in.Must(t, "restart", "one"), one)
	in.Must(t, "exec", "one", "test", "-e", "/kept")
	if address := in.Must(t, "port", "one", "80"); !strings.HasPrefix(address, "127.0.0.1:") || strings.Contains(address, "\n") {
		t.Errorf("port: %q", address)
	}
	if events := in.Must(t, "events", "one", "--since", "1h"); !strings.Contains(events, "SANDBOX_STOPPED") {
		t.Errorf("events: %q", events)
	}
	harness.WantSame(t, "events to come", in.Must(t, "events", "--since", "2999-01-01"), "")
	refused(t, in.Agbox(t, "prune"), 2, "Sandboxes to remove: 1")
	harness.WantSame(t, "prune", in.Must(t, "prune", "-f"), two)
	harness.WantSame(t, "rm --all", in.Must(t, "rm", "--all"), one)
	harness.WantSame(t, "ls", in.Must(t, "ls", "-q"), "")
}

// TestWhatARemovedSandboxHadIsFreeAtOnce: rm returns before the engine has removed the containers.
func TestWhatARemovedSandboxHadIsFreeAtOnce(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	in.Create(t, "demo", harness.ImageBusybox, "-p", "127.0.0.1::80")
	address := in.Must(t, "port", "demo", "80")
	for range 5 { // its name and its port
		in.Must(t, "rm", "-f", "demo")
		in.Create(t, "demo", harness.ImageBusybox, "-p", address+":80")
	}
	id := in.SandboxID(t, "demo")
	if err := harness.DockerAPI.ContainerPause(harness.Bounded(t), runtime.PrimaryName(id)); err != nil {
		t.Fatal(err)
	}
	in.Must(t, "rm", "-f", "demo")
	harness.WantSame(t, "ls", in.Must(t, "ls", "-q"), "")
	in.Create(t, "demo", harness.ImageBusybox)
	in.Must(t, "exec", "-d", "demo", "--", "sleep", "100000")
	in.Must(t, "rm", "-f", "demo")
	in.Must(t, "daemon", "stop") // which waits for the rest
	in.Must(t, "daemon", "start")
	if inv := in.Inventory(t); !inv.Empty() {
		t.Errorf("the engine has %+v", inv)
	}
	harness.WantSame(t, "ls -a", in.Must(t, "ls", "-qa"), "")
}

func TestARestartNeedsNeitherItsClientNorOneLifeOfTheDaemon(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	id := in.Create(t, "one", harness.ImageBusybox)
	job := in.Must(t, "exec", "-d", "one", "--", "sleep", "1000")
	harness.WantSame(t, "restart --no-wait", in.Must(t, "restart", "--no-wait", "one"), id)
	in.KillDaemon(t)
	in.Must(t, "daemon", "start")
	if _, err := in.Client(t).WaitReady(harness.Bounded(t), id); err != nil {
		t.Fatal(err)
	}
	in.Must(t, "exec", "one", "true")
	if code := in.Must(t, "wait", job); code == "0" {
		t.Errorf("the command ended with %s", code)
	}
	events := in.Must(t, "events", "one")
	if strings.Count(events, "  SANDBOX_STOPPED  (asked for a restart)\n") != 1 || strings.Count(events, "SANDBOX_RESUME_REQUESTED") != 1 {
		t.Errorf("events: %s", events)
	}
}

func TestTheProcessesOfASandboxAreShownWithTheirCommands(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	in.Create(t, "one", harness.ImageBusybox)
	in.Must(t, "exec", "-d", "--name", "busy", "one", "--", "sleep", "1000")
	var shown string
	harness.EventuallyOr(t, func() bool {
		shown = in.Must(t, "top", "one", "--format", "{{.user}} {{.exec_name}} {{.command}}")
		return strings.Contains(shown, "root busy sleep 1000") // not before it has become its command
	}, func() { t.Errorf("the processes are %q", shown) })
	shown = in.Must(t, "top", "one")
	if !strings.HasPrefix(shown, "PID ") && !strings.Contains(shown, " PID ") || !strings.Contains(shown, "  busy  ") || !strings.Contains(shown, "agbox") {
		t.Errorf("the table is %q", shown)
	}
	in.Must(t, "stop", "one")
	refused(t, in.Agbox(t, "top", "one"), 4, "stopped")
}

func TestASandboxIsRenamedAlsoWhileItIsStopped(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	id := in.Create(t, "one", harness.ImageBusybox)
	in.Create(t, "other", harness.ImageBusybox)
	job := in.Must(t, "exec", "-d", "one", "--", "sleep", "1000")
	harness.WantSame(t, "rename", in.Must(t, "rename", "one", "two"), id)
	harness.WantSame(t, "the command goes on in", in.Must(t, "ps", "two", "--format", "{{.exec_id}}"), job)
	harness.WantSame(t, "its host name", in.Must(t, "exec", "two", "hostname"), "one")
	in.Agbox(t, "inspect", "one").Want(t, 3)
	refused(t, in.Agbox(t, "rename", "two", "other"), 4, "already has the name")
	refused(t, in.Agbox(t, "rename", "two", "No Name"), 2, "name")
	in.Must(t, "stop", "two")
	in.Must(t, "rename", "two", "one")
	in.KillDaemon(t)
	harness.WantSame(t, "its name after a crash", in.Must(t, "inspect", "one", "--format", "{{.sandbox.name}} {{.create_spec.name}}"), "one one")
	in.Must(t, "start", "one")
	harness.WantSame(t, "its host name", in.Must(t, "exec", "one", "hostname"), "one")
	if events := in.Must(t, "events", "one"); strings.Count(events, "SANDBOX_RENAMED") != 2 || !strings.Contains(events, "name=two") {
		t.Errorf("events: %s", events)
	}
}

func TestTheLogOfTheDaemonIsShown(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	in.Must(t, "ls")
	log := in.Agbox(t, "daemon", "logs").Want(t, 0).Stdout
	last := in.Agbox(t, "daemon", "logs", "-n", "1").Want(t, 0).Stdout
	if log == "" || !strings.HasSuffix(log, "\n") || strings.Count(last, "\n") != 1 {
		t.Errorf("the log is %q, its last line %q", log, last)
	}
	in.Must(t, "daemon", "stop")
	harness.WantSame(t, "the log without a daemon", in.Agbox(t, "daemon", "logs").Want(t, 0).Stdout[:len(log)], log)
}

// beforeMain are the packages that may allocate more than 8 KiB before main begins. Each command waits for them.
var beforeMain = []string{
	"github.com/agbox/agbox/proto/agbox/v1", // the descriptors of the API, and of what they use
	"google.golang.org/genproto/googleapis/rpc/errdetails",
	"google.golang.org/protobuf/internal/encoding/json", // a pattern, as in the next two
	"oras.land/oras-go/v2/registry",
	"github.com/opencontainers/go-digest",
	"google.golang.org/grpc",
	"google.golang.org/grpc/binarylog/grpc_binarylog_v1",
	"google.golang.org/grpc/internal/binarylog",
	"go.yaml.in/yaml/v3",
	"github.com/agbox/agbox/workspace/covers", // its table, with what follows from it
	"main", // the presets
	"unicode",
}

func TestLittleIsDoneBeforeMain(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	r := in.from(t, "/", []string{"GODEBUG=inittrace=1"}, "exec", "--help").Want(t, 0)
	seen := 0
	for line := range strings.Lines(r.Stderr) {
		// init internal/bytealg @0.008 ms, 0 ms clock, 0 bytes, 0 allocs
		f := strings.Fields(line)
		if len(f) != 11 || f[0] != "init" || f[8] != "bytes," {
			continue
		}
		seen++
		if size, err := strconv.Atoi(f[7]); err != nil || size > 8<<10 && !slices.Contains(beforeMain, f[1]) {
			t.Errorf("package %s allocates %s bytes before main (%v): compile patterns and fill tables where they are used first", f[1], f[7], err)
		}
	}
	if seen < 30 {
		t.Errorf("only %d packages: %q", seen, r.Stderr)
	}
}
