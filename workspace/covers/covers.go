// Package covers names the files of a project that programs of the host execute, or that
// agbox reads the next time, just because they are there: settings of editors and agents,
// hooks of git, sandbox files. A sandbox that could change them would have its commands run
// on the host. It finds them among what comes from a sandbox, and keeps what a person says of them.
package covers

import (
	"path"
	"strings"
	"unicode"
)

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

// Find returns the row of a file or link: its path is, or is below, one of the names of the
// row, in any folder, or it is in the place of a folder above such a name, where a link would
// lead to another one. Names count as the file system of any host may take them (see fold).
func Find(name string) (Entry, bool) {
	slashed := "/" + strings.Trim(fold(name), "/") + "/"
	if gitMatch(slashed) {
		return *git, true
	}
	parts := strings.Split(strings.Trim(slashed, "/"), "/")
	for i, part := range parts {
		for _, one := range starting[part] {
			if one.at(parts[i:]) {
				return *one.entry, true
			}
		}
		if !strings.Contains(part, "~") {
			continue
		}
		for _, some := range starting {
			for _, one := range some {
				if one.at(parts[i:]) {
					return *one.entry, true
				}
			}
		}
	}
	return Entry{}, false
}

// named is a name of a row in folded parts.
type named struct {
	parts []string
	entry *Entry
}

// at reports whether a path begins with the name, or the name with it.
func (n named) at(parts []string) bool {
	for i, part := range n.parts[:min(len(parts), len(n.parts))] {
		if parts[i] != part && !isShort(parts[i], part) {
			return false
		}
	}
	return true
}

var (
	// starting has all names by their first part.
	starting = make(map[string][]named)
	// git is the row of git itself.
	git *Entry
)

func init() {
	for i := range Table {
		e := &Table[i]
		for _, name := range e.Names {
			parts := strings.Split(fold(name), "/")
			starting[parts[0]] = append(starting[parts[0]], named{parts, e})
			if name == ".git/config" {
				git = e
			}
		}
	}
}

// Same reports whether some file system takes two names, without slashes, for the same.
func Same(a, b string) bool {
	a, b = fold(a), fold(b)
	return a == b || isShort(a, b)
}

// fold returns a path so that paths are equal which some file system takes for the same:
// those that ignore case, HFS+ with its characters that count for nothing, and NTFS with
// its streams and the dots and spaces at the end of names. Git protects .git by these rules.
func fold(name string) string {
	plain := true
	for i := range len(name) {
		c := name[i]
		plain = plain && c < 0x80 && (c < 'A' || c > 'Z') && c != ':' && c != ' ' && (c != '.' || i+1 < len(name) && name[i+1] != '/')
	}
	if plain {
		return name
	}
	parts := strings.Split(strings.Map(foldRune, name), "/")
	for i, part := range parts {
		part, _, _ = strings.Cut(part, ":")
		if trimmed := strings.TrimRight(part, " ."); trimmed != "" {
			parts[i] = trimmed
		}
	}
	return strings.Join(parts, "/")
}

// foldRune returns a letter in lower case, and -1 for a character that HFS+ ignores.
func foldRune(r rune) rune {
	switch {
	case r >= 'A' && r <= 'Z':
		return r + 'a' - 'A'
	case r < 0x80:
		return r
	case r >= 0x200c && r <= 0x200f, r >= 0x202a && r <= 0x202e, r >= 0x206a && r <= 0x206f, r == 0xfeff:
		return -1
	}
	least := r
	for next := unicode.SimpleFold(r); next != r; next = unicode.SimpleFold(next) {
		least = min(least, next)
	}
	return unicode.ToLower(least)
}

// isShort reports whether a folded name can be the short name of another on FAT and NTFS:
// the first six characters, a tilde, a number and three characters of the ending; or the
// first two with four hexadecimal digits.
func isShort(name, long string) bool {
	begin, end, _ := strings.Cut(name, ".")
	first, number, ok := strings.Cut(begin, "~")
	if !ok || number == "" || strings.Trim(number, "0123456789") != "" {
		return false
	}
	long = strings.TrimLeft(long, ".")
	ending := strings.TrimPrefix(path.Ext(long), ".")
	long = strings.NewReplacer(".", "", " ", "").Replace(strings.TrimSuffix(long, path.Ext(long)))
	if end != ending[:min(3, len(ending))] || len(first) < 2 {
		return false
	}
	hashed := len(first) == 6 && strings.HasPrefix(long, first[:2]) && strings.Trim(first[2:], "0123456789abcdef") == ""
	return hashed || first == long[:min(6, len(long), max(2, 7-len(number)))]
}
