package review

import (
	"archive/tar"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/agbox/agbox/daemon/bases"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// advanced makes files the base of a sandbox: by a commit of a branch, or of the folder if that is
// empty. An empty content removes the file.
func advanced(t *testing.T, dir, commit string, files map[string]string) {
	t.Helper()
	a, err := bases.Begin(t.Context(), dir, commit != "")
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
		base, err := c.review.Open("s", nil, agboxv1.WorkBase_WORK_BASE_UNSPECIFIED, one.lost...)
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

func TestOneComparisonTellsWhatAnIndexDoesNotName(t *testing.T) {
	dir := t.TempDir()
	for _, args := range [][]string{{"init", "-q", dir}, {"-C", dir, "add", "a"}} {
		if err := os.WriteFile(filepath.Join(dir, "a"), []byte("1"), 0o600); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command("git", args...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	index, err := os.ReadFile(filepath.Join(dir, ".git/index"))
	if err != nil {
		t.Fatal(err)
	}
	for name, one := range map[string]struct {
		index string
		o     Options
		want  string
	}{
		"whole":         {string(index), Options{Index: true}, "b c true"},
		"damaged":       {string(index[:20]), Options{Index: true}, ""},
		"not asked for": {string(index), Options{}, ""},
	} {
		c, _ := compared(t, map[string]string{"a": "1", "b": "1", "c": "1"})
		got := ""
		c.o = one.o
		c.send = func(m *agboxv1.CompareWorkspaceResponse) error {
			if i := m.GetIndex(); i != nil {
				for _, f := range i.GetUnnamed() {
					got += string(f.GetPath()) + " "
				}
				got += fmt.Sprint(i.GetComplete())
			}
			return nil
		}
		_, err := c.indexed(&tar.Header{Typeflag: tar.TypeReg, Size: int64(len(one.index))}, strings.NewReader(one.index))
		if err != nil || got != one.want {
			t.Errorf("%s: %v: %q, want %q", name, err, got, one.want)
		}
	}
}
