package attacks

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/agbox/agbox/e2e/internal/harness"
)

// inLittleMemory is from with an address space of 4 GB.
func inLittleMemory(t *testing.T, in *harness.Install, dir string, args ...string) harness.Result {
	t.Helper()
	cmd := in.Command(harness.Bounded(t), "agbox", args...)
	cmd.Args = append([]string{"sh", "-c", `ulimit -v 4000000; exec "$0" "$@"`, cmd.Path}, args...)
	cmd.Path, cmd.Dir = "/bin/sh", dir
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	_ = cmd.Run()
	return harness.Result{Args: cmd.Args, Stdout: stdout.String(), Stderr: stderr.String(), Code: cmd.ProcessState.ExitCode()}
}

func TestFilesOfAFolderAreReadInBoundsAndInsideIt(t *testing.T) {
	t.Parallel()
	Row(t, 112, "each file that a folder brings is a device, a FIFO, a file of holes, a link to a secret")
	in := harness.New(t)
	in.Must(t, "daemon", "start")
	write(t, in, "secret", map[string]string{"key": "the-secret-of-the-host: 1\nanother-line: 2\n"})
	const compose = "services: {web: {image: " + harness.ImageBusybox
	for name, put := range map[string]func(path string) error{
		"a device": func(path string) error { return os.Symlink("/dev/zero", path) },
		"a FIFO":   func(path string) error { return unix.Mkfifo(path, 0o600) },
		"holes": func(path string) error {
			file, err := os.Create(path)
			if err == nil {
				err = file.Truncate(50 << 30)
				_ = file.Close()
			}
			return err
		},
		"a secret": func(path string) error { return os.Symlink("../secret/key", path) },
	} {
		for _, one := range []struct {
			file  string
			other map[string]string
			args  []string
		}{
			{"agbox.yaml", nil, []string{"create"}},
			{"agbox.yaml", nil, []string{"up"}},
			{"agbox.yaml", nil, []string{"config", "validate"}},
			{"compose.yaml", nil, []string{"up"}},
			{"compose.yaml", nil, []string{"build"}},
			{"compose.yaml", nil, []string{"create", "--compose", "compose.yaml"}},
			{".devcontainer.json", nil, []string{"up"}},
			{".env", map[string]string{"compose.yaml": compose + "$X}}"}, []string{"up"}},
			{"a.env", map[string]string{"compose.yaml": compose + ", env_file: a.env}}"}, []string{"up"}},
			{"more.yaml", map[string]string{"compose.yaml": "include: [more.yaml]\n" + compose + "}}"}, []string{"up"}},
			{"base.yaml", map[string]string{"agbox.yaml": "base: base.yaml\nimage: " + harness.ImageBusybox + "\n"}, []string{"create"}},
			{"f/devcontainer-feature.json", map[string]string{".devcontainer.json": `{"image": "` + harness.ImageBusybox + `", "features": {"./f": {}}}`, "f/install.sh": "x"}, []string{"up"}},
			{"Dockerfile", map[string]string{"agbox.yaml": "build: {context: .}\n"}, []string{"up", "--trust"}},
			{".dockerignore", map[string]string{"Dockerfile": "FROM scratch\n"}, []string{"image", "build", "."}},
			{"vars", nil, []string{"create", "--image", harness.ImageBusybox, "--env-file", "vars"}},
		} {
			dir := write(t, in, "project", one.other)
			if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, one.file)), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := put(filepath.Join(dir, one.file)); err != nil {
				t.Fatal(err)
			}
			r := inLittleMemory(t, in, dir, one.args...)
			if said := r.Stdout + r.Stderr; r.Code < 1 || r.Code > 7 || strings.Contains(said, "the-secret") || strings.Contains(said, "another-line") || strings.Count(said, "\n") > 3 {
				t.Errorf("%s as %s: %v gives %d: %.600s", name, one.file, one.args, r.Code, said)
			}
			if err := os.RemoveAll(dir); err != nil {
				t.Fatal(err)
			}
		}
	}
	if got := in.Must(t, "ls", "-q"); got != "" {
		t.Errorf("there are sandboxes: %s", got)
	}
}

func TestInitWritesThroughNoLink(t *testing.T) {
	t.Parallel()
	Row(t, 112, "the sandbox file that init replaces is a link to a file of the user")
	in := harness.New(t)
	outside := write(t, in, "outside", map[string]string{"profile": "mine\n", "hard": "mine\n"})
	dir := write(t, in, "project", map[string]string{"a": ""})
	file := filepath.Join(dir, "agbox.yaml")
	for name, put := range map[string]func() error{
		"profile": func() error { return os.Symlink("../outside/profile", file) },
		"hard":    func() error { return os.Link(filepath.Join(outside, "hard"), file) },
		"none":    func() error { return os.Symlink("../outside/none", file) },
	} {
		if err := put(); err != nil {
			t.Fatal(err)
		}
		from(t, in, dir, "init").Want(t, 4)
		from(t, in, dir, "init", "--force").Want(t, 0)
		if st, err := os.Lstat(file); err != nil || !st.Mode().IsRegular() || st.Size() == 0 {
			t.Errorf("%s: no file was written: %v", name, err)
		}
		if text, err := os.ReadFile(filepath.Join(outside, name)); string(text) != "mine\n" && name != "none" || name == "none" && !os.IsNotExist(err) {
			t.Errorf("%s: outside is %q, %v", name, text, err)
		}
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
	}
}
