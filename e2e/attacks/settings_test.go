package attacks

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agbox/agbox/e2e/internal/harness"
	"github.com/agbox/agbox/internal/ids"
)

// standIn is a program in the place of the agents. It shows what tells them to leave
// settings out.
const standIn = `#!/bin/sh
echo "args: $*"
cat ~/.codex/config.toml 2>/dev/null | grep trust_level
ls -A1
`

func TestSettingsOfAgentsInARepositoryAreOffWithoutAYes(t *testing.T) {
	t.Parallel()
	Row(t, 116, "settings of each agent in a repository run programs with the login, unasked")
	images := imagesOf(t)
	in := harness.New(t)
	image := "agbox-test/agents-" + strings.ToLower(ids.New()) + ":1"
	recipe := "FROM " + harness.ImageBusybox + "\nCOPY agent /bin/claude\nCOPY agent /bin/codex\nCOPY agent /bin/opencode\nCOPY agent /bin/gemini\nRUN chmod +x /bin/claude /bin/codex /bin/opencode /bin/gemini\n"
	in.Must(t, "image", "build", "-t", image, write(t, in, "image", map[string]string{"Dockerfile": recipe, "agent": standIn}))
	images.names = append(images.names, image)
	env := []string{"ANTHROPIC_API_KEY=k", "OPENAI_API_KEY=k", "GEMINI_API_KEY=k"}
	for _, name := range []string{"CLAUDE", "CODEX", "OPENCODE", "GEMINI"} {
		env = append(env, "AGBOX_"+name+"_IMAGE="+image)
	}
	in.Env = append(in.Env, env...)
	for agent, c := range map[string]struct {
		file    string
		off, on func(out string) bool
	}{
		"claude": {".claude/settings.json",
			func(out string) bool {
				return strings.Contains(out, "args: --setting-sources user --strict-mcp-config --dangerously")
			},
			func(out string) bool { return strings.Contains(out, "args: --dangerously") }},
		"codex": {".codex/config.toml",
			func(out string) bool { return strings.Contains(out, "trust_level = \"untrusted\"") },
			func(out string) bool { return strings.Contains(out, "trust_level = \"trusted\"") }},
		"opencode": {".opencode/plugin/a.js",
			func(out string) bool {
				return !strings.Contains(out, ".opencode\n") && strings.Contains(out, "source\n")
			},
			func(out string) bool { return strings.Contains(out, ".opencode\n") }},
		"gemini": {".env",
			func(out string) bool { return !strings.Contains(out, ".env\n") && strings.Contains(out, "source\n") },
			func(out string) bool { return strings.Contains(out, ".env\n") }},
	} {
		t.Run(agent, func(t *testing.T) {
			t.Parallel()
			dir := write(t, in, agent, map[string]string{c.file: "one", "source": ""})
			run := func(args ...string) harness.Result {
				t.Helper()
				return from(t, in, dir, append([]string{agent, "--rm"}, args...)...).Want(t, 0)
			}
			asked := func(answer string) string {
				t.Helper()
				shown := in.OnTerminalIn(t, dir, env, agent, "--rm", "--with", "none")
				shown.Await(c.file + ", which may run programs with your login")
				shown.Await("[y/N] ")
				shown.Types(answer + "\n")
				shown.Wait()
				return strings.ReplaceAll(shown.Screen(), "\r", "")
			}
			if r := run(); !c.off(r.Stdout) || !strings.Contains(r.Stderr, "which nobody has agreed to") {
				t.Errorf("%s, unasked: %s\n%s", agent, r.Stdout, r.Stderr)
			}
			if out := asked("n"); !c.off(out) {
				t.Errorf("%s, after no: %s", agent, out)
			}
			if out := asked("y"); !c.on(out) {
				t.Errorf("%s, after yes: %s", agent, out)
			}
			if r := run(); !c.on(r.Stdout) {
				t.Errorf("%s, after yes, once more: %s\n%s", agent, r.Stdout, r.Stderr)
			}
			if err := os.WriteFile(filepath.Join(dir, c.file), []byte("two"), 0o600); err != nil {
				t.Fatal(err)
			}
			if r := run(); !c.off(r.Stdout) {
				t.Errorf("%s, after a change: %s\n%s", agent, r.Stdout, r.Stderr)
			}
			if r := run("--trust"); !c.on(r.Stdout) {
				t.Errorf("%s, with --trust: %s\n%s", agent, r.Stdout, r.Stderr)
			}
			if err := os.Remove(filepath.Join(dir, c.file)); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink("/etc/hostname", filepath.Join(dir, c.file)); err != nil {
				t.Fatal(err)
			}
			if r := run(); !c.off(r.Stdout) || !strings.Contains(r.Stderr, "symbolic link") {
				t.Errorf("%s, a link: %s\n%s", agent, r.Stdout, r.Stderr)
			}
		})
	}
	t.Run("what settings name", func(t *testing.T) {
		t.Parallel()
		Row(t, 116, "settings of an agent in a subfolder, the program of a hook, and an import of the login")
		off := func(out string) bool { return strings.Contains(out, "args: --setting-sources user") }
		for name, c := range map[string]struct {
			files         map[string]string
			shown, change string
		}{
			"skill":  {map[string]string{"sub/.claude/skills/s/SKILL.md": "one"}, "sub/.claude/skills/s/SKILL.md, which may run programs", "sub/.claude/skills/s/SKILL.md"},
			"hook":   {map[string]string{".claude/settings.json": `{"hooks": "./run.sh"}`, "run.sh": "one"}, "run.sh, which is named by .claude/settings.json", "run.sh"},
			"import": {map[string]string{"CLAUDE.md": "@~/.claude/.credentials.json @a.md", "a.md": "one"}, "CLAUDE.md brings in ~/.claude/.credentials.json", "a.md"},
		} {
			dir := write(t, in, "named-"+name, c.files)
			run := func() string { return from(t, in, dir, "claude", "--rm").Want(t, 0).Stdout }
			if out := run(); !off(out) {
				t.Errorf("%s, unasked: %s", name, out)
			}
			asked := in.OnTerminalIn(t, dir, env, "claude", "--rm", "--with", "none")
			asked.Await(c.shown)
			asked.Await("[y/N] ")
			asked.Types("y\n")
			asked.Wait()
			if out := run(); off(out) {
				t.Errorf("%s, after yes: %s", name, out)
			}
			if err := os.WriteFile(filepath.Join(dir, c.change), []byte("two"), 0o600); err != nil {
				t.Fatal(err)
			}
			if out := run(); !off(out) {
				t.Errorf("%s, after a change: %s", name, out)
			}
		}
	})
	from(t, in, write(t, in, "mounted", map[string]string{".gemini/settings.json": "{}"}), "gemini", "--mount-workspace", ".").Want(t, 125)
}
