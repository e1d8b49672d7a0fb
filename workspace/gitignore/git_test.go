package gitignore

import (
	"encoding/binary"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestTheIndexOfGitSaysWhatIsTracked(t *testing.T) {
	for _, format := range []string{"sha1", "sha256"} {
		for _, version := range []string{"2", "3", "4"} {
			dir := t.TempDir()
			git := func(args ...string) string {
				t.Helper()
				cmd := exec.CommandContext(t.Context(), "git", append([]string{"-C", dir}, args...)...)
				cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1")
				out, err := cmd.CombinedOutput()
				if err != nil {
					t.Fatalf("%v: %s", err, out)
				}
				return string(out)
			}
			git("init", "-q", "--object-format="+format)
			for _, name := range []string{".gitignore", "a", "dist/" + strings.Repeat("long", 50), "dist/x.js", "dist/y.js", "new", "not added"} {
				name = filepath.Join(dir, name)
				if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(name, []byte("dist/\n"), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if err := os.Symlink("a", filepath.Join(dir, "dist/link")); err != nil {
				t.Fatal(err)
			}
			git("add", "-f", ".gitignore", "a", "dist")
			git("add", "-N", "new") // makes it version 3 at least
			git("update-index", "--index-version="+version)
			index, err := os.ReadFile(filepath.Join(dir, ".git/index"))
			if err != nil {
				t.Fatal(err)
			}
			size := map[string]int{"sha1": 20, "sha256": 32}[format]
			got, err := Tracked(index, size)
			if want := strings.Split(strings.TrimSuffix(git("ls-files", "-z"), "\x00"), "\x00"); !slices.Equal(got, want) || err != nil {
				t.Errorf("%s, version %s: %q, want %q", format, version, got, want)
			}
			for cut := range index { // damaged ones are read as far as that goes
				if got, err := Tracked(index[:cut], size); err == nil && len(got) < 6 {
					t.Errorf("%d bytes of %d are whole: %q", cut, len(index), got)
				}
			}
		}
	}
}

// Git may keep most of an index elsewhere, or name a folder instead of its files.
func TestAnIndexThatDoesNotNameAllFilesIsNotWhole(t *testing.T) {
	for name, script := range map[string]string{
		"split":        "git update-index --split-index; echo b >b; git add b",
		"with folders": "git sparse-checkout set --cone --sparse-index in",
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			cmd := exec.CommandContext(t.Context(), "sh", "-ec", "git init -q; mkdir in out; touch in/i out/o; git add .; git -c user.name=a -c user.email=a commit -q -m a; "+script)
			cmd.Dir, cmd.Env = dir, append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1")
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			index, err := os.ReadFile(filepath.Join(dir, ".git/index"))
			if err != nil {
				t.Fatal(err)
			}
			if got, err := Tracked(index, 20); err == nil {
				t.Errorf("it is whole with %q", got)
			}
		})
	}
}

func FuzzTracked(f *testing.F) {
	f.Add([]byte("DIRC\x00\x00\x00\x04\x00\x00\x00\x02" + strings.Repeat("\x00", 62) + "\x00a\x00"))
	f.Fuzz(func(t *testing.T, index []byte) {
		if got, _ := Tracked(index, 20); len(got) > len(index) {
			t.Errorf("%d paths of %d bytes", len(got), len(index))
		}
	})
}

// TestAnIndexWhosePathsShareTheirBeginningsIsBounded: a few bytes stand for a path of thousands.
func TestAnIndexWhosePathsShareTheirBeginningsIsBounded(t *testing.T) {
	entry := func(cut byte, path string) string {
		stat := make([]byte, 40+20+2)
		binary.BigEndian.PutUint32(stat[24:], 0o100644)
		return string(stat) + string([]byte{cut}) + path + "\x00"
	}
	const entries = 40_000
	index := "DIRC" + string(binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, 4), entries)) +
		entry(0, strings.Repeat("a", 4000)) + strings.Repeat(entry(1, "b"), entries-1)
	total := 0
	paths, err := Tracked([]byte(index), 20)
	if !errors.Is(err, ErrPaths) {
		t.Error("an index beyond the bound is whole")
	}
	for _, path := range paths {
		total += len(path)
	}
	if total < maxTracked-maxPath || total > maxTracked {
		t.Errorf("%d bytes of index became %d bytes of paths", len(index), total)
	}
}

func TestHeadNamesACommit(t *testing.T) {
	one, two := strings.Repeat("1", 40), strings.Repeat("2", 64)
	failed := errors.New("it failed")
	for what, c := range map[string]struct {
		files map[string]string
		want  string
		err   error
	}{
		"no repository":           {nil, "", nil},
		"no commit":               {map[string]string{"HEAD": "ref: refs/heads/main"}, "", nil},
		"detached":                {map[string]string{"HEAD": two}, two, nil},
		"a branch":                {map[string]string{"HEAD": "ref: refs/heads/a/b", "refs/heads/a/b": one}, one, nil},
		"without a space":         {map[string]string{"HEAD": "ref:refs/heads/a", "refs/heads/a": one}, one, nil},
		"a packed branch":         {map[string]string{"HEAD": "ref: refs/heads/a", "packed-refs": "# pack-refs\n" + two + " refs/heads/b\n" + one + " refs/heads/a\n^" + two}, one, nil},
		"a newer one":             {map[string]string{"HEAD": "ref: refs/heads/a", "refs/heads/a": two, "packed-refs": one + " refs/heads/a"}, two, nil},
		"a symbolic branch":       {map[string]string{"HEAD": "ref: refs/heads/a", "refs/heads/a": "ref: refs/heads/b", "packed-refs": one + " refs/heads/b"}, one, nil},
		"references in tables":    {map[string]string{"HEAD": "ref: refs/heads/.invalid"}, "", ErrReferences},
		"a loop":                  {map[string]string{"HEAD": "ref: refs/heads/a", "refs/heads/a": "ref: refs/heads/a"}, "", ErrReferences},
		"a file elsewhere":        {map[string]string{"HEAD": "ref: refs/heads/../../../x"}, "", ErrReferences},
		"another file of .git":    {map[string]string{"HEAD": "ref: config"}, "", ErrReferences},
		"something else":          {map[string]string{"HEAD": "main"}, "", ErrReferences},
		"a branch that is no hex": {map[string]string{"HEAD": "ref: refs/heads/a", "refs/heads/a": "x"}, "", ErrReferences},
		"a failure":               {map[string]string{"HEAD": "ref: refs/heads/fails"}, "", failed},
	} {
		got, err := HeadCommit(func(name string) (string, error) {
			if strings.HasSuffix(name, "fails") {
				return "", failed
			}
			return c.files[name], nil
		})
		if got != c.want || !errors.Is(err, c.err) || (err == nil) != (c.err == nil) {
			t.Errorf("%s: %q, %v", what, got, err)
		}
	}
}

func TestTheFoldersOfAWorkTree(t *testing.T) {
	files := map[string]string{"/w/.git/worktrees/x/commondir": "../..", "/abs/x/commondir": "/else/"}
	read := func(name string) (string, error) { return files[name], nil }
	for text, want := range map[string][2]string{
		"gitdir: ../.git/worktrees/x": {"/w/.git/worktrees/x", "/w/.git"},
		"gitdir: /abs/x/":             {"/abs/x", "/else"},
		"gitdir: ../.git/modules/x":   {"/w/.git/modules/x", "/w/.git/modules/x"},
		"else":                        {},
		"":                            {},
	} {
		if own, common, err := WorkTree("/w/x", text, read); own != want[0] || common != want[1] || err != nil {
			t.Errorf("%q: %s, %s, %v", text, own, common, err)
		}
	}
}
