package covers

import (
	"slices"
	"testing"
)

func TestNamesMatchInAnyFolder(t *testing.T) {
	for path, want := range map[string]bool{
		"agbox.yaml": true, "/home/me/src/agbox.yaml": true, "src/agbox.yaml.old": false, "x/.vscode/tasks.json": true, ".vscodes": false,
		"x/.git/hooks/post-commit": true, "x/.git/config": true, "x/.git/objects/config": false, "x/.git": true, "x/.git/HEAD": false,
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
