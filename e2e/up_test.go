package e2e

import (
	"strings"
	"testing"

	"github.com/agbox/agbox/e2e/internal/harness"
)

func TestUpMakesStartsAndKeepsTheSandboxOfAFolder(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	dir := in.write(t, "shop", map[string]string{"compose.yaml": "services:\n  web: {image: " + harness.ImageBusybox + ", command: sleep 100000}\n"})
	run := func(dir string, args ...string) harness.Result {
		p := in.Command(t.Context(), "agbox", args...)
		p.Dir = dir
		var out, errs strings.Builder
		p.Stdout, p.Stderr = &out, &errs
		_ = p.Run() // the exit code is checked
		return harness.Result{Args: args, Stdout: out.String(), Stderr: errs.String(), Code: p.ProcessState.ExitCode()}
	}
	first := run(dir, "up").Want(t, 0)
	if !strings.Contains(first.Stderr, "Commands run in service web") {
		t.Errorf("up says\n%s", first.Stderr)
	}
	in.Must(t, "exec", "shop", "--", "true")
	for _, state := range []string{"running", "stopped"} {
		if state == "stopped" {
			run(dir, "down").Want(t, 0)
		}
		if again := run(dir, "up").Want(t, 0); again.Stdout != first.Stdout || strings.Contains(again.Stderr, "another version") {
			t.Errorf("up with a %s sandbox: %q\n%s", state, again.Stdout, again.Stderr)
		}
	}
	in.write(t, "shop", map[string]string{"compose.yaml": "services:\n  web: {image: " + harness.ImageBusybox + ", command: sleep 200000}\n"})
	const changed = "Sandbox shop was made from another version of the file, or with other flags (command)."
	if r := run(dir, "up").Want(t, 4); r.Stdout != "" || !strings.Contains(r.Stderr, changed+" `agbox up --recreate` makes it anew, `agbox start shop` starts it as it is.") {
		t.Errorf("up with a changed file says\n%s", r.Stderr)
	}
	kept := in.OnTerminalIn(t, dir, nil, "up")
	kept.Await("Remove it, with all that is in it, and make it anew?")
	kept.Types("n\n")
	if code := kept.Wait(); code != 0 || !strings.Contains(kept.Screen(), strings.TrimSpace(first.Stdout)) {
		t.Errorf("without an agreement, up ends with %d and %q", code, kept.Screen())
	}
	in.inside(t, "shop", "echo work > /workspace/new")
	refused := run(dir, "up", "--recreate").Want(t, 4)
	if !strings.Contains(refused.Stderr, "Removing sandbox shop would lose 1 changed file (new).") {
		t.Errorf("up --recreate of a sandbox with work says\n%s", refused.Stderr)
	}
	in.inside(t, "shop", "rm /workspace/new")
	anew := run(dir, "up", "--recreate").Want(t, 0)
	if anew.Stdout == first.Stdout {
		t.Error("up --recreate keeps a sandbox of another file")
	}
	in.write(t, "shop", map[string]string{"compose.yaml": "services:\n  web: {image: " + harness.ImageBusybox + ", command: sleep 300000}\n"})
	asked := in.OnTerminalIn(t, dir, nil, "up")
	asked.Await("make it anew?")
	asked.Types("y\n")
	if code := asked.Wait(); code != 0 {
		t.Errorf("up with an agreement ends with %d: %q", code, asked.Screen())
	}
	in.write(t, "shop", map[string]string{"compose.yaml": "services:\n  web: {}\n"})
	if broken := run(dir, "up").Want(t, 2); !strings.Contains(broken.Stderr, "Sandbox shop stays as it was made. `agbox start shop` starts it.") {
		t.Errorf("up with a broken file says\n%s", broken.Stderr)
	}
	in.write(t, "shop", map[string]string{"compose.yaml": "services:\n  web: {image: " + harness.ImageBusybox + ", command: sleep 200000}\n"})
	anew = run(dir, "up", "--recreate").Want(t, 0)
	if again := run(dir, "up", "--recreate").Want(t, 0); again.Stdout != anew.Stdout {
		t.Error("up --recreate makes a sandbox anew that has not changed")
	}
	other := in.write(t, "other/shop", map[string]string{"agbox.yaml": "image: " + harness.ImageBusybox + "\n"})
	run(other, "up").Want(t, 1)
	run(other, "up", "--name", "second").Want(t, 0)
	run(dir, "down", "--rm").Want(t, 0)
	run(dir, "down").Want(t, 1)
	dev := in.write(t, "dev", map[string]string{".devcontainer/devcontainer.json": `{"image": "` + harness.ImageBusybox + `", "workspaceMount": ""}`})
	run(dev, "up").Want(t, 0)
	if ids := strings.Fields(in.Must(t, "ls", "-q")); len(ids) != 2 {
		t.Errorf("there are the sandboxes %v", ids)
	}
}

// TestUpWithoutTheFlagsOfTheCreationStartsTheSandbox: they count only when it is created, so
// nobody has to repeat them.
func TestUpWithoutTheFlagsOfTheCreationStartsTheSandbox(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	file := map[string]string{"agbox.yaml": "image: " + harness.ImageBusybox + "\n", "sub/file": ""}
	for name, c := range map[string]struct {
		files map[string]string
		flags []string
	}{
		"image":     {map[string]string{"a": ""}, []string{"--image", harness.ImageBusybox, "--memory", "128m"}},
		"beside":    {map[string]string{"agbox.yaml": "image: none\n"}, []string{"--image", harness.ImageBusybox}},
		"file":      {map[string]string{"other.yaml": "image: " + harness.ImageBusybox + "\n"}, []string{"-f", "other.yaml"}},
		"memory":    {file, []string{"--memory", "128m", "--cap-add", "SYS_PTRACE", "--label", "a=b"}},
		"variables": {file, []string{"-e", "A=1", "-e", "API_KEY=k", "--secret-env", "B=2"}},
		"folders":   {file, []string{"--exclude", "sub", "-v", "data:/data", "--tmpfs", "/more", "-p", "80", "--idle-ttl", "2h"}},
		"none":      {file, []string{"--no-workspace", "--user", "nobody", "--post-create", "true"}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := in.write(t, name, c.files)
			made := in.from(t, dir, nil, append([]string{"up", "--trust"}, c.flags...)...).Want(t, 0)
			for _, state := range []string{"running", "stopped"} {
				if state == "stopped" {
					in.from(t, dir, nil, "down").Want(t, 0)
				}
				if again := in.from(t, dir, nil, "up").Want(t, 0); again.Stdout != made.Stdout || strings.Contains(again.Stderr, name) {
					t.Errorf("up with a %s sandbox: %q\n%s", state, again.Stdout, again.Stderr)
				}
			}
			if again := in.from(t, dir, nil, append([]string{"up", "--trust"}, c.flags...)...).Want(t, 0); again.Stdout != made.Stdout {
				t.Errorf("up with the same flags: %q\n%s", again.Stdout, again.Stderr)
			}
		})
	}
	says := func(code int, text string, args ...string) {
		t.Helper()
		if r := in.from(t, in.Home+"/memory", nil, args...).Want(t, code); !strings.Contains(r.Stderr, text) {
			t.Errorf("%v says\n%s", args, r.Stderr)
		}
	}
	says(4, "with other flags (memory_limit).", "up", "--memory", "256m")
	in.write(t, "memory", map[string]string{"agbox.yaml": "image: " + harness.ImageBusybox + "\nhostname: other\n"})
	says(4, "with other flags (hostname). `agbox up --recreate` makes it anew, but give the flags again that it was made with (", "up")
	p := in.OnTerminalIn(t, in.Home+"/memory", nil, "up") // nor does it ask: what it would make has less
	if code := p.Wait(); code != 4 || strings.Contains(p.Screen(), "[y/N]") {
		t.Errorf("on a terminal up ends with %d:\n%s", code, p.Screen())
	}
	if r := in.from(t, in.Home+"/image", nil, "up", "--memory", "256m").Want(t, 0); !strings.Contains(r.Stderr, "Sandbox image stays as it was made: flags count when it is created.") {
		t.Errorf("up with flags alone says\n%s", r.Stderr)
	}
}
