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

// parsed returns the rules of a valid file.
func parsed(t interface{ Fatal(...any) }, dir, content string) Rules {
	r, err := Parse(dir, content)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// keeps reports whether this package keeps a file. It walks down the path as a copy does.
func keeps(r Rules, name string) bool {
	parts := strings.Split(name, "/")
	for i := range parts {
		if _, out, err := r.Decide(strings.Join(parts[:i+1], "/"), i+1 < len(parts), &Budget{1 << 20}); out || err != nil {
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
		want, rules := kept(t, dir, patterns), parsed(t, "", patterns)
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
		want, rules := kept(t, dir, patterns), parsed(t, "", patterns)
		for _, name := range files {
			if got := keeps(rules, name); got != want[name] {
				t.Errorf("%q: git keeps %q: %v, this: %v", patterns, name, want[name], got)
			}
		}
	})
}

func TestPatternsOfADirectoryApplyBelowIt(t *testing.T) {
	r := parsed(t, "sub", "/foo\n*.c\n")
	for name, out := range map[string]bool{"sub/foo": true, "foo": false, "sub/x/foo": false, "sub/x/a.c": true, "a.c": false, "subx/a.c": false} {
		if _, got, err := r.Decide(name, false, &Budget{100}); got != out || err != nil {
			t.Errorf("%s is left out: %v", name, got)
		}
	}
}

// hostile are globs that cost exponential or quadratic work in a matcher that tries all
// stars again.
var hostile = []string{
	strings.Repeat("*a", 500) + "!",
	strings.Repeat("*a", 120) + "*b",
	"*" + strings.Repeat("a", 200) + "b",
	strings.Repeat("**/a/", 100) + "b",
	"/**/" + strings.Repeat("*a*/", 60) + "b",
	"**/" + strings.Repeat("*", 1000) + "a/b",
	strings.Repeat("[[:alpha:]]*", 80) + "b/",
	"[" + strings.Repeat("[:", 1000) + "]",
	strings.Repeat("?*", 300) + "[!a]",
}

func match(glob, text string, path bool) (bool, int) {
	r := rule{glob: glob, anchored: path}
	r.plan()
	return r.match(text)
}

func TestAHostileGlobCostsBoundedSteps(t *testing.T) {
	for _, text := range []string{strings.Repeat("a", 255), strings.Repeat("a/", 2000) + "a", strings.Repeat("aaaaaaaa/", 400) + "a"} {
		for _, glob := range hostile {
			for _, path := range []bool{false, true} {
				ok, steps := match(glob, text, path)
				if bound := 3 * (len(glob) + 1) * (len(text) + 1); ok || steps > bound {
					t.Errorf("match(%.20q, %.20q, %v) is %v after %d steps, want at most %d", glob, text, path, ok, steps, bound)
				}
				if n := testing.AllocsPerRun(1, func() { match(glob, text, path) }); n > 0 {
					t.Errorf("match(%.20q, %.20q, %v) allocates %v times", glob, text, path, n)
				}
			}
		}
	}
}

func TestManyAndLongPatternsAreAnErrorThatNamesTheLine(t *testing.T) {
	for content, want := range map[string]string{
		"a\n\n" + strings.Repeat("b", MaxPattern+1):        "line 3: the pattern has 4097 bytes",
		"#\n" + strings.Repeat("a\n", MaxPatterns+1):       "line 10002: there are more than 10000 patterns",
		"#" + strings.Repeat("x", 2*MaxPattern) + "\n!a\n": "",
	} {
		if _, err := Parse("", content); want == "" && err != nil || want != "" && (err == nil || !strings.HasPrefix(err.Error(), want)) {
			t.Errorf("%.10q gives %v, want %q", content, err, want)
		}
	}
}

func TestTheBudgetEndsWithAnErrorThatNamesTheLine(t *testing.T) {
	r := parsed(t, "", "b\n# no pattern\n"+strings.Repeat("*a", 50)+"*b\nc\n")
	budget := Budget{2000}
	for range 1000 {
		if _, _, err := r.Decide(strings.Repeat("a", 255), false, &budget); err != nil {
			if !strings.HasPrefix(err.Error(), "line 3: ") {
				t.Errorf("got %v", err)
			}
			return
		}
	}
	t.Errorf("no error; %d steps are left", budget.Left)
}
