//go:build presets

package e2e

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agbox/agbox/e2e/internal/harness"
	"github.com/agbox/agbox/e2e/internal/model"
	"github.com/agbox/agbox/internal/ids"
)

// realAgents are the agents of npm, each with a key and the address of the model.
var realAgents = []struct {
	name string
	env  []string
	// script is what the agent gets in a script, screen on a terminal; nil leaves it out.
	script, screen []string
}{
	{
		"claude",
		[]string{"ANTHROPIC_API_KEY=OWN-key-of-0123456789-0123456789", "ANTHROPIC_BASE_URL=http://model:8080"},
		[]string{"-p", "Make the test pass"},
		[]string{"Make the test pass"},
	},
	{
		"codex",
		[]string{"OPENAI_API_KEY=OWN-key-of-0123456789-0123456789", "OPENAI_BASE_URL=http://model:8080/v1"},
		[]string{"exec", "Make the test pass"},
		[]string{"Make the test pass"},
	},
}

func TestRealAgentsRepairAProjectThroughACrashOfTheDaemon(t *testing.T) {
	in := newInstall(t)
	service := modelImage(t, in)
	home := bait(in, t)
	in.write(t, "people/me", map[string]string{".codex/auth.json": `{"OPENAI_API_KEY": "BAIT-key-of-0123456789-0123456789"}`})
	for _, a := range realAgents {
		build(t, in, a.name)
		for _, where := range []string{"script", "terminal"} {
			if where == "terminal" && a.screen == nil {
				continue
			}
			t.Run(a.name+" in a "+where, func(t *testing.T) {
				dir := sample(t)
				box := a.name + "-" + where
				env := append([]string{"HOME=" + home, "AGBOX_PRESET_BASE=" + presetBase(), "AWS_SECRET_ACCESS_KEY=BAIT"}, a.env...)
				args := []string{a.name, "--name", box, "--with", "none", "--service", "model=" + service, "--"}
				var finish func()
				if where == "script" {
					ended := make(chan harness.Result, 1)
					go func() { ended <- in.from(t, dir, env, append(args, a.script...)...) }()
					finish = func() {
						if r := (<-ended).Want(t, 0); !strings.Contains(r.Stdout, model.Done) {
							t.Errorf("it says\n%s", r.Stdout)
						}
					}
				} else {
					p := in.OnTerminalIn(t, dir, env, append(args, a.screen...)...)
					p.Resize(40, 100)
					p.Answers("\x1b[6n", "\x1b[1;1R") // codex does not begin without
					defer func() {
						if t.Failed() {
							t.Logf("the screen: %q", p.Screen())
						}
					}()
					finish = func() {
						p.Types("\x10\x11")
						p.Wait()
						if strings.Contains(p.Screen(), "your default permission mode?") {
							t.Errorf("the first start asks: %q", p.Screen())
						}
					}
				}
				at := func(word string) func() bool {
					return func() bool {
						return strings.TrimSpace(in.Agbox(t, "exec", box, "--", "curl", "-s", "http://model:8080/at").Stdout) == word
					}
				}
				harness.Eventually(t, "the model is in the middle of an answer", at(model.Holding))
				in.KillDaemon(t)
				in.Must(t, "exec", box, "--", "curl", "-s", "-X", "POST", "http://model:8080/go")
				harness.Eventually(t, "the agent is done", at(model.Finished))
				finish()

				if got := in.inside(t, box, "sh test.sh"); !strings.Contains(got, model.Passed) {
					t.Errorf("the test of the project prints %s", got)
				}
				harness.WantSame(t, "what was changed", in.Must(t, "diff", "--name-only", box), model.File)
				if text, err := os.ReadFile(filepath.Join(dir, model.File)); err != nil || !strings.Contains(string(text), model.Wrong) {
					t.Errorf("the folder itself has %q, %v", text, err)
				}
				if diff := in.Must(t, "diff", box); !strings.Contains(diff, "-echo $(("+model.Wrong+"))\n+echo $(("+model.Right+"))") {
					t.Errorf("agbox diff prints %s", diff)
				}
				in.Must(t, "apply", "--branch", "fix", box)
				onHost(t, dir, "git status --short", "")
				onHost(t, dir, "git merge -q fix && sh test.sh", model.Passed+"\n")
				looked := in.Must(t, "exec", "-u", "root", box, "--", "sh", "-c", `word=BAI; for d in /* /.agbox/tools; do case $d in /proc|/sys|/dev|/opt|/usr) ;; *) find $d -type f -exec grep -l ${word}T {} + ;; esac; done 2>/dev/null; env | grep ${word}T; true`)
				want := "/home/agent/." + a.name + map[string]string{"claude": "/.credentials.json", "codex": "/auth.json"}[a.name]
				harness.WantSame(t, "what of the host's credentials is in the sandbox", looked, want)
				in.Must(t, "rm", "-f", box)
			})
		}
	}
}

// onHost runs a shell command in the project.
func onHost(t *testing.T, dir, command, want string) {
	t.Helper()
	cmd := exec.CommandContext(harness.Bounded(t), "sh", "-c", command)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil || string(out) != want {
		t.Errorf("%s: %v; it prints %q, want %q", command, err, out, want)
	}
}

// presetBase is the base of the images: AGBOX_PRESET_BASE, or a local one.
func presetBase() string {
	if base := os.Getenv("AGBOX_PRESET_BASE"); base != "" {
		return base
	}
	return "agbox-test/preset-base:latest"
}

// build builds the image of a preset, which may take minutes.
func build(t *testing.T, in *install, name string) {
	t.Helper()
	cmd := in.Command(t.Context(), "agbox", "preset", "build", "-q", name)
	cmd.Env = append(cmd.Env, "AGBOX_PRESET_BASE="+presetBase())
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// modelImage makes the image of the model, which holds its answer in the middle.
func modelImage(t *testing.T, in *install) string {
	t.Helper()
	dir := t.TempDir()
	cmd := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-o", filepath.Join(dir, "model"), "./internal/model/server")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if err := os.WriteFile(filepath.Join(dir, "Dockerfile"), []byte("FROM scratch\nCOPY model /model\nENTRYPOINT [\"/model\", \"-hold\"]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	name := "agbox-test/model-" + strings.ToLower(ids.New()) + ":1"
	in.from(t, "/", nil, "image", "build", "-t", name, dir).Want(t, 0)
	removeImage(t, name)
	return name
}

// sample makes the project that the model repairs, as a repository of git.
func sample(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{
		model.File: "echo $((" + model.Wrong + "))\n",
		"test.sh":  "got=$(sh add.sh 2 3)\nif [ \"$got\" = 5 ]; then echo " + model.Passed + "; else echo \"" + model.Failed + ": 2 + 3 is $got\"; exit 1; fi\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, args := range [][]string{{"init", "-q", "-b", "main"}, {"config", "user.name", "x"}, {"config", "user.email", "x@x.test"}, {"add", "."}, {"commit", "-qm", "Add"}} {
		ctx, cancel := context.WithTimeout(t.Context(), harness.Patience)
		out, err := exec.CommandContext(ctx, "git", append([]string{"-C", dir}, args...)...).CombinedOutput()
		cancel()
		if err != nil {
			t.Fatalf("git %v: %v, %s", args, err, out)
		}
	}
	return dir
}
