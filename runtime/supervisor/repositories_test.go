package supervisor_test

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	guestv1 "github.com/agbox/agbox/proto/guest/v1"
	"github.com/agbox/agbox/workspace/archive"
)

// searched returns what a search for repositories finds below a folder, sorted.
func (d *desk) searched(most uint64) (found []string) {
	d.t.Helper()
	tr, err := d.transfer(&guestv1.TransferRequest{Kind: &guestv1.TransferRequest_Out{Out: &guestv1.OutTransfer{
		Path: []byte(d.root), Name: []byte("."), Follow: true, Work: &guestv1.WorkScan{Gitignore: true, RepositoriesWithin: most},
	}}})
	d.must(err)
	text, err := all(tr)
	d.must(err)
	for files := tar.NewReader(strings.NewReader(text)); ; {
		h, err := files.Next()
		if errors.Is(err, io.EOF) {
			slices.Sort(found)
			return found
		}
		d.must(err)
		if h.PAXRecords[archive.UnsearchedRecord] != "" {
			h.Name += " and more"
		}
		found = append(found, fmt.Sprintf("%s %c", h.Name, h.Typeflag))
	}
}

func TestRepositoriesAreFoundInIgnoredFoldersAndWithinBounds(t *testing.T) {
	d := newDesk(t)
	for _, dir := range []string{".git/x/.git", "lib/.git/modules/.git", "ign/m/.git", "ign/tree", "elsewhere"} {
		d.must(os.MkdirAll(d.path(dir), 0o755))
	}
	d.put(".gitignore", "ign")
	d.put("ign/tree/.git", "gitdir: x")
	d.must(os.Symlink("ign", d.path("link")))
	if got, want := d.searched(1000), []string{"ign/m/.git/ 5", "ign/tree/.git 0", "lib/.git/ 5"}; !slices.Equal(got, want) {
		t.Errorf("%q were found, want %q", got, want)
	}
	if got := d.searched(2); !slices.Equal(got, []string{"./ and more 5"}) && (len(got) == 0 || !strings.HasSuffix(got[len(got)-1], " and more 5")) {
		t.Errorf("within bounds %q were found", got)
	}
	deep := strings.Repeat("d/", 102)
	d.must(os.MkdirAll(filepath.Join(d.path("ign"), deep), 0o755))
	if got := d.searched(1000); len(got) != 4 || !slices.ContainsFunc(got, func(s string) bool { return strings.HasPrefix(s, "ign/d/d/") && strings.HasSuffix(s, "d/ and more 5") }) {
		t.Errorf("with deep folders %q were found", got)
	}
}

// A search reads no file, and few of the folders that hold most of the files of a workspace.
func BenchmarkSearchForRepositories(b *testing.B) {
	d := newDesk(b)
	for i := range 1000 {
		dir := d.path(fmt.Sprintf("node_modules/p%d/lib", i))
		d.must(os.MkdirAll(dir, 0o755))
		for j := range 100 {
			d.must(os.WriteFile(filepath.Join(dir, fmt.Sprint(j)), nil, 0o644))
		}
	}
	for b.Loop() {
		if got := d.searched(1_000_000); len(got) > 0 {
			b.Fatalf("%q were found", got)
		}
	}
}
