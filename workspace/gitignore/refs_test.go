package gitignore

import (
	"errors"
	"strings"
	"testing"
)

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
