package attacks

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/agbox/agbox/e2e/internal/engine"
	"github.com/agbox/agbox/e2e/internal/harness"
)

// behindProxy returns an install whose engine is behind a proxy.
func behindProxy(t *testing.T) (*engine.Proxy, *harness.Install) {
	t.Helper()
	proxy := engine.NewProxy(t, strings.TrimPrefix(harness.DockerAPI.DaemonHost(), "unix://"))
	in := harness.New(t, harness.On(proxy.Host(), harness.Engine))
	t.Cleanup(func() { proxy.Choose(nil) }) // the install is removed after this
	return proxy, in
}

// atStart runs a function once, after the daemon has checked the mounts of a container and
// before the engine makes them.
func atStart(t *testing.T, proxy *engine.Proxy, swap func() error) {
	atRequest(t, proxy, "/start", swap)
}

// atRequest runs a function once, before the engine gets a POST request to a path that ends
// with a suffix.
func atRequest(t *testing.T, proxy *engine.Proxy, suffix string, swap func() error) {
	var once sync.Once
	proxy.Choose(func(r *http.Request) engine.Fault {
		if r.Method == http.MethodPost && strings.HasSuffix(engine.Path(r), suffix) {
			once.Do(func() {
				if err := swap(); err != nil {
					t.Error(err)
				}
			})
		}
		return engine.Pass
	})
}

// replaced returns a function that puts a symbolic link in the place of a folder.
func replaced(dir, to string) func() error {
	return func() error {
		if err := os.Rename(dir, dir+".real"); err != nil {
			return err
		}
		return os.Symlink(to, dir)
	}
}

// restored undoes replaced.
func restored(t *testing.T, dir string) {
	t.Helper()
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(dir+".real", dir); err != nil {
		t.Fatal(err)
	}
}

// wantMountRefused checks that a sandbox failed because of a mount, which the reason names.
func wantMountRefused(t *testing.T, r harness.Result, mount string) {
	t.Helper()
	if r.Code == 0 || !strings.Contains(r.Stderr, "The mount of "+mount+" is not the file or folder that was checked") {
		t.Errorf("%v: exit code %d, stderr %q, want a refusal of %s", r.Args, r.Code, r.Stderr, mount)
	}
}

func TestASourceThatIsSwappedBeforeTheMountIsMadeLoses(t *testing.T) {
	t.Parallel()
	Row(t, 12, "a folder above a source, a source and a cover are swapped between check and start")
	proxy, in := behindProxy(t)
	secret := write(t, in, "secret", map[string]string{"project/key": "secret\n", ".git/config": "secret\n", ".git/hooks/a": "", "key": "secret\n"})
	above := write(t, in, "above", map[string]string{"project/key": "mine\n"})
	direct := write(t, in, "direct", map[string]string{"key": "mine\n"})
	covered := write(t, in, "covered", map[string]string{".git/hooks/a": "mine\n", ".git/config": "\n"})
	in.Must(t, "daemon", "start")
	ran := write(t, in, "ran", map[string]string{"nothing": ""})
	command := []string{"--mount", ran + ":/ran:rw", "--", "sh", "-c", "cp -r /x /ran; sleep 1000"}
	for _, c := range []struct{ swapped, to, source, flag, mount string }{
		{above, secret, above + "/project", "--mount", above + "/project at /x"},
		{direct, secret, direct, "--mount", direct + " at /x"},
		{covered + "/.git", secret + "/.git", covered, "--mount", covered + "/.git at /x/.git"},
	} {
		atStart(t, proxy, replaced(c.swapped, c.to))
		target := ":/x"
		if c.source == covered {
			target = ":/x:rw"
		}
		args := append([]string{"create", "--image", harness.ImageBusybox, c.flag, c.source + target}, command...)
		wantMountRefused(t, in.Agbox(t, args...), c.mount)
		restored(t, c.swapped)
	}
	if entries, err := os.ReadDir(ran); err != nil || len(entries) != 1 {
		t.Errorf("a command ran and has copied %v, %v", entries, err)
	}
}

func TestASourceThatIsSwappedBeforeALaterStartLoses(t *testing.T) {
	t.Parallel()
	Row(t, 12, "a source is swapped before and during a later start")
	proxy, in := behindProxy(t)
	secret := write(t, in, "secret", map[string]string{"key": "secret\n"})
	source := write(t, in, "source", map[string]string{"key": "mine\n"})
	in.Create(t, "demo", harness.ImageBusybox, "--mount", source+":/x")
	in.Must(t, "stop", "demo")
	if err := replaced(source, secret)(); err != nil {
		t.Fatal(err)
	}
	if r := in.Agbox(t, "start", "demo"); r.Code == 0 || !strings.Contains(r.Stderr, source+" leads to "+secret+" by a symbolic link") {
		t.Errorf("a link: exit code %d, stderr %q", r.Code, r.Stderr)
	}
	restored(t, source)
	atStart(t, proxy, replaced(source, secret))
	wantMountRefused(t, in.Agbox(t, "start", "demo"), source+" at /x")
	proxy.Choose(nil)
	restored(t, source)
	// Who replaces a folder while the sandbox is stopped, as a new clone does, may go on.
	if err := os.RemoveAll(source); err != nil {
		t.Fatal(err)
	}
	write(t, in, filepath.Base(source), map[string]string{"key": "new\n"})
	in.Must(t, "start", "demo")
	harness.WantSame(t, "the new folder", inside(t, in, "demo", "cat /x/key"), "new\n")
}
