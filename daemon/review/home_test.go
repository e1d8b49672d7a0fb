package review

import (
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// advanced makes files the base of a sandbox: by a commit of a branch, or of the folder if that is
// empty. An empty content removes the file.
func advanced(t *testing.T, dir, commit string, files map[string]string) {
	t.Helper()
	a, err := BeginAdvance(t.Context(), dir, commit != "")
	if err != nil {
		t.Fatal(err)
	}
	a.By(commit, "", nil)
	for _, path := range slices.Sorted(maps.Keys(files)) {
		if files[path] == "" {
			a.Remove(path)
			continue
		}
		a.Replace(path, false, false)
		a.Content([]byte(files[path]))
	}
	if err := a.Commit(); err != nil {
		t.Fatal(err)
	}
}

func TestOneComparisonFindsWhatCameHomeBefore(t *testing.T) {
	const commit = "0123456789012345678901234567890123456789"
	files := map[string]string{"branch": "1", "folder": "1", "back": "1", "same": "1", "gone": "1", "hidden.log": "1", "again": "1"}
	home := []string{"workspace/.gitignore=*.log\nout\n", "workspace/branch=2", "workspace/folder=2", "workspace/back=1", "workspace/same=1", "workspace/new=2", "workspace/hidden.log=other", "workspace/again=1"}
	for _, one := range []struct {
		name, more string
		o          Options
		lost       []string
		want       string
	}{
		{"home", "", Options{Home: true}, nil, "branch -true +true, folder -true +true, gone -true +false, new -false +true"},
		{"not asked for", "", Options{}, nil, ""},
		{"there is more", "workspace/more=1", Options{Home: true}, nil, "branch -true +true, folder -true +true, gone -true +false, new -false +true"},
		{"with what is ignored", "", Options{Home: true, All: true}, nil, "branch -true +true, folder -true +true, gone -true +false, new -false +true"}, // hidden.log is a difference then
		{"the branch is lost", "", Options{Home: true}, []string{commit}, "folder -true +true"},
	} {
		c, _ := compared(t, files)
		dir := c.review.paths.GuestBase("s")
		advanced(t, dir, "", map[string]string{".gitignore": "*.log\nout\n", "folder": "2", "back": "2", "hidden.log": "", "again": "2"})
		advanced(t, dir, "", map[string]string{"again": "1", "back": "1"})
		advanced(t, dir, commit, map[string]string{"branch": "2", "gone": "", "new": "2"})
		base, err := c.review.Open("s", nil, agboxv1.WorkBase_WORK_BASE_UNSPECIFIED, Commits{Lost: one.lost})
		if err != nil {
			t.Fatal(err)
		}
		defer base.Close()
		var all []entry
		for _, text := range append(slices.Clone(home), one.more) {
			if name, content, ok := strings.Cut(text, "="); ok {
				all = append(all, entry{name: name, content: content})
			}
		}
		var got []string
		err = c.review.CompareStopped(t.Context(), "s", base, one.o, packed(t, all...), func(m *agboxv1.CompareWorkspaceResponse) error {
			if d := m.GetHome(); d != nil && string(d.GetPath()) != ".gitignore" {
				got = append(got, fmt.Sprintf("%s -%v +%v", d.GetPath(), d.GetBefore() != nil, d.GetAfter() != nil))
			}
			return nil
		})
		slices.Sort(got)
		if text := strings.Join(got, ", "); err != nil || text != one.want {
			t.Errorf("%s: %v: %q, want %q", one.name, err, text, one.want)
		}
	}
}

// Files of the base and new ones are told apart, and of the latter those whose name was copied in.
func TestOneComparisonTellsWhatAnIndexDoesNotName(t *testing.T) {
	dir := t.TempDir()
	names := make([]string, 0, partSize+3)
	for i := range partSize + 1 {
		names = append(names, fmt.Sprintf("many/%d", i))
	}
	index := func(names ...string) string {
		if err := os.RemoveAll(filepath.Join(dir, ".git")); err != nil {
			t.Fatal(err)
		}
		for _, args := range [][]string{{"init", "-q"}, append([]string{"add"}, names...)} {
			cmd := exec.Command("git", args...)
			cmd.Dir = dir
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
		}
		text, err := os.ReadFile(filepath.Join(dir, ".git/index"))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	files := make(map[string]string)
	for _, name := range append(names, "a", "b", "new", "again") {
		files[name] = "1"
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte("1"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	delete(files, "new")
	a, b, both, none, fresh := index("a", "many"), index("b", "many"), index("a", "b", "many"), index("a"), index("a", "new", "again", "many")
	for name, one := range map[string]struct {
		before, after string
		o             Options
		want          string
		named         bool
	}{
		"new ones":                {fresh, fresh, Options{Index: true}, "b/true", true},
		"new ones meanwhile":      {a, fresh, Options{Index: true}, "b/true", false},
		"new ones taken out":      {fresh, a, Options{Index: true}, "b/true", false},
		"whole":                   {a, a, Options{Index: true}, "b/true", false},
		"two parts":               {none, none, Options{Index: true}, strings.Join(slices.Sorted(slices.Values(append(slices.Clone(names), "b"))), "/") + "/true", false},
		"added meanwhile":         {a, both, Options{Index: true}, "b/true", false},
		"taken out meanwhile":     {both, a, Options{Index: true}, "b/true", false},
		"another one meanwhile":   {a, b, Options{Index: true}, "a/b/true", false},
		"damaged":                 {a[:20], a[:20], Options{Index: true}, "", false},
		"damaged meanwhile":       {a, a[:20], Options{Index: true}, "", false},
		"not asked for":           {a, a, Options{}, "", false},
		"a folder in its place":   {"", "", Options{Index: true}, "", false},
		"replaced by a folder":    {a, "", Options{Index: true}, "", false},
		"the folder is one again": {"", a, Options{Index: true}, "", false},
	} {
		c, _ := compared(t, files)
		advanced(t, c.review.paths.GuestBase("s"), strings.Repeat("1", 40), map[string]string{"again": ""})
		base, err := c.review.Open("s", nil, agboxv1.WorkBase_WORK_BASE_UNSPECIFIED, Commits{})
		if err != nil {
			t.Fatal(err)
		}
		defer base.Close()
		c.base, c.o, c.seen = base, one.o, map[string]bool{"a": true, "new": true, "again": true}
		var got, fresh []string
		c.send = func(m *agboxv1.CompareWorkspaceResponse) error {
			if i := m.GetIndex(); i != nil {
				if len(i.GetUnnamed()) > partSize {
					t.Errorf("%s: a part has %d files", name, len(i.GetUnnamed()))
				}
				for _, f := range i.GetUnnamed() {
					got = append(got, string(f.GetPath()))
				}
				for _, f := range i.GetFresh() {
					fresh = append(fresh, fmt.Sprintf("%s %v", f.GetPath(), f.GetFile() != nil))
				}
				if i.GetComplete() {
					slices.Sort(got)
					got = append(got, "true")
				}
			}
			return nil
		}
		text := one.before
		s := &stopped{comparison: c, open: func(context.Context, string) (io.ReadCloser, error) {
			if text == "" { // each file in it looks like an index
				return packed(t, entry{name: "workspace/1", content: a}, entry{name: "workspace/2", content: a})(t.Context(), "/workspace")
			}
			return packed(t, entry{name: "index", content: text})(t.Context(), "/index")
		}}
		_, err = s.trackedIn(t.Context())
		text = one.after
		if err == nil {
			err = c.sendIndex(t.Context(), s.trackedIn)
		}
		if text := strings.Join(got, "/"); err != nil || text != one.want {
			t.Errorf("%s: %v: %q, want %q", name, err, text, one.want)
		}
		if slices.Sort(fresh); one.want != "" && slices.Equal(fresh, []string{"again true", "new false"}) == one.named {
			t.Errorf("%s: new and not named are %q", name, fresh)
		}
	}
}
