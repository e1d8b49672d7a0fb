// Package covers names the files of a project that the host executes, or that agbox reads
// the next time, just because they are there: settings of editors, hooks of git, sandbox
// files. A sandbox that could change them would have its commands run on the host.
package covers

import "strings"

// Names are paths below a project folder. Each stands for the file or folder and for
// everything below it.
var Names = []string{
	"agbox.yaml", "agbox.yml", ".devcontainer", ".devcontainer.json",
	"compose.yaml", "compose.yml", "compose.override.yaml", "compose.override.yml",
	"docker-compose.yaml", "docker-compose.yml", "docker-compose.override.yaml", "docker-compose.override.yml",
	".vscode", ".idea", ".envrc", ".npmrc",
	".git/config", ".git/config.worktree", ".git/commondir", ".git/hooks",
}

// GitNames are the names, relative to a folder of git, of what makes git run commands:
// settings, hooks, and the file that says where both are.
var GitNames = []string{"config", "config.worktree", "commondir", "hooks"}

// Match reports whether a path is, or is below, a file or folder with one of the names, in
// any folder. In folders of submodules and worktrees of git, GitNames count too.
func Match(path string, names []string) bool {
	slashed := "/" + strings.Trim(path, "/") + "/"
	for _, name := range names {
		if strings.Contains(slashed, "/"+name+"/") {
			return true
		}
	}
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
