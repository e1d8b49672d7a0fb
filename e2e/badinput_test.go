package e2e

import (
	"errors"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/agbox/agbox/client"
	"github.com/agbox/agbox/e2e/internal/harness"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

func TestBadInputIsRefusedInASentenceAndLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	in.Create(t, "demo", harness.ImageBusybox)
	long := strings.Repeat("a", 4096)
	// The second letter is Cyrillic.
	const lookAlike = "dеmo"
	dir := in.write(t, "away", map[string]string{
		".devcontainer.json": `{"image": "` + harness.ImageBusybox + `", "features": {"localhost:1/nosuch/feature:1": {}}}`,
	})
	for _, c := range []struct {
		name string
		args []string
		code int
		says string
	}{
		{"feature", []string{"create", "x", "--trust", "--devcontainer", dir + "/.devcontainer.json"}, 8, "localhost:1/nosuch/feature:1"},
		{"unknown image", []string{"create", "x", "--image", "localhost:1/nosuch/image:1"}, 8, "localhost:1/nosuch/image:1"},
		{"impossible image", []string{"create", "x", "--image", "Not An Image"}, 2, "Not An Image"},
		{"no image", []string{"create", "x"}, 2, "--image"},
		{"bad name", []string{"create", "Bad Name", "--image", harness.ImageBusybox}, 2, "Bad Name"},
		{"look-alike name", []string{"create", lookAlike, "--image", harness.ImageBusybox}, 2, "name"},
		{"bad new id", []string{"create", "x", "--id", "../x", "--image", harness.ImageBusybox}, 2, "../x"},
		{"taken name", []string{"create", "demo", "--image", harness.ImageBusybox}, 4, "demo"},
		{"bad label", []string{"create", "x", "--image", harness.ImageBusybox, "--label", "novalue"}, 2, "novalue"},
		{"negative idle time", []string{"create", "x", "--image", harness.ImageBusybox, "--idle-ttl", "-1s"}, 2, "idle-ttl"},
		{"unknown sandbox", []string{"exec", "nosuch", "--", "true"}, 125, "nosuch"},
		{"unknown sandbox to stop", []string{"stop", "nosuch"}, 3, "nosuch"},
		{"unknown sandbox to start", []string{"start", "nosuch"}, 3, "nosuch"},
		{"unknown sandbox to remove", []string{"rm", "nosuch"}, 3, "nosuch"},
		{"unknown sandbox to look at", []string{"inspect", "nosuch"}, 3, "nosuch"},
		{"unknown exec", []string{"logs", "nosuch"}, 3, "nosuch"},
		{"unknown exec to follow", []string{"logs", "-f", "nosuch"}, 3, "nosuch"},
		{"unknown exec to kill", []string{"kill", "nosuch"}, 3, "nosuch"},
		{"path as id", []string{"exec", "../x", "--", "true"}, 125, "../x"},
		{"path as id to remove", []string{"rm", "../x"}, 2, "../x"},
		{"path as exec", []string{"logs", "../../etc/passwd"}, 2, "../../etc/passwd"},
		{"long id", []string{"rm", long}, 2, "200 characters"},
		{"look-alike id", []string{"rm", lookAlike}, 2, "not an id"},
		{"id with a line break", []string{"rm", "a\nb"}, 2, "not an id"},
		{"empty id", []string{"rm", ""}, 2, "is empty"},
		{"no command", []string{"exec", "demo"}, 125, "command"},
		{"no command after the dashes", []string{"exec", "demo", "--"}, 125, "command"},
		{"empty command", []string{"exec", "demo", "--", ""}, 125, "empty"},
		{"unknown user", []string{"exec", "-u", "nouser", "demo", "--", "id"}, 126, "nouser"},
		{"unknown group", []string{"exec", "-u", "0:nogroup1", "demo", "--", "id"}, 126, "nogroup1"},
		{"missing directory", []string{"exec", "-w", "/nosuch", "demo", "--", "pwd"}, 126, "/nosuch"},
		{"relative directory", []string{"exec", "-w", "nosuch", "demo", "--", "pwd"}, 125, "absolute"},
		{"missing command", []string{"exec", "demo", "--", "nosuch"}, 127, "nosuch"},
		{"missing path", []string{"exec", "demo", "--", "/nosuch"}, 127, "/nosuch"},
		{"missing command in the background", []string{"exec", "-d", "demo", "--", "nosuch"}, 127, "nosuch"},
		{"not executable", []string{"exec", "demo", "--", "/etc/passwd"}, 126, "/etc/passwd"},
		{"directory as command", []string{"exec", "demo", "--", "/etc"}, 126, "/etc"},
		{"unknown flag", []string{"ls", "--frob"}, 2, "--frob"},
		{"unknown word", []string{"frob"}, 2, "frob"},
		{"unknown signal", []string{"kill", "-s", "FROB", "nosuch"}, 2, "FROB"},
		{"unknown format", []string{"ls", "-o", "xml"}, 2, "yaml"},
	} {
		t.Run(c.name, func(t *testing.T) {
			refused(t, in.Agbox(t, c.args...), c.code, c.says)
		})
	}
	// Only the first sandbox exists, and it is unharmed.
	in.Agbox(t, "exec", "demo", "--", "echo", "well").Want(t, 0).WantOutput(t, "well\n", "")
	if boxes := in.list(t); len(boxes) != 1 {
		t.Errorf("ls shows %v, want the first sandbox alone", boxes)
	}
	if inv := in.Inventory(t); len(inv.Containers) != 1 || len(inv.Networks) != 1 {
		t.Errorf("the engine has %+v, want one container and one network", inv)
	}
}

func TestABuildWhoseRegistryIsAwayHasItsExitCode(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	dir := in.write(t, "away", map[string]string{"Dockerfile": "FROM localhost:1/nosuch/image:1\n", "build.yaml": "build: .\n"})
	for _, args := range [][]string{
		{"image", "build", dir}, {"build", "--trust", dir + "/build.yaml"}, {"create", "x", "--trust", "-f", dir + "/build.yaml"},
	} {
		r := in.Agbox(t, args...).Want(t, 8)
		if !strings.Contains(r.Stderr, "agbox: The image could not be built, because a registry that it needs cannot be reached: ") {
			t.Errorf("%v says %q", args, r.Stderr)
		}
	}
	// What a command of the build cannot reach is no registry, nor is the name of a file.
	for _, fails := range []string{"RUN echo dial tcp: connection refused && false", "COPY x509.pem /"} {
		in.write(t, "away", map[string]string{"Dockerfile": "FROM " + harness.ImageBusybox + "\n" + fails + "\n"})
		in.Agbox(t, "image", "build", dir).Want(t, 4)
	}
}

func TestBytesThatNoArgumentCanHoldAreRefused(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	box := in.Create(t, "demo", harness.ImageBusybox)
	c := in.Client(t)
	for name, request := range map[string]*agboxv1.CreateExecRequest{
		"NUL in the sandbox":                 {SandboxId: "a\x00b", Command: []string{"true"}},
		"NUL in the exec id":                 {SandboxId: box, ExecId: "a\x00b", Command: []string{"true"}},
		"NUL in an argument":                 {SandboxId: box, Command: []string{"echo", "a\x00b"}},
		"NUL in the directory":               {SandboxId: box, Command: []string{"true"}, Cwd: "/a\x00b"},
		"NUL in a variable":                  {SandboxId: box, Command: []string{"true"}, EnvOverrides: map[string]string{"A": "\x00"}},
		"variable without a name":            {SandboxId: box, Command: []string{"true"}, EnvOverrides: map[string]string{"": "x"}},
		"variable with =":                    {SandboxId: box, Command: []string{"true"}, EnvOverrides: map[string]string{"A=B": "x"}},
		"argument beyond the kernel's limit": {SandboxId: box, Command: []string{"echo", strings.Repeat("a", 1<<17)}},
		"no command at all":                  {SandboxId: box},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := c.CreateExec(harness.Bounded(t), request)
			if !errors.Is(err, client.ErrInvalid) || strings.Contains(err.Error(), "rpc error") {
				t.Errorf("the error is %v, want one of class invalid", err)
			}
		})
	}
	if all := in.execs(t, "-a", "demo"); len(all) != 0 {
		t.Errorf("ps -a shows %v, want nothing", all)
	}
}

func TestACommandThatASignalEndsGives128AndTheSignal(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	in.Create(t, "demo", harness.ImageBusybox)
	for _, signal := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM, syscall.SIGSEGV} {
		n := strconv.Itoa(int(signal))
		in.Agbox(t, "exec", "demo", "--", "sh", "-c", "kill -"+n+" $$").Want(t, 128+int(signal)).WantOutput(t, "", "")
	}
}

func TestASecondDaemonNamesTheFirst(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	in.Must(t, "daemon", "start")
	pid := in.Status(t).PID
	refusedBy(t, in.Agbox(t, "daemon", "run"), "agboxd: ", 4, strconv.Itoa(pid))
	if said := in.Must(t, "daemon", "start"); !strings.Contains(said, strconv.Itoa(pid)) {
		t.Errorf("daemon start says %q, want the pid %d", said, pid)
	}
	if now := in.Status(t).PID; now != pid {
		t.Errorf("the daemon's pid was %d and is %d", pid, now)
	}
}

func TestASocketPathThatIsTooLongIsRefused(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	in.Home = filepath.Join(in.Home, strings.Repeat("x", 120))
	// The clean-up needs the parent folder.
	defer func() { in.Home = filepath.Dir(in.Home) }()
	for _, args := range [][]string{
		{"create", "demo", "--image", harness.ImageBusybox}, {"ls"}, {"daemon", "status"}, {"daemon", "stop"}, {"daemon", "start"},
	} {
		refused(t, in.Agbox(t, args...), 2, "AGBOX_HOME")
	}
	refusedBy(t, in.Agbox(t, "daemon", "run"), "agboxd: ", 1, "AGBOX_HOME")
	if made, _ := filepath.Glob(in.Home); len(made) != 0 {
		t.Errorf("%v was made all the same", made)
	}
}

func TestWithoutDockerACreateSaysSoAndAReadAnswers(t *testing.T) {
	t.Parallel()
	in := newInstall(t, harness.With("DOCKER_HOST=unix:///nonexistent/docker.sock"))
	refused(t, in.Agbox(t, "create", "demo", "--image", harness.ImageBusybox), 6, "Docker is not running")
	if boxes := in.list(t, "--deleted"); len(boxes) != 0 {
		t.Errorf("ls --deleted shows %v, want nothing", boxes)
	}
	const old = "agbox: The container engine does not answer, so states are the last known ones. `agbox daemon status` says why.\n"
	in.Agbox(t, "ls", "-q").Want(t, 0).WantOutput(t, "", old)
	if said := in.Must(t, "daemon", "status"); !strings.Contains(said, "not reachable") {
		t.Errorf("daemon status says %q", said)
	}
}

func TestAUserWhoMayNotUseDockerIsToldHow(t *testing.T) {
	t.Parallel()
	who := ordinaryUser(t)
	options := []func(*harness.Install){as(who)}
	if who.credential == nil {
		// Not even root's socket, which only root may use.
		options = append(options, harness.With("DOCKER_HOST=unix:///proc/1/root/run/docker.sock"))
	} else {
		who.credential.Groups = nil
	}
	in := newInstall(t, options...)
	refused(t, in.Agbox(t, "create", "demo", "--image", harness.ImageBusybox), 6, "You have no permission to use Docker")
	if boxes := in.list(t, "--deleted"); len(boxes) != 0 {
		t.Errorf("ls --deleted shows %v, want nothing", boxes)
	}
}

func TestWithoutADaemonNoAutostartRefuses(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	for _, args := range [][]string{{"ls"}, {"create", "demo", "--image", harness.ImageBusybox}, {"rm", "demo"}, {"logs", "job"}} {
		refused(t, in.Agbox(t, append([]string{"--no-autostart"}, args...)...), 5, "agbox daemon start")
	}
	refused(t, in.Agbox(t, "--no-autostart", "exec", "demo", "--", "true"), 125, "agbox daemon start")
	refused(t, in.Agbox(t, "daemon", "status"), 5, "agbox daemon start")
	if made, _ := filepath.Glob(filepath.Join(in.Home, "*")); len(made) != 0 {
		t.Errorf("%v was made all the same", made)
	}
}
