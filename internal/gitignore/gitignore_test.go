package gitignore

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

var files = []string{
	"a.log", "keep.log", "build/x", "sub/build/x", "a/b", "a/x/b", "a/x/y/b", "foo/bar", "foo/baz", "sub/foo/bar",
	"#x", "!x", "x", "x ", "a.c", "b.c", "z.c", "sub/a.c", "abc/c", "doc/frotz/q", "a/doc/frotz/q", "m.o", "a*b", "axb",
	"a/q.c", "a/p/q.c", "b/b", "c/b", "build/p/keep", "build/keep", "sub/keep.log", "  x", "-", "]", "a/.gitignored", "A.c", "9.c",
}

// tree creates a repository and returns its directory.
func tree(t testing.TB) string {
	dir := t.TempDir()
	if out, err := exec.Command("git", "init", "-q", dir).CombinedOutput(); err != nil {
		t.Fatalf("git is needed to compare with: %v %s", err, out)
	}
	for _, name := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// kept returns the files that git does not ignore with these patterns at the top.
func kept(t interface{ Fatal(...any) }, dir, patterns string) map[string]bool {
	if err := os.WriteFile(filepath.Join(dir, ".gitignore"), []byte(patterns), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("git", "-C", dir, "ls-files", "-z", "--others", "--exclude-per-directory=.gitignore")
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	names := make(map[string]bool)
	for name := range strings.SplitSeq(string(out), "\x00") {
		names[name] = true
	}
	return names
}

// keeps reports whether this package keeps a file. It walks down the path as a copy does.
func keeps(r Rules, name string) bool {
	parts := strings.Split(name, "/")
	for i := range parts {
		if _, out := r.Decide(strings.Join(parts[:i+1], "/"), i+1 < len(parts)); out {
			return false
		}
	}
	return true
}

func TestPatternsMatchAsInGit(t *testing.T) {
	dir := tree(t)
	for _, patterns := range []string{
		"*.log", "/build", "build/", "a/b", "a/**/b", "**/foo", "foo/**", "!keep.log", "*.log\n!keep.log", "foo\n!foo/bar",
		"foo/*\n!foo/bar", "\\#x", "\\!x", "x ", "x\\ ", "[ab].c", "[!a].c", "[^a].c", "?.c", "a*/c", "/*\n!/a", "**", "a/**",
		"*/b", "/a/*.c", "foo/", "doc/frotz/", "*.[oa]", "a\\*b", "/**/b", "**/a/**", "a**b", "#x", "  x", "[a-c]/b", "*",
		"*\n!*.c\n!*/", "!a\na", "a/", "/", "", "build/**/keep", "[[:alpha:]].c", "[[:digit:][:upper:]].c", "b/", "/foo/bar/",
		"foo/bar", "x\r", "[]-]", "[]", "[a", "a\\", "[\\]]", "[[:what:]].c", "***/b", "a/***/b", "**/", "/**", "a/*", "\ufeff*.log", "x\\\\ ", "?/b", "a?b", "[!/]x", "a**/*", "foo**/bar", "/a**", "b**/c", "sub/f**/bar", "[a-*]", "**\\/b",
	} {
		want, rules := kept(t, dir, patterns), Parse("", patterns)
		for _, name := range files {
			if got := keeps(rules, name); got != want[name] {
				t.Errorf("%q: git keeps %q: %v, this: %v", patterns, name, want[name], got)
			}
		}
	}
}

func TestRandomPatternsMatchAsInGit(t *testing.T) {
	dir := tree(t)
	piece := rapid.SampledFrom([]string{"*", "**", "/", "a", "b", "x", "foo", "build", "sub", "!", ".c", "?", "[a-c]", "\\", " ", "\n", "[", "]", "-", "#"})
	rapid.Check(t, func(t *rapid.T) {
		patterns := strings.Join(rapid.SliceOfN(piece, 1, 12).Draw(t, "patterns"), "")
		want, rules := kept(t, dir, patterns), Parse("", patterns)
		for _, name := range files {
			if got := keeps(rules, name); got != want[name] {
				t.Errorf("%q: git keeps %q: %v, this: %v", patterns, name, want[name], got)
			}
		}
	})
}

func TestPatternsOfADirectoryApplyBelowIt(t *testing.T) {
	r := Parse("sub", "/foo\n*.c\n")
	for name, out := range map[string]bool{"sub/foo": true, "foo": false, "sub/x/foo": false, "sub/x/a.c": true, "a.c": false, "subx/a.c": false} {
		if _, got := r.Decide(name, false); got != out {
			t.Errorf("%s is left out: %v", name, got)
		}
	}
}

func TestAGlobWithManyStarsMatchesFast(t *testing.T) {
	if match(strings.Repeat("*a", 500), strings.Repeat("a", 400)+"b", true) {
		t.Error("it matches")
	}
}
