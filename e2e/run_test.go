package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/agbox/agbox/e2e/internal/harness"
)

func TestRunEndsWithTheCommandsCodeAndLeavesNothing(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	r := in.Agbox(t, "run", "--rm", harness.ImageBusybox, "--", "sh", "-c", "echo out; echo err >&2; exit 7").Want(t, 7)
	if r.Stdout != "out\n" || !strings.Contains(r.Stderr, "err\n") {
		t.Errorf("stdout %q, stderr %q", r.Stdout, r.Stderr)
	}
	in.Agbox(t, "run", "--rm", harness.ImageBusybox, "no-such-command").Want(t, 127)
	in.Agbox(t, "run", "--rm", "-e", "A=b", "--image", harness.ImageBusybox, "--", "sh", "-c", "test $A = b").Want(t, 0)
	refused(t, in.Agbox(t, "run", harness.ImageBusybox), 125, "Name an image and a command")
	refused(t, in.Agbox(t, "run", "-it", harness.ImageBusybox, "sh"), 125, "standard input is not one")
	if r := in.Agbox(t, "run", "--rm", "--mount", "/none:/x", harness.ImageBusybox, "true"); r.Code == 0 || !strings.Contains(r.Stderr, "/none does not exist") {
		t.Errorf("exit code %d, stderr %q", r.Code, r.Stderr)
	}
	if got := in.Must(t, "ls", "-q"); got != "" {
		t.Errorf("there is %s", got)
	}
	in.Agbox(t, "run", "--name", "kept", harness.ImageBusybox, "true").Want(t, 0)
	if got := in.inside(t, "kept", "echo here"); got != "here\n" {
		t.Errorf("the kept one says %q", got)
	}
}

func TestRunTakesAFileAndInput(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	dir := in.write(t, "p", map[string]string{"agbox.yaml": "image: agbox-test/busybox:latest\nworkspace: {source: .}\n", "a": "one\n", "in": "typed\n"})
	input, err := os.Open(filepath.Join(dir, "in"))
	if err != nil {
		t.Fatal(err)
	}
	defer input.Close()
	r := in.StartWith(t, input, "run", "--rm", "-i", "-f", filepath.Join(dir, "agbox.yaml"), "--", "cat", "-", "a").Wait(t).Want(t, 0)
	harness.WantSame(t, "stdout", r.Stdout, "typed\none\n")
	if r := in.from(t, dir, nil, "run", "--rm", "--", "cat", "a"); r.Code != 0 || r.Stdout != "one\n" {
		t.Errorf("%d %q %q", r.Code, r.Stdout, r.Stderr)
	}
	// What is said of the file when an argument names the image can be done.
	r = in.from(t, dir, nil, "run", "--rm", harness.ImageBusybox, "ls").Want(t, 0)
	if !strings.Contains(r.Stderr, "the image is given without it. -f agbox.yaml with --image uses both") || strings.Contains(r.Stdout, "a\n") {
		t.Errorf("%q %q", r.Stdout, r.Stderr)
	}
	if r := in.from(t, dir, nil, "run", "--rm", "-f", "agbox.yaml", "--image", harness.ImageBusybox, "--", "cat", "a"); r.Code != 0 || r.Stdout != "one\n" {
		t.Errorf("%d %q %q", r.Code, r.Stdout, r.Stderr)
	}
	if got := in.Must(t, "ls", "-q"); got != "" {
		t.Errorf("there is %s", got)
	}
}

func TestRunRemovesItsSandboxHoweverItIsEnded(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP} {
		p := in.Start(t, "run", "--rm", harness.ImageBusybox, "sh", "-c", "echo begun; sleep 1000")
		p.AwaitOutput(t, "begun")
		p.Signal(t, sig)
		p.Wait(t).Want(t, 128+int(sig))
		if got := in.Must(t, "ls", "-q"); got != "" {
			t.Errorf("after %v there is %s", sig, got)
		}
	}
	// Also while it is being made.
	dir := filepath.Join(in.Home, "big")
	big(t, dir, 100, 1<<20)
	p := in.Start(t, "run", "--rm", "--workspace", dir, harness.ImageBusybox, "true")
	harness.Eventually(t, "the sandbox is being made", func() bool {
		select {
		case <-p.Ended():
			return true
		default:
			return strings.Contains(p.Stderr.String(), "copying files in")
		}
	})
	p.Signal(t, syscall.SIGINT)
	if code := p.Wait(t).Code; code != 130 && code != 0 { // the copy may have been complete already
		t.Errorf("exit code %d", code)
	}
	if got := in.Must(t, "ls", "-q"); got != "" {
		t.Errorf("there is %s", got)
	}
}

// Only the daemon can remove it.
func TestRunsSandboxGoesAfterItsCommandWhenAgboxIsKilled(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	// The time between READY and the start of the command also counts.
	p := in.Start(t, "run", "--rm", "--idle-ttl", "5s", "--name", "demo", harness.ImageBusybox, "sh", "-c", "echo begun; sleep 1000")
	p.AwaitOutput(t, "begun")
	p.Signal(t, syscall.SIGKILL)
	<-p.Ended()
	exec := strings.TrimSpace(in.Must(t, "ps", "-q", "demo"))
	if exec == "" {
		t.Fatal("the command did not go on")
	}
	in.Must(t, "kill", "--grace", "0s", exec)
	harness.Eventually(t, "the sandbox is gone", func() bool { return in.Must(t, "ls", "-q") == "" })
}

func TestRunOnATerminal(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	p := in.OnTerminal(t, "run", "--rm", "-it", harness.ImageBusybox, "sh")
	p.Await("# ")
	p.Types("tty && echo $((40+2)); exit 3\n")
	p.Await("42")
	if code := p.Wait(); code != 3 {
		t.Errorf("exit code %d, screen %q", code, p.Screen())
	}
	if got := in.Must(t, "ls", "-q"); got != "" {
		t.Errorf("there is %s", got)
	}
	p = in.OnTerminal(t, "run", "--rm", "-it", "--name", "left", harness.ImageBusybox, "sh")
	p.Await("# ")
	p.Types("\x10\x11")
	if code := p.Wait(); code != 0 {
		t.Errorf("left with exit code %d", code)
	}
	if got := in.Must(t, "ps", "left"); !strings.Contains(got, "sh") {
		t.Errorf("what was left runs no more: %s", got)
	}
	p = in.OnTerminal(t, "run", "--rm", "-it", harness.ImageBusybox, "sh")
	p.Await("# ")
	_ = p.Cmd.Process.Signal(syscall.SIGTERM)
	if code := p.Wait(); code != 128+int(syscall.SIGTERM) || strings.Contains(p.Screen(), "keeps running") {
		t.Errorf("ended with exit code %d, screen %q", code, p.Screen())
	}
}

func TestAPresetWorksOnACopyOfItsFolder(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	home := in.write(t, "people/me", map[string]string{".claude/.credentials.json": "login"})
	dir := in.write(t, "project", map[string]string{"a": "one\n"})
	env := []string{"HOME=" + home}
	if r := in.from(t, dir, append(env, "AGBOX_PRESET_BASE=agbox-test/nosuch:1"), "claude").Want(t, 125); !strings.Contains(r.Stderr, "--base IMAGE or the variable AGBOX_PRESET_BASE") {
		t.Errorf("without a base: %s", r.Stderr)
	}
	script := `printf '#!/bin/sh\npwd; cat a ~/.claude/.credentials.json; echo args: $@; echo two >b\n' >/usr/bin/claude; chmod +x /usr/bin/claude`
	r := in.from(t, dir, append(env, "AGBOX_CLAUDE_IMAGE="+harness.ImageBusybox), "claude", "--name", "kept", "--post-create", script, "--", "-p", "hello").Want(t, 0)
	harness.WantSame(t, "stdout", r.Stdout, "/workspace\none\nloginargs: --dangerously-skip-permissions -p hello\n")
	if !strings.Contains(r.Stderr, "`agbox apply kept` brings that back") {
		t.Errorf("it is not said how to get at the work: %q", r.Stderr)
	}
	if _, err := os.Stat(filepath.Join(dir, "b")); err == nil {
		t.Error("it wrote to the folder itself")
	}
	harness.WantSame(t, "the kept work", in.inside(t, "kept", "cat b"), "two\n")
	in.from(t, dir, env, "claude", "--rm", "--image", harness.ImageBusybox, "--mount-workspace", ".", "--post-create", script).Want(t, 0)
	wantFile(t, filepath.Join(dir, "b"), "two\n")

	r = in.from(t, dir, env, "claude", "--new", "--image", harness.ImageBusybox)
	if r.Code != 127 || !strings.Contains(r.Stderr, "The image does not contain claude.") {
		t.Errorf("without the program: %d, %q", r.Code, r.Stderr)
	}
	r = in.from(t, dir, env, "codex", "--image", harness.ImageBusybox)
	if r.Code == 0 || !strings.Contains(r.Stderr, "codex login") {
		t.Errorf("without a login: %d, %q", r.Code, r.Stderr)
	}
	if got := strings.Fields(in.Must(t, "ls", "-q")); len(got) != 1 {
		t.Errorf("there are %v", got)
	}
}
