package harness

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
	"github.com/agbox/agbox/runtime/docker"
)

// Install is one data directory with its daemon. It uses its own test to report
// what is wrong with the tidying up only; methods get the test that they serve.
type Install struct {
	// Home is AGBOX_HOME, and short: a socket's path has to fit.
	Home string
	// Bin is the folder of the binaries.
	Bin string
	// Who runs agbox; nil is whoever runs the tests.
	Who *syscall.Credential
	// Env comes over the few variables that every command gets.
	Env []string
	// Engine looks at the engine that the install uses.
	Engine *docker.Engine
	// foreign means that the folder is somebody else's to remove.
	foreign bool
}

// New makes an empty install. When the test ends its sandboxes are
// removed and its daemon is stopped, and then nothing of it may be left.
func New(t *testing.T, options ...func(*Install)) *Install {
	t.Helper()
	home, err := os.MkdirTemp("/tmp", "ab")
	if err != nil {
		t.Fatal(err)
	}
	in := &Install{Home: home, Bin: Binaries, Engine: Engine}
	for _, option := range options {
		option(in)
	}
	if in.Who != nil {
		if err := os.Chown(home, int(in.Who.Uid), int(in.Who.Gid)); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { in.tidy(t) })
	return in
}

// With sets environment variables of an install.
func With(env ...string) func(*Install) {
	return func(in *Install) { in.Env = append(in.Env, env...) }
}

// On has an install use another engine than the one of all tests.
func On(host string, engine *docker.Engine) func(*Install) {
	return func(in *Install) {
		in.Env = append(in.Env, "DOCKER_HOST="+host)
		in.Engine = engine
	}
}

// At puts an install into a folder that is there already, for example a small
// file system. The caller removes it.
func At(home string) func(*Install) {
	return func(in *Install) {
		_ = os.Remove(in.Home)
		in.Home, in.foreign = home, true
	}
}

// Command is one run of agbox, or of another of the binaries.
func (in *Install) Command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(in.Bin, name), args...)
	cmd.Dir = "/"
	cmd.Env = append([]string{"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=" + in.Home, "AGBOX_HOME=" + in.Home}, in.Env...)
	if host := os.Getenv("DOCKER_HOST"); host != "" && !slices.ContainsFunc(in.Env, isDockerHost) {
		cmd.Env = append(cmd.Env, "DOCKER_HOST="+host)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: in.Who, Setpgid: true}
	// Whoever keeps our pipe open after agbox has ended should have closed it.
	cmd.WaitDelay = 10 * time.Second
	return cmd
}

func isDockerHost(entry string) bool { return strings.HasPrefix(entry, "DOCKER_HOST=") }

// Agbox runs a command to its end.
func (in *Install) Agbox(t *testing.T, args ...string) Result {
	t.Helper()
	return in.Start(t, args...).Wait(t)
}

// Must runs a command that has to succeed and returns its stdout without the
// space around it.
func (in *Install) Must(t *testing.T, args ...string) string {
	t.Helper()
	return strings.TrimSpace(in.Agbox(t, args...).Want(t, 0).Stdout)
}

// Create makes a sandbox and returns its id.
func (in *Install) Create(t *testing.T, name, image string, more ...string) string {
	t.Helper()
	return in.Must(t, append([]string{"create", name, "--image", image}, more...)...)
}

// Client speaks with the daemon of the install, which must run.
func (in *Install) Client(t *testing.T, options ...client.Option) *client.Client {
	t.Helper()
	c, err := client.New(append([]client.Option{client.WithSocket(in.Socket())}, options...)...)
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

// Socket is the path of the daemon's socket.
func (in *Install) Socket() string { return filepath.Join(in.Home, "run", "agboxd.sock") }

// DaemonStatus is what "agbox daemon status" says.
type DaemonStatus struct {
	PID       int       `json:"pid"`
	InstallID string    `json:"install_id"`
	DataDir   string    `json:"data_dir"`
	StartedAt time.Time `json:"started_at"`
}

// Status asks the daemon, which must run.
func (in *Install) Status(t *testing.T) DaemonStatus {
	t.Helper()
	var status DaemonStatus
	if err := json.Unmarshal([]byte(in.Must(t, "daemon", "status", "-o", "json")), &status); err != nil {
		t.Fatal(err)
	}
	return status
}

// tidy ends the install as its user would. However far that comes, what is left
// after it is told, and removed: it must not be in the way of the next test.
func (in *Install) tidy(t *testing.T) {
	defer in.wantNothingLeft(t)
	if t.Failed() {
		log, _ := os.ReadFile(filepath.Join(in.Home, "data", "agboxd.log"))
		t.Logf("the log of the daemon of %s:\n%s", in.Home, log)
	}
	if _, err := os.Stat(filepath.Join(in.Home, "data", "ids.db")); err != nil {
		return // there was never a daemon
	}
	in.Must(t, "daemon", "start")
	if boxes := strings.Fields(in.Must(t, "ls", "-q")); len(boxes) > 0 {
		in.Must(t, append([]string{"rm", "-f"}, boxes...)...)
	}
	in.Must(t, "daemon", "stop")
}

// wantNothingLeft checks that there is no process of the install and nothing of
// it in the engine, and removes what there is all the same.
func (in *Install) wantNothingLeft(t *testing.T) {
	for pid, command := range in.Processes() {
		t.Errorf("a process of the install is still there: %d %s", pid, command)
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	// The id from the daemon itself would need one that answers.
	if id, err := os.ReadFile(filepath.Join(in.Home, "data", "install-id")); err == nil {
		in.wantNothingInEngine(t, strings.TrimSpace(string(id)))
	}
	if in.foreign {
		return
	}
	if err := os.RemoveAll(in.Home); err != nil {
		t.Errorf("the folder of the install cannot be removed: %v", err)
	}
}

func (in *Install) wantNothingInEngine(t *testing.T, installID string) {
	// The test's own context has ended.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), Patience)
	defer cancel()
	left, err := in.Engine.Inventory(ctx, installID)
	if err != nil {
		t.Errorf("the engine does not say what is left of the install: %v", err)
	}
	for _, c := range left.Containers {
		t.Errorf("container %s (%s) was left behind", c.Name, c.State)
		_ = in.Engine.RemoveContainer(ctx, c.ID)
	}
	for _, n := range left.Networks {
		t.Errorf("network %s was left behind", n.Name)
		_ = in.Engine.RemoveNetwork(ctx, n.ID)
	}
	for _, v := range left.Volumes {
		t.Errorf("volume %s was left behind", v.Name)
		_ = in.Engine.RemoveVolume(ctx, v.Name)
	}
}

// Processes are the commands of the processes that have the install in their
// environment, by process id.
func (in *Install) Processes() map[int]string {
	found := make(map[int]string)
	files, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, file := range files {
		env, err := os.ReadFile(file)
		if err != nil || !slices.Contains(strings.Split(string(env), "\x00"), "AGBOX_HOME="+in.Home) {
			continue
		}
		line, _ := os.ReadFile(filepath.Join(filepath.Dir(file), "cmdline"))
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file))); err == nil {
			found[pid] = strings.ReplaceAll(string(line), "\x00", " ")
		}
	}
	return found
}

// Inventory is what the engine has of the install.
func (in *Install) Inventory(t *testing.T) runtime.Inventory {
	t.Helper()
	inv, err := in.Engine.Inventory(t.Context(), in.Status(t).InstallID)
	if err != nil {
		t.Fatal(err)
	}
	return inv
}
