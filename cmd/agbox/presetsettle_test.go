package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// presetSettled runs the command of a preset in a folder and returns what it wrote.
func presetSettled(t *testing.T, p codingAgent, ask bool, folder string, env ...string) string {
	t.Helper()
	home := t.TempDir()
	cmd := exec.CommandContext(t.Context(), "sh", "-c", p.Settle(ask, false))
	cmd.Dir, cmd.Env = folder, append([]string{"HOME=" + home, "PATH=/usr/bin:/bin"}, env...)
	if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
		t.Fatalf("%s: %v, %s", p.Name, err, out)
	}
	if out, err := exec.CommandContext(t.Context(), "sh", "-c", "cd "+home+" && find . -type f -perm /077").CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("%s: others may read %s, %v", p.Name, out, err)
	}
	return home
}

func TestAllAnswersAreWrittenInAnyFolder(t *testing.T) {
	folder := filepath.Join(t.TempDir(), `a "b" \c`)
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, files := range map[string][]string{
		"claude": {".claude.json", ".claude/settings.json"}, "codex": {".codex/config.toml"},
		"opencode": {".config/opencode/opencode.json"}, "gemini": {".gemini/settings.json"},
	} {
		home := presetSettled(t, *findPreset(name), false, folder)
		for _, file := range files {
			text, err := os.ReadFile(filepath.Join(home, file))
			if err != nil {
				t.Fatal(err)
			}
			if strings.HasSuffix(file, ".json") && !json.Valid(text) {
				t.Errorf("%s is\n%s", file, text)
			}
			if name == "claude" && file == ".claude.json" {
				var state struct {
					Projects                map[string]any
					HasSeenAutoDefaultNudge bool // otherwise it asks whether to change the mode
				}
				if err := json.Unmarshal(text, &state); err != nil || !state.HasSeenAutoDefaultNudge {
					t.Errorf("claude asks at its first start: %v, %s", err, text)
				}
				if state.Projects[folder] == nil {
					t.Errorf("the folder %s is not trusted: %s", folder, text)
				}
			}
			if want := `[projects."` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(folder) + `"]`; name == "codex" && !strings.Contains(string(text), want) {
				t.Errorf("%s is not in\n%s", want, text)
			}
		}
	}
}

func TestAskKeepsThePrompts(t *testing.T) {
	home := presetSettled(t, *findPreset("claude"), true, "/")
	if _, err := os.Stat(filepath.Join(home, ".claude/settings.json")); err == nil {
		t.Error("claude does not ask")
	}
	for name, want := range map[string][3]string{
		"codex":    {".codex/config.toml", `approval_policy = "untrusted"`, `approval_policy = "never"`},
		"opencode": {".config/opencode/opencode.json", `"bash": "ask"`, `"*": "allow"`},
	} {
		for i, ask := range []bool{true, false} {
			text, err := os.ReadFile(filepath.Join(presetSettled(t, *findPreset(name), ask, "/"), want[0]))
			if err != nil || !strings.Contains(string(text), want[1+i]) || strings.Contains(string(text), want[2-i]) {
				t.Errorf("%s with ask %v: %v, %s", name, ask, err, text)
			}
		}
	}
	if got := strings.Join(findPreset("gemini").Run(true, false, []string{"-p", "x"}), " "); got != "gemini -p x" {
		t.Errorf("gemini that asks is run as %s", got)
	}
	if got := strings.Join(findPreset("gemini").Run(false, false, nil), " "); got != "gemini --yolo" {
		t.Errorf("gemini is run as %s", got)
	}
}

func TestSettingsOfTheFolderAreLeftOutByEachSwitch(t *testing.T) {
	script := findPreset("codex").Settle(false, true)
	home := t.TempDir()
	cmd := exec.CommandContext(t.Context(), "sh", "-c", script)
	cmd.Dir, cmd.Env = "/", []string{"HOME=" + home, "PATH=/usr/bin:/bin"}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatal(err, string(out))
	}
	if text, err := os.ReadFile(filepath.Join(home, ".codex/config.toml")); err != nil || !strings.Contains(string(text), "[projects.\"/\"]\ntrust_level = \"untrusted\"\n") {
		t.Errorf("codex: %v, %s", err, text)
	} else if !strings.Contains(string(text), "\n[features]\ndaemon_auto_start = false\n") {
		t.Errorf("codex starts a server that outlives it: %s", text)
	}
	config := filepath.Join(home, ".codex/config.toml")
	if err := os.WriteFile(config, []byte("model = \"m\"\n[projects.\"/\"]\ntrust_level = \"trusted\"\n[projects.\"/x\"]\ntrust_level = \"trusted\""), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd = exec.CommandContext(t.Context(), "sh", "-c", script)
	cmd.Dir, cmd.Env = "/", []string{"HOME=" + home, "PATH=/usr/bin:/bin"}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatal(err, string(out))
	}
	if text, err := os.ReadFile(config); err != nil || string(text) != "model = \"m\"\n[projects.\"/x\"]\ntrust_level = \"trusted\"\n[projects.\"/\"]\ntrust_level = \"untrusted\"\n" {
		t.Errorf("codex with a config of its own: %v, %s", err, text)
	}
	if got := strings.Join(findPreset("claude").Run(false, true, []string{"-p", "x"}), " "); got != "claude --setting-sources user --strict-mcp-config --dangerously-skip-permissions -p x" {
		t.Errorf("claude is run as %s", got)
	}
	for _, p := range allPresets() {
		if len(p.Obeys) == 0 {
			t.Errorf("%s: no files of a folder are known", p.Name)
		}
	}
}

func TestFilesThatExistAreLeft(t *testing.T) {
	home := presetSettled(t, *findPreset("claude"), false, "/", "ANTHROPIC_API_KEY=sk-0123456789-0123456789")
	state := filepath.Join(home, ".claude.json")
	text, err := os.ReadFile(state)
	if err != nil || !strings.Contains(string(text), `"approved": ["123456789-0123456789"]`) || strings.Contains(string(text), "sk-") {
		t.Errorf("%v, %s", err, text)
	}
	if err := os.WriteFile(state, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "sh", "-c", findPreset("claude").Settle(false, false))
	cmd.Dir, cmd.Env = "/", []string{"HOME=" + home, "PATH=/usr/bin:/bin"}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatal(err, string(out))
	}
	if text, err = os.ReadFile(state); err != nil || string(text) != "mine" {
		t.Errorf("%v, %s", err, text)
	}
}
