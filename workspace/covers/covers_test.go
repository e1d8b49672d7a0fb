package covers

import (
	"os"
	"slices"
	"strings"
	"testing"
)

func TestNamesMatchInAnyFolder(t *testing.T) {
	for path, want := range map[string]bool{
		"agbox.yaml": true, "/home/me/src/agbox.yaml": true, "src/agbox.yaml.old": false, "x/.vscode/tasks.json": true, ".vscodes": false,
		"x/.git/hooks/post-commit": true, "x/.git/config": true, "x/.git/objects/config": false, "x/.git": true, "x/.git/HEAD": false,
		"x/.git/info/attributes": true, "x/.git/info/exclude": false, "x/.claude/settings.json": true, "x/AGENTS.md": false,
		"x/.git/modules/sub/hooks/pre-push": true, "x/.git/modules/sub/HEAD": false, "x/.git/worktrees/w/commondir": true,
		"src/config": false, "src/hooks/x": false, "Makefile": true,
	} {
		if got := Match(path, append(slices.Clone(Names), "Makefile")); got != want {
			t.Errorf("%s: %v", path, got)
		}
	}
}

func TestPartsOfAProjectHaveTheNamesBelowThem(t *testing.T) {
	if below, inside := Below("/src", Names); inside || !slices.Equal(below, Names) {
		t.Errorf("a project: %v, %v", below, inside)
	}
	if below, inside := Below("/src/.git", Names); inside || !slices.Contains(below, "hooks") || !slices.Contains(below, "config") {
		t.Errorf("a folder of git: %v, %v", below, inside)
	}
	for _, folder := range []string{"/src/.git/hooks", "/src/.vscode", "/src/.devcontainer/x", "/src/agbox.yaml"} {
		if _, inside := Below(folder, Names); !inside {
			t.Errorf("%s is not inside", folder)
		}
	}
}

func TestWhatTheHostExecutesIsFoundUnderAllItsNames(t *testing.T) {
	for path, want := range map[string]string{
		".envrc": "direnv", "a/b/.envrc": "direnv", ".ENVRC": "direnv", ".env\u200crc": "direnv", ".envrc. .": "direnv", ".envrc:stream": "direnv", "ENVRC~1": "direnv",
		"x/.claude/settings.json": "Claude Code", ".claude/hooks/x/y": "Claude Code", ".Claude/Hooks": "Claude Code", ".claude/hoo\u212as/x": "Claude Code",
		"CLAUDE~1/SETTIN~1.JSO": "Claude Code", "CLAUDE~12": "", ".claude/worktrees/a/main.go": "", ".claude": "Claude Code", "x/.zed": "Zed", "MCP~1.JSO": "Claude Code and other agents",
		"AGENTS.md": "agents, which read them as instructions", "sub/claude.MD": "agents, which read them as instructions", "AGENTS.md.old": "",
		".git": "git", "sub/.git": "git", ".GIT/Hooks/x": "git", ".git/info/attributes": "git", ".git/modules/a/config": "git", ".git/HEAD": "", ".gitmodules": "git",
		".claude/settings.local.json": "Claude Code", ".claude/commands/x.md": "Claude Code", ".claude/agents/x.md": "Claude Code", ".mcp.json": "Claude Code and other agents",
		".codex/config.toml": "Codex", ".gemini/settings.json": "Gemini CLI", "opencode.json": "opencode", ".cursor/mcp.json": "Cursor", ".zed/tasks.json": "Zed",
		".husky/pre-commit": "hooks of git", ".pre-commit-config.yaml": "hooks of git", "mise.toml": "mise", ".yarnrc.yml": "Yarn", ".npmrc": "npm, pnpm",
		"CLAUDE.md":          "agents, which read them as instructions",
		".vscode/tasks.json": "VS Code and its relatives", ".vscodes": "", "cargo/config.toml": "", ".cargo/config.toml": "Cargo", "config.toml": "",
		"main~1.go": "", "notes~": "", "~1": "", ".": "", "..": "", "": "", "a.": "", ".github/workflows/x": "",
	} {
		if e, ok := Find(path); ok != (want != "") || e.Who != want {
			t.Errorf("%q is of %q, not of %q", path, e.Who, want)
		}
	}
}

func TestAFolderIsARepositoryByTheNamesInIt(t *testing.T) {
	for names, want := range map[string]bool{
		"HEAD objects refs": true, "HEAD commondir": true, "HEAD objects refs config": true, "HEAD": false, "HEAD objects": false, "HEAD refs config": false, "objects refs commondir": false, "": false,
	} {
		if Repository(func(name string) bool { return slices.Contains(strings.Fields(names), name) }) != want {
			t.Errorf("%s: not %v", names, want)
		}
	}
}

func TestTheDocumentHasTheTable(t *testing.T) {
	var want strings.Builder
	for _, e := range Table {
		here := "read-only"
		if e.Open != "" {
			here = "only named: " + e.Open
		}
		want.WriteString("| `" + strings.Join(e.Names, "`, `") + "` | " + e.Who + " | " + e.When + " | " + here + " |\n")
	}
	text, err := os.ReadFile("../../docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), "|---|---|---|---|\n"+want.String()+"\n") {
		t.Errorf("docs/security.md has not exactly these rows:\n%s", want.String())
	}
}
