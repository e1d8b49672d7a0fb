package gitignore

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestTheComparisonsOfATreeAreBounded(t *testing.T) {
	top := t.TempDir()
	if err := os.WriteFile(filepath.Join(top, ".gitignore"), []byte("a\n"+strings.Repeat("*a", 100)+"*b\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	dir, err := os.Open(top)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	f, err := NewTree(nil, true)
	if err == nil {
		err = f.Enter("", int(dir.Fd()))
	}
	if err != nil {
		t.Fatal(err)
	}
	f.budget.Left = 10_000
	for name := strings.Repeat("a", 255); ; {
		left := f.budget.Left
		_, err := f.Skip(name, false)
		if err != nil {
			if !strings.Contains(err.Error(), ".gitignore: line 2: ") {
				t.Errorf("got %v", err)
			}
			return
		}
		if f.budget.Left >= left {
			t.Fatal("a comparison costs nothing")
		}
	}
}

func TestNothingInsideARepositoryIsWork(t *testing.T) {
	for _, path := range []string{".git", ".git/config", "sub/.GIT/hooks/x", "a/.Git", "git~1/config", "a/GIT~1", ".git ", ".git./x", "git~1. ./y"} {
		if !Inside(path) {
			t.Errorf("%s is not inside", path)
		}
	}
	for _, path := range []string{".gitignore", "a.git/x", ".github/x", "git"} {
		if Inside(path) {
			t.Errorf("%s is inside", path)
		}
	}
}

// Git takes files of all other names into its index.
func TestGitRefusesTheNamesThatMayBeInsideARepository(t *testing.T) {
	var names []string
	var entries strings.Builder
	for _, name := range []string{".git", ".Git", "git~1", "GIT~1", ".git~1", "git~2", "git", "xgit~1", ".gitx", "x.git", ".gıt"} {
		for _, end := range []string{"", ".", " ", ". .", ":", ":s", " .:s:t", "::$INDEX_ALLOCATION", `\`, `\x`, ` .\x`, `:\x`, "x", ". x", "/x", " /x", ":s/x", `\x/y`} {
			for _, start := range []string{"", "d/", `d\`, "d:", `d\e/`, " ", ":"} {
				names = append(names, fmt.Sprintf("%d/%s%s%s", len(names), start, name, end))
				fmt.Fprintf(&entries, "100644 %040d 0\t%s\x00", 1, names[len(names)-1])
			}
		}
	}
	dir := t.TempDir()
	git := func(stdin string, args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "git", append([]string{"-C", dir}, args...)...)
		cmd.Stdin, cmd.Env = strings.NewReader(stdin), append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1")
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("git %q: %v", args, err)
		}
		return string(out)
	}
	git("", "init", "-q")
	git(entries.String(), "update-index", "-z", "--index-info")
	takes := strings.Split(git("", "ls-files", "-z"), "\x00")
	for _, name := range names {
		if Inside(name) == slices.Contains(takes, name) {
			t.Errorf("inside is %q: %t, and git disagrees", name, Inside(name))
		}
	}
}
