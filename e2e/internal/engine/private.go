// Package engine starts container engines that tests may break: a private Docker daemon
// in its own network namespace, which can be killed, frozen and restarted without effect
// on others, and a proxy in front of an engine that misbehaves on request.
//
// It needs root, and the binaries of Docker, iproute2 and util-linux.
package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/docker/docker/client"
)

// patience bounds every wait of this package; that for images is as long for each of them.
const patience = 60 * time.Second

// Private is a Docker daemon for one test. containerd, the runtime of the containers, is
// a separate process, as on an ordinary machine, and outlives the daemon.
type Private struct {
	root  string
	netns string
	// flags are passed to dockerd, besides those that isolate it from the machine's.
	flags []string
	// socket is the name of the daemon's socket in root.
	socket string
	// remaps means that both daemons run in a mount namespace with files of their own in
	// place of /etc/subuid and /etc/subgid.
	remaps     bool
	containerd *daemon
	dockerd    *daemon
	api        *client.Client
}

// Option changes a Private before it starts.
type Option func(*Private)

// LiveRestore makes containers outlive the daemon.
func LiveRestore() Option {
	return func(p *Private) { p.flags = append(p.flags, "--live-restore") }
}

// FirstRemapped is the host's id of root in the containers of an engine with RemapUsers.
const FirstRemapped = 900_000_000

// RemapUsers gives containers user namespaces: --userns-remap.
func RemapUsers() Option {
	return func(p *Private) {
		p.flags = append(p.flags, "--userns-remap", "daemon")
		p.remaps = true
	}
}

// New starts a private engine with the given images, which it copies from the machine's
// own. At the end of the test everything is removed: processes, containers, mounts,
// control groups, the network namespace and the folder. What a killed test leaves is removed by
// the next process that calls New.
func New(t testing.TB, images []string, options ...Option) *Private {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("a private engine needs root: run the tests as root.")
	}
	swept.Do(func() { sweep(t) })
	root, err := os.MkdirTemp(top, prefix)
	if err != nil {
		t.Fatal(err)
	}
	p := &Private{root: root, netns: filepath.Base(root), socket: "docker.sock"}
	for _, option := range options {
		option(p)
	}
	t.Cleanup(func() { p.remove(t) })
	if err := p.own(); err != nil {
		t.Fatal(err)
	}
	if p.remaps { // root of the containers must reach the engine's files
		if err := os.Chmod(root, 0o711); err != nil {
			t.Fatal(err)
		}
	}
	p.run(t, "ip", "netns", "add", p.netns)
	p.run(t, "ip", "-n", p.netns, "link", "set", "lo", "up")
	// An empty configuration: that of the machine does not apply to this engine.
	if err := os.WriteFile(p.path("dockerd.json"), []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(p.path("containerd.toml"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	p.connect(t)
	p.startContainerd(t)
	p.Start(t)
	p.load(t, images)
	return p
}

// connect makes the client of the engine.
func (p *Private) connect(t testing.TB) {
	t.Helper()
	api, err := client.NewClientWithOpts(client.WithHost(p.Host()), client.WithVersion("1.41"))
	if err != nil {
		t.Fatal(err)
	}
	p.api = api
}

// Host returns the engine's address in the form of DOCKER_HOST.
func (p *Private) Host() string { return "unix://" + p.Socket() }

// Socket returns the path of the engine's socket.
func (p *Private) Socket() string { return p.path(p.socket) }

// API returns a client of the engine.
func (p *Private) API() *client.Client { return p.api }

func (p *Private) path(name string) string { return filepath.Join(p.root, name) }

// Inside returns a command in the engine's namespaces, of network and of mounts. The tool "ip netns exec" would also
// hide the control groups.
func (p *Private) Inside(name string, args ...string) *exec.Cmd {
	namespaces := []string{"--net=/run/netns/" + p.netns}
	if p.containerd != nil && p.remaps {
		namespaces = append(namespaces, fmt.Sprintf("--mount=/proc/%d/ns/mnt", p.containerd.cmd.Process.Pid))
	}
	return exec.Command("nsenter", slices.Concat(namespaces, []string{name}, args)...)
}

// withRanges returns a command line that runs another one in a mount namespace of its own,
// in which the user daemon has a range of user and group ids.
func (p *Private) withRanges(t testing.TB, command ...string) []string {
	t.Helper()
	ranges := p.path("ranges")
	if err := os.WriteFile(ranges, fmt.Appendf(nil, "daemon:%d:65536\n", FirstRemapped), 0o644); err != nil {
		t.Fatal(err)
	}
	script := `mount --bind "$0" /etc/subuid && mount --bind "$0" /etc/subgid && exec "$@"`
	return append([]string{"unshare", "--mount", "--propagation=private", "sh", "-c", script, ranges}, command...)
}

func (p *Private) startContainerd(t testing.TB) {
	t.Helper()
	command := []string{"containerd", "--config", p.path("containerd.toml"), "--root", p.path("containerd"),
		"--state", p.path("containerd-state"), "--address", p.path("containerd.sock")}
	if p.remaps {
		command = p.withRanges(t, command...)
	}
	p.containerd = launch(t, p.path("containerd.log"), p.Inside(command[0], command[1:]...))
	p.await(t, "containerd listens", p.containerd, func(context.Context) error {
		_, err := os.Stat(p.path("containerd.sock"))
		return err
	})
}

// Start starts the daemon, which must not be running, and returns when it answers.
func (p *Private) Start(t testing.TB) {
	t.Helper()
	// A killed daemon leaves this file, and the next one would fail if another process
	// has the id now.
	_ = os.Remove(p.path("dockerd.pid"))
	args := append([]string{
		"--config-file", p.path("dockerd.json"), "--data-root", p.path("data"), "--exec-root", p.path("exec"),
		"--pidfile", p.path("dockerd.pid"), "--host", p.Host(), "--containerd", p.path("containerd.sock"),
		"--cgroup-parent", "/" + p.netns, "--shutdown-timeout", "10",
	}, p.flags...)
	p.dockerd = launch(t, p.path("dockerd.log"), p.Inside("dockerd", args...))
	p.await(t, "dockerd answers", p.dockerd, func(ctx context.Context) error {
		_, err := p.api.Ping(ctx)
		return err
	})
}

// await polls, because the daemons do not report when they are ready.
func (p *Private) await(t testing.TB, what string, d *daemon, ready func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience)
	defer cancel()
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	for {
		err := ready(ctx)
		if err == nil {
			return
		}
		select {
		case <-look.C:
		case <-d.ended:
			t.Fatalf("it ended before %s: %v\n%s", what, err, d.tail())
		case <-ctx.Done():
			t.Fatalf("it did not come about within %v that %s: %v\n%s", patience, what, err, d.tail())
		}
	}
}

// Kill ends the daemon with SIGKILL and waits for its end. Its containers continue until
// it is back.
func (p *Private) Kill(t testing.TB) { t.Helper(); p.dockerd.end(t, syscall.SIGKILL) }

// Stop stops the daemon normally. With live-restore its containers continue; otherwise
// they are stopped first.
func (p *Private) Stop(t testing.TB) { t.Helper(); p.dockerd.end(t, syscall.SIGTERM) }

// LoseData kills the daemon and starts it again without its data, which FindData gives back.
// The processes of its containers run on.
func (p *Private) LoseData(t testing.TB) {
	t.Helper()
	p.Kill(t)
	p.run(t, "mount", "-t", "tmpfs", "tmpfs", p.path("data")) // at the same path
	p.Start(t)
}

// FindData undoes LoseData.
func (p *Private) FindData(t testing.TB) {
	t.Helper()
	p.Kill(t)
	p.run(t, "umount", "--recursive", "--lazy", p.path("data"))
	p.Start(t)
}

// Move kills the daemon and starts it again with its data, at another address.
func (p *Private) Move(t testing.TB) {
	t.Helper()
	p.Kill(t)
	_ = p.api.Close()
	p.socket = "moved.sock"
	p.connect(t)
	p.Start(t)
}

// Freeze makes the daemon hang with its socket open, until Thaw.
func (p *Private) Freeze(t testing.TB) { t.Helper(); p.dockerd.signal(t, syscall.SIGSTOP) }

// Thaw undoes Freeze: pending requests are answered then.
func (p *Private) Thaw(t testing.TB) { t.Helper(); p.dockerd.signal(t, syscall.SIGCONT) }

func (p *Private) run(t testing.TB, name string, args ...string) {
	t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
}

// load copies images from the machine's engine.
func (p *Private) load(t testing.TB, images []string) {
	t.Helper()
	if len(images) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Duration(len(images))*patience)
	defer cancel()
	machine, err := client.NewClientWithOpts(client.FromEnv, client.WithAPIVersionNegotiation())
	if err != nil {
		t.Fatal(err)
	}
	defer machine.Close()
	saved, err := machine.ImageSave(ctx, images)
	if err != nil {
		t.Fatalf("the images %v cannot be copied: %v", images, err)
	}
	defer saved.Close()
	loaded, err := p.api.ImageLoad(ctx, saved, client.ImageLoadWithQuiet(true))
	if err != nil {
		t.Fatal(err)
	}
	defer loaded.Body.Close()
	if _, err := new(bytes.Buffer).ReadFrom(loaded.Body); err != nil {
		t.Fatal(err)
	}
}

// daemon is a process of the engine.
type daemon struct {
	cmd *exec.Cmd
	log string
	// ended is closed when the process has ended.
	ended chan struct{}
}

func launch(t testing.TB, log string, cmd *exec.Cmd) *daemon {
	t.Helper()
	out, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	d := &daemon{cmd: cmd, log: log, ended: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = out, out
	// A terminal's Ctrl-C is for the tests, which end their own processes.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { // waited for with ended
		defer close(d.ended)
		_ = cmd.Wait()
	}()
	return d
}

func (d *daemon) signal(t testing.TB, sig syscall.Signal) {
	t.Helper()
	if err := d.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		t.Fatal(err)
	}
}

// end signals the process and waits for its end.
func (d *daemon) end(t testing.TB, sig syscall.Signal) {
	t.Helper()
	d.signal(t, sig)
	select {
	case <-d.ended:
	case <-time.After(patience):
		_ = d.cmd.Process.Kill()
		<-d.ended
		t.Errorf("%s did not end within %v after signal %v\n%s", d.cmd.Path, patience, sig, d.tail())
	}
}

func (d *daemon) tail() string {
	const most = 4000
	text, err := os.ReadFile(d.log)
	if err != nil {
		return fmt.Sprintf("its log cannot be read: %v", err)
	}
	return string(text[max(0, len(text)-most):])
}

// Mend makes the daemon answer again, whatever was done to it.
func (p *Private) Mend(t testing.TB) {
	t.Helper()
	p.Thaw(t)
	select {
	case <-p.dockerd.ended:
		p.Start(t)
	default:
	}
}
