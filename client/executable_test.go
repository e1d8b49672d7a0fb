package client

import (
	"archive/tar"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// TestACopyLeavesOutWhatTheHostWouldExecuteInAnyOrder: the sandbox chooses names, kinds and
// order of what it sends.
func TestACopyLeavesOutWhatTheHostWouldExecuteInAnyOrder(t *testing.T) {
	file := func(name string) *tar.Header { return &tar.Header{Name: "copy/" + name} }
	link := func(name, to string, kind byte) *tar.Header {
		return &tar.Header{Name: "copy/" + name, Linkname: to, Typeflag: kind}
	}
	dir := func(name string) *tar.Header { return &tar.Header{Name: "copy/" + name + "/", Typeflag: tar.TypeDir} }
	for name, c := range map[string]struct {
		entries     []*tar.Header
		there, left string
	}{
		"a file":                    {[]*tar.Header{file("a"), file("x/.envrc")}, "a", "x/.envrc"},
		"another case":              {[]*tar.Header{file(".Claude/SETTINGS.json")}, "", ".Claude/SETTINGS.json"},
		"a link in its folder":      {[]*tar.Header{file("evil/settings.json"), link(".claude", "evil", tar.TypeSymlink)}, "evil/settings.json", ".claude"},
		"the same as before":        {[]*tar.Header{link(".idea", "same", tar.TypeSymlink), file("b")}, ".idea b", ""},
		"a hard link to it":         {[]*tar.Header{file(".envrc"), link("a", "copy/.envrc", tar.TypeLink)}, "", ".envrc a"},
		"a hard link that it is":    {[]*tar.Header{file("a"), link(".envrc", "copy/a", tar.TypeLink)}, "a", ".envrc"},
		"a bare repository":         {[]*tar.Header{file("d/HEAD"), file("d/config"), dir("d/objects"), dir("d/refs"), file("d/refs/x"), file("d/src")}, "d/HEAD d/config d/src", "d"},
		"in another order":          {[]*tar.Header{dir("d/refs"), file("d/objects/x"), file("d/src"), file("d/HEAD")}, "d/objects/x d/src", "d"},
		"of links":                  {[]*tar.Header{link("d/refs", "r", tar.TypeSymlink), link("d/objects", "o", tar.TypeSymlink), file("d/HEAD")}, "d/objects d/refs", "d"},
		"with its parts elsewhere":  {[]*tar.Header{file("d/HEAD"), file("d/commondir")}, "d/HEAD", "d"},
		"with what is there":        {[]*tar.Header{file("half/HEAD"), file("half/a")}, "half/a", "half"},
		"in one that is there":      {[]*tar.Header{file("bare/HEAD"), file("bare/config"), file("bare/hooks/x"), file("bare/objects/x")}, "bare/HEAD bare/objects/x", "bare/config bare/hooks/x"},
		"a .git":                    {[]*tar.Header{dir(".git"), file(".git/HEAD"), file(".git/x/y"), file("sub/.GIT/HEAD")}, "", ".git sub/.GIT"},
		"a .git file":               {[]*tar.Header{file("sub/.git"), file("sub/a")}, "sub/a", "sub/.git"},
		"a .git that is a link":     {[]*tar.Header{link("sub/.git", "../evil", tar.TypeSymlink)}, "", "sub/.git"},
		"a folder that is like one": {[]*tar.Header{file("src/HEAD"), file("src/refs/a"), file("src/config")}, "src/HEAD src/config src/refs/a", ""},
	} {
		t.Run(name, func(t *testing.T) {
			to := t.TempDir()
			put := func(names ...string) {
				for _, name := range names {
					at := filepath.Join(to, "copy", name)
					if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
						t.Fatal(err)
					}
					if err := os.WriteFile(at, []byte("old"), 0o600); err != nil {
						t.Fatal(err)
					}
				}
			}
			put("half/objects", "half/refs", "bare/HEAD", "bare/objects/o", "bare/refs/r", "bare/config")
			if err := os.Symlink("same", filepath.Join(to, "copy/.idea")); err != nil {
				t.Fatal(err)
			}
			before := filesOf(t, filepath.Join(to, "copy"))
			raw := tarred(t, c.entries...)
			cl, _ := serveFiles(t, &fileScript{stat: isDir, out: func(_ *agboxv1.CopyOutRequest, out grpc.ServerStreamingServer[agboxv1.CopyOutResponse]) error {
				return out.Send(&agboxv1.CopyOutResponse{Data: raw})
			}})
			got, err := cl.CopyFrom(t.Context(), "box", "/copy", to, CopyOptions{Executable: func(Executable) bool { return false }})
			if err != nil {
				t.Fatal(err)
			}
			var left []string
			for _, one := range got.Left {
				rel, _ := filepath.Rel(filepath.Join(to, "copy"), one.Path)
				left = append(left, rel)
			}
			now := filesOf(t, filepath.Join(to, "copy"))
			var there []string
			for name, content := range now {
				if before[name] != content || slices.Contains(strings.Fields(c.there), name) {
					there = append(there, name)
				}
			}
			slices.Sort(there)
			if strings.Join(there, " ") != c.there || strings.Join(left, " ") != c.left {
				t.Errorf("there is %q, want %q; left out is %q, want %q", there, c.there, left, c.left)
			}
			// With a yes, everything comes.
			if got, err = cl.CopyFrom(t.Context(), "box", "/copy", to, CopyOptions{}); err != nil || len(got.Left) > 0 {
				t.Errorf("with a yes: %v, %v", got.Left, err)
			}
		})
	}
}

// filesOf returns the files of a folder with what they have.
func filesOf(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := make(map[string]string)
	err := filepath.WalkDir(dir, func(at string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		rel, _ := filepath.Rel(dir, at)
		raw, err := os.ReadFile(at)
		if err != nil {
			raw = []byte("a link")
		}
		all[rel] = string(raw)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}
