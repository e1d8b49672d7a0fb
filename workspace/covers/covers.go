// Package covers names the files of a project that programs of the host execute, or that
// agbox reads the next time, just because they are there: settings of editors and agents,
// hooks of git, sandbox files. A sandbox that could change them would have its commands run
// on the host.
package covers

import "strings"

// Entry is a row of Table.
type Entry struct {
	// Names are paths below a project folder. Each stands for the file or folder and for
	// everything below it.
	Names []string
	// Who executes them, or reads them as instructions, and When, as the rest of a sentence.
	Who, When string
	// Open says why they are not covered in a writable mount, but only named; empty means
	// that they are covered.
	Open string
}

const (
	byAgbox    = "when it makes the next sandbox of the folder"
	atStart    = "when it starts in the folder"
	whenOpened = "when it opens the folder, or starts a task of it"
	atInstall  = "when it installs packages or runs a script"
)

// Table has all rows. Docs/security.md has the same table.
var Table = []Entry{
	{Names: []string{"agbox.yaml", "agbox.yml"}, Who: "agbox", When: byAgbox},
	{Names: []string{".devcontainer", ".devcontainer.json"}, Who: "agbox, editors", When: byAgbox + ", or they open the folder in a container"},
	{Names: []string{
		"compose.yaml", "compose.yml", "compose.override.yaml", "compose.override.yml",
		"docker-compose.yaml", "docker-compose.yml", "docker-compose.override.yaml", "docker-compose.override.yml",
	}, Who: "agbox, Docker Compose", When: byAgbox + ", or at `docker compose up`"},
	{Names: []string{".git/config", ".git/config.worktree", ".git/commondir", ".git/hooks", ".git/info/attributes"}, Who: "git", When: "at any command, such as `git status`"},
	{Names: []string{".gitmodules"}, Who: "git", When: "at `git submodule update`", Open: "submodules are added in the sandbox"},
	{Names: []string{".husky", "lefthook.yml", ".lefthook.yml", ".pre-commit-config.yaml"}, Who: "hooks of git", When: "at the next commit, if they are installed"},
	{Names: []string{".vscode"}, Who: "VS Code and its relatives", When: whenOpened},
	{Names: []string{".idea"}, Who: "editors of JetBrains", When: whenOpened},
	{Names: []string{".zed/tasks.json", ".zed/settings.json", ".zed/debug.json"}, Who: "Zed", When: whenOpened},
	{Names: []string{".exrc", ".nvim.lua", ".nvimrc", ".vimrc", ".dir-locals.el"}, Who: "Vim, Neovim, Emacs", When: "when they open a file of the folder, if they are set up so"},
	{Names: []string{".gdbinit", ".lldbinit"}, Who: "debuggers", When: "when they start in the folder, if they are set up so"},
	{Names: []string{".claude/settings.json", ".claude/settings.local.json", ".claude/hooks", ".claude/commands", ".claude/agents"}, Who: "Claude Code", When: atStart + ", and at its events"},
	{Names: []string{".mcp.json"}, Who: "Claude Code and other agents", When: atStart},
	{Names: []string{".codex/config.toml", ".codex/hooks.json", ".codex/rules", ".codex/prompts", ".codex/agents"}, Who: "Codex", When: atStart},
	{Names: []string{".gemini/settings.json", ".gemini/.env", ".gemini/commands", ".gemini/extensions", ".gemini/hooks", ".gemini/agents"}, Who: "Gemini CLI", When: atStart},
	{Names: []string{"opencode.json", "opencode.jsonc", ".opencode"}, Who: "opencode", When: atStart},
	{Names: []string{".cursor/mcp.json", ".cursor/hooks.json", ".cursor/hooks", ".cursor/commands", ".cursor/agents", ".cursor/cli.json", ".cursor/environment.json"}, Who: "Cursor", When: whenOpened},
	{
		Names: []string{
			"CLAUDE.md", "CLAUDE.local.md", "AGENTS.md", "AGENTS.override.md", "GEMINI.md", ".github/copilot-instructions.md", ".cursorrules",
			".claude/rules", ".claude/skills", ".agents/skills", ".codex/skills", ".gemini/skills", ".cursor/rules", ".cursor/skills",
		},
		Who: "agents, which read them as instructions", When: "when they start in the folder", Open: "agents write them as part of their work",
	},
	{Names: []string{".envrc"}, Who: "direnv", When: "when a shell enters the folder"},
	{Names: []string{"mise.toml", "mise.local.toml", ".mise.toml", ".mise.local.toml", ".mise", ".config/mise.toml"}, Who: "mise", When: "when a shell enters the folder"},
	{Names: []string{".cargo/config.toml", ".cargo/config"}, Who: "Cargo", When: "at any command, such as `cargo check`"},
	{Names: []string{".npmrc", ".pnpmfile.cjs"}, Who: "npm, pnpm", When: atInstall},
	{Names: []string{".yarnrc.yml", ".yarnrc", ".yarn/releases", ".yarn/plugins"}, Who: "Yarn", When: "at any command, such as `yarn --version`"},
}

// Names are the names that are covered in a writable mount.
var Names = covered()

func covered() (all []string) {
	for _, e := range Table {
		if e.Open == "" {
			all = append(all, e.Names...)
		}
	}
	return all
}

// GitNames are the names, relative to a folder of git, of what makes git run commands:
// settings, hooks, and the file that says where both are.
var GitNames = []string{"config", "config.worktree", "commondir", "hooks", "info/attributes"}

// Repository reports whether git takes a folder with some names in it for one of its own. What
// is behind a name counts for nothing: git follows links, and asks of objects and refs only
// whether it may enter them.
func Repository(has func(name string) bool) bool {
	return has("HEAD") && (has("objects") && has("refs") || has("commondir"))
}

// GitPart returns which part of a repository the first part of a path below it is: one of
// those that Repository asks for, or that makes git run commands. It is empty for others.
func GitPart(name string) string {
	folded := fold(name)
	if part, ok := gitParts[folded]; ok || !strings.Contains(folded, "~") {
		return part
	}
	for long, part := range gitParts {
		if isShort(folded, long) {
			return part
		}
	}
	return ""
}

// gitParts has these parts by their folded names.
var gitParts = func() map[string]string {
	all := map[string]string{"head": "HEAD", "objects": "objects", "refs": "refs"}
	for _, name := range GitNames {
		first, _, _ := strings.Cut(name, "/")
		all[first] = first
	}
	return all
}()

// Match reports whether a path is, or is below, a file or folder with one of the names, in
// any folder. In folders of submodules and worktrees of git, GitNames count too.
func Match(path string, names []string) bool {
	slashed := "/" + strings.Trim(path, "/") + "/"
	for _, name := range names {
		if strings.Contains(slashed, "/"+name+"/") {
			return true
		}
	}
	return gitMatch(slashed)
}

// gitMatch reports whether a path with slashes around it is a .git file, or what makes git
// run commands in the folder of a submodule or a worktree.
func gitMatch(slashed string) bool {
	if strings.HasSuffix(slashed, "/.git/") {
		return true // a file that says where the folder of git is; a folder itself is no entry of interest
	}
	_, below, ok := strings.Cut(slashed, "/.git/modules/")
	if !ok {
		_, below, ok = strings.Cut(slashed, "/.git/worktrees/")
	}
	if !ok {
		return false
	}
	for _, name := range GitNames {
		if strings.Contains("/"+below, "/"+name+"/") {
			return true
		}
	}
	return false
}

// Below returns the names relative to a folder, which may be part of a project: for a
// folder .git, "hooks" is among them. inside is true if the folder is itself below one of
// the names.
func Below(folder string, names []string) (below []string, inside bool) {
	if Match(folder, names) && !strings.HasSuffix(folder, "/.git") {
		return nil, true
	}
	below = append(below, names...)
	for _, name := range names {
		for i, c := range name {
			if c == '/' && strings.HasSuffix(folder, "/"+name[:i]) {
				below = append(below, name[i+1:])
			}
		}
	}
	return below, false
}
