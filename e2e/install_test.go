package e2e

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/agbox/agbox/client"
	"github.com/agbox/agbox/runtime"
)

// install is one data directory with its daemon. It uses its own test to report
// what is wrong with the tidying up only; methods get the test that they serve.
type install struct {
	// home is AGBOX_HOME, and short: a socket's path has to fit.
	home string
	// bin is the folder of the binaries.
	bin string
	// who runs agbox; nil is whoever runs the tests.
	who *syscall.Credential
	// env comes over the few variables that every command gets.
	env []string
}

// newInstall makes an empty install. When the test ends its sandboxes are
// removed and its daemon is stopped, and then nothing of it may be left.
func newInstall(t *testing.T, options ...func(*install)) *install {
	t.Helper()
	home, err := os.MkdirTemp("/tmp", "ab")
	if err != nil {
		t.Fatal(err)
	}
	in := &install{home: home, bin: binaries}
	for _, option := range options {
		option(in)
	}
	if in.who != nil {
		if err := os.Chown(home, int(in.who.Uid), int(in.who.Gid)); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { in.tidy(t) })
	return in
}

// with sets environment variables of an install.
func with(env ...string) func(*install) {
	return func(in *install) { in.env = append(in.env, env...) }
}

// as has an install run by somebody else.
func as(who account) func(*install) {
	return func(in *install) { in.who = who.credential }
}

// account is a user of the host.
type account struct {
	name       string
	credential *syscall.Credential
}

// nobody has no rights of its own on any system. The user needs no entry in passwd.
const nobody = 65534

// ordinaryUser may use Docker and nothing else. Tests that do not run as root
// already run as one.
func ordinaryUser(t *testing.T) account {
	t.Helper()
	if os.Geteuid() != 0 {
		return account{name: "an ordinary user"}
	}
	socket, err := os.Stat(strings.TrimPrefix(dockerAPI.DaemonHost(), "unix://"))
	if err != nil {
		t.Fatalf("the engine's socket cannot be looked at, so that there is no group for an ordinary user: %v", err)
	}
	group := socket.Sys().(*syscall.Stat_t).Gid
	return account{name: "an ordinary user", credential: &syscall.Credential{Uid: nobody, Gid: nobody, Groups: []uint32{group}}}
}

// accounts are the users that must be able to use agbox.
func accounts(t *testing.T) []account {
	if os.Geteuid() != 0 {
		return []account{ordinaryUser(t)}
	}
	return []account{{name: "root"}, ordinaryUser(t)}
}

// command is one run of agbox, or of another of the binaries.
func (in *install) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(in.bin, name), args...)
	cmd.Dir = "/"
	cmd.Env = append([]string{"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=" + in.home, "AGBOX_HOME=" + in.home}, in.env...)
	if host := os.Getenv("DOCKER_HOST"); host != "" && !slices.ContainsFunc(in.env, isDockerHost) {
		cmd.Env = append(cmd.Env, "DOCKER_HOST="+host)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: in.who, Setpgid: true}
	// Whoever keeps our pipe open after agbox has ended should have closed it.
	cmd.WaitDelay = 10 * time.Second
	return cmd
}

func isDockerHost(entry string) bool { return strings.HasPrefix(entry, "DOCKER_HOST=") }

// agbox runs a command to its end.
func (in *install) agbox(t *testing.T, args ...string) result {
	t.Helper()
	return in.start(t, args...).wait(t)
}

// must runs a command that has to succeed and returns its stdout without the
// space around it.
func (in *install) must(t *testing.T, args ...string) string {
	t.Helper()
	return strings.TrimSpace(in.agbox(t, args...).want(t, 0).stdout)
}

// create makes a sandbox and returns its id.
func (in *install) create(t *testing.T, name, image string, more ...string) string {
	t.Helper()
	return in.must(t, append([]string{"create", name, "--image", image}, more...)...)
}

// client speaks with the daemon of the install, which must run.
func (in *install) client(t *testing.T, options ...client.Option) *client.Client {
	t.Helper()
	c, err := client.New(append([]client.Option{client.WithSocket(in.socket())}, options...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

func (in *install) socket() string { return filepath.Join(in.home, "run", "agboxd.sock") }

// daemonStatus is what "agbox daemon status" says.
type daemonStatus struct {
	PID       int       `json:"pid"`
	InstallID string    `json:"install_id"`
	DataDir   string    `json:"data_dir"`
	StartedAt time.Time `json:"started_at"`
}

func (in *install) status(t *testing.T) daemonStatus {
	t.Helper()
	var status daemonStatus
	if err := json.Unmarshal([]byte(in.must(t, "daemon", "status", "-o", "json")), &status); err != nil {
		t.Fatal(err)
	}
	return status
}

// tidy ends the install as its user would. However far that comes, what is left
// after it is told, and removed: it must not be in the way of the next test.
func (in *install) tidy(t *testing.T) {
	defer in.wantNothingLeft(t)
	if t.Failed() {
		log, _ := os.ReadFile(filepath.Join(in.home, "data", "agboxd.log"))
		t.Logf("the log of the daemon of %s:\n%s", in.home, log)
	}
	if _, err := os.Stat(filepath.Join(in.home, "data", "ids.db")); err != nil {
		return // there was never a daemon
	}
	in.must(t, "daemon", "start")
	if boxes := strings.Fields(in.must(t, "ls", "-q")); len(boxes) > 0 {
		in.must(t, append([]string{"rm", "-f"}, boxes...)...)
	}
	in.must(t, "daemon", "stop")
}

// wantNothingLeft checks that there is no process of the install and nothing of
// it in the engine, and removes what there is all the same.
func (in *install) wantNothingLeft(t *testing.T) {
	for pid, command := range in.processes() {
		t.Errorf("a process of the install is still there: %d %s", pid, command)
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	// The id from the daemon itself would need one that answers.
	if id, err := os.ReadFile(filepath.Join(in.home, "data", "install-id")); err == nil {
		wantNothingInEngine(t, strings.TrimSpace(string(id)))
	}
	if err := os.RemoveAll(in.home); err != nil {
		t.Errorf("the folder of the install cannot be removed: %v", err)
	}
}

func wantNothingInEngine(t *testing.T, installID string) {
	// The test's own context has ended.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience)
	defer cancel()
	left, err := engine.Inventory(ctx, installID)
	if err != nil {
		t.Errorf("the engine does not say what is left of the install: %v", err)
	}
	for _, c := range left.Containers {
		t.Errorf("container %s (%s) was left behind", c.Name, c.State)
		_ = engine.RemoveContainer(ctx, c.ID)
	}
	for _, n := range left.Networks {
		t.Errorf("network %s was left behind", n.Name)
		_ = engine.RemoveNetwork(ctx, n.ID)
	}
}

// processes are the commands of the processes that have the install in their
// environment, by process id.
func (in *install) processes() map[int]string {
	found := make(map[int]string)
	files, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, file := range files {
		env, err := os.ReadFile(file)
		if err != nil || !slices.Contains(strings.Split(string(env), "\x00"), "AGBOX_HOME="+in.home) {
			continue
		}
		line, _ := os.ReadFile(filepath.Join(filepath.Dir(file), "cmdline"))
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file))); err == nil {
			found[pid] = strings.ReplaceAll(string(line), "\x00", " ")
		}
	}
	return found
}

// inventory is what the engine has of the install.
func (in *install) inventory(t *testing.T) runtime.Inventory {
	t.Helper()
	inv, err := engine.Inventory(t.Context(), in.status(t).InstallID)
	if err != nil {
		t.Fatal(err)
	}
	return inv
}
