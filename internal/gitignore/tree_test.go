package gitignore

import (
	"os"
	"path/filepath"
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
