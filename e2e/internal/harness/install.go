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

	"github.com/docker/docker/api/types/image"
	"github.com/google/nftables"

	"github.com/agbox/agbox/client"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/runtime"
	"github.com/agbox/agbox/runtime/docker"
	"github.com/agbox/agbox/runtime/fence"
)

// Install is one data directory with its daemon. It uses its own test only to report
// problems of the clean-up. Methods get the test that calls them.
type Install struct {
	// Home is AGBOX_HOME. It is short, because the path of a socket must fit.
	Home string
	// Bin is the folder of the binaries.
	Bin string
	// Who is the user that runs agbox. nil means the user of the tests.
	Who *syscall.Credential
	// Env overrides the few variables that every command gets.
	Env []string
	// Engine is the engine that the install uses.
	Engine *docker.Engine
	// foreign means that the folder is somebody else's to remove.
	foreign bool
	// images are removed at the end.
	images []string
}

// New makes an empty install. At the end of the test, its sandboxes are removed and its
// daemon is stopped. Then nothing of it may be left.
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

// On makes an install use another engine than the one of all tests.
func On(host string, engine *docker.Engine) func(*Install) {
	return func(in *Install) {
		in.Env = append(in.Env, "DOCKER_HOST="+host)
		in.Engine = engine
	}
}

// At puts an install into an existing folder, for example a small file system. The caller
// removes it.
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
	// A process that still holds our pipe after agbox has ended is an error.
	cmd.WaitDelay = 10 * time.Second
	return cmd
}

func isDockerHost(entry string) bool { return strings.HasPrefix(entry, "DOCKER_HOST=") }

// Agbox runs a command to its end.
func (in *Install) Agbox(t *testing.T, args ...string) Result {
	t.Helper()
	return in.Start(t, args...).Wait(t)
}

// Must runs a command that must succeed and returns its stdout, trimmed.
func (in *Install) Must(t *testing.T, args ...string) string {
	t.Helper()
	return strings.TrimSpace(in.Agbox(t, args...).Want(t, 0).Stdout)
}

// Create makes a sandbox and returns its id.
func (in *Install) Create(t *testing.T, name, image string, more ...string) string {
	t.Helper()
	return in.Must(t, append([]string{"create", name, "--image", image}, more...)...)
}

// SandboxID returns the id of the sandbox with a name, and AgentID that of an agent: calls of
// the API take ids.
func (in *Install) SandboxID(t *testing.T, name string) string {
	t.Helper()
	return in.resolve(t, agboxv1.RefKind_REF_KIND_SANDBOX, name)
}

// AgentID returns the id of the agent with a name.
func (in *Install) AgentID(t *testing.T, name string) string {
	t.Helper()
	return in.resolve(t, agboxv1.RefKind_REF_KIND_AGENT, name)
}

func (in *Install) resolve(t *testing.T, kind agboxv1.RefKind, name string) string {
	t.Helper()
	r, err := in.Client(t).Resolve(Bounded(t), kind, name)
	if err != nil {
		t.Fatal(err)
	}
	return r.GetId()
}

// Client returns a client of the daemon, which must run.
func (in *Install) Client(t *testing.T, options ...client.Option) *client.Client {
	t.Helper()
	own := []client.Option{client.WithSocket(in.Socket())}
	if in.Who != nil {
		own = append(own, client.WithDaemonUser(in.Who.Uid))
	}
	c, err := client.New(append(own, options...)...)
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

// Socket returns the path of the daemon's socket.
func (in *Install) Socket() string { return filepath.Join(in.Home, "run", "agboxd.sock") }

// DaemonStatus is the output of "agbox daemon status".
type DaemonStatus struct {
	PID       int       `json:"pid"`
	InstallID string    `json:"install_id"`
	DataDir   string    `json:"data_dir"`
	StartedAt time.Time `json:"started_at"`
}

// Status returns the status of the daemon, which must run.
func (in *Install) Status(t *testing.T) DaemonStatus {
	t.Helper()
	var status DaemonStatus
	if err := json.Unmarshal([]byte(in.Must(t, "daemon", "status", "-o", "json")), &status); err != nil {
		t.Fatal(err)
	}
	return status
}

// tidy ends the install as its user would. It then reports and removes what is left, so
// that the next test is not disturbed.
func (in *Install) tidy(t *testing.T) {
	defer in.wantNothingLeft(t)
	if t.Failed() {
		log, _ := os.ReadFile(filepath.Join(in.Home, "data", "agboxd.log"))
		t.Logf("the log of the daemon of %s:\n%s", in.Home, log)
	}
	if _, err := os.Stat(filepath.Join(in.Home, "data", "ids.db")); err != nil {
		return // no daemon ever ran
	}
	in.Must(t, "daemon", "start")
	if pools := strings.Fields(in.Must(t, "pool", "ls", "--format", "{{.name}}")); len(pools) > 0 {
		in.Must(t, append([]string{"pool", "rm"}, pools...)...)
	}
	if boxes := strings.Fields(in.Must(t, "ls", "-qa")); len(boxes) > 0 {
		in.Must(t, append([]string{"rm", "-f", "--wait"}, boxes...)...)
	}
	in.Must(t, "daemon", "stop")
}

// RemoveImage removes an image at the end of the test, after the containers that use it.
func (in *Install) RemoveImage(name string) { in.images = append(in.images, name) }

// wantNothingLeft checks that the install has no processes and no objects in the engine,
// and removes those that it finds.
func (in *Install) wantNothingLeft(t *testing.T) {
	for pid, command := range in.Processes() {
		t.Errorf("a process of the install is still there: %d %s", pid, command)
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	// The daemon might not answer, so read its id from the file.
	if id, err := os.ReadFile(filepath.Join(in.Home, "data", "install-id")); err == nil {
		in.wantNothingInEngine(t, strings.TrimSpace(string(id)))
		in.wantNoRules(t, strings.TrimSpace(string(id)))
	}
	for _, name := range slices.Backward(in.images) {
		// The test's own context has ended.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), Patience)
		if _, err := DockerAPI.ImageRemove(ctx, name, image.RemoveOptions{Force: true}); err != nil {
			t.Error(err)
		}
		cancel()
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
	if err := in.Engine.Unmark(ctx, installID); err != nil {
		t.Errorf("the mark of the install stays in the engine: %v", err)
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

// wantNoRules checks that the kernel has no rules of the install. Only root can look.
func (in *Install) wantNoRules(t *testing.T, installID string) {
	if os.Geteuid() != 0 {
		return
	}
	table := &nftables.Table{Name: fence.TablePrefix + installID, Family: nftables.TableFamilyINet}
	conn := new(nftables.Conn)
	if _, err := conn.ListTableOfFamily(table.Name, table.Family); err != nil {
		return
	}
	t.Errorf("the rules %s were left behind", table.Name)
	conn.DelTable(table)
	_ = conn.Flush()
}

// Processes returns the commands of the processes with the install in their environment,
// by process id.
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

// Inventory returns the engine's objects of the install.
func (in *Install) Inventory(t *testing.T) runtime.Inventory {
	t.Helper()
	inv, err := in.Engine.Inventory(t.Context(), in.Status(t).InstallID)
	if err != nil {
		t.Fatal(err)
	}
	return inv
}
