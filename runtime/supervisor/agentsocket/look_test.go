package agentsocket

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/agbox/agbox/agents/journal"
)

// nobody is an As that expects a user, and changes no rights.
func nobody(t *testing.T, want string) As {
	return func(user string, fn func() error) error {
		if user != want {
			t.Errorf("looked as %q; want %q", user, want)
		}
		return fn()
	}
}

func TestAUserWhomThereIsNotSeesNoFile(t *testing.T) {
	name := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(name, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	none := func(string, func() error) error { return errors.New("there is no such user") }
	if f, looked := Look(none, "x", []string{name}).Files[name]; !looked || f != (journal.File{}) {
		t.Errorf("it sees %+v", f)
	}
}

func TestALookSaysWhatIsThereAndWaitsForNothing(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	for name, size := range map[string]int{"small": 3, "largest": maxSummed, "large": maxSummed + 1} {
		if err := os.WriteFile(at(name), []byte(strings.Repeat("x", size)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mkfifo(at("fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	files := Look(nobody(t, "agent"), "agent", []string{at("small"), at("largest"), at("large"), at("fifo"), at("none"), dir, "relative", "/dev/zero"}).Files
	if f := files[at("small")]; !f.Exists || f.Size != 3 || f.Modified == 0 || f.Inode == 0 || f.Sum != "cd2eb0837c9b4c962c22d2ff8b5441b7b45805887f051d39bf133b583baf6860" {
		t.Errorf("a small file: %+v", f)
	}
	if f := files[at("largest")]; f.Sum == "" {
		t.Errorf("a file of 1 MiB: %+v", f)
	}
	if f := files[at("large")]; !f.Exists || f.Sum != "" || f.Size != maxSummed+1 {
		t.Errorf("a larger file: %+v", f)
	}
	for _, name := range []string{at("fifo"), at("none"), dir, "relative", "/dev/zero"} {
		if f, looked := files[name]; !looked || f != (journal.File{}) {
			t.Errorf("%s: %+v", name, f)
		}
	}
}

func TestTheFilesOfAManifestAreWatched(t *testing.T) {
	w := watched{"/held"}.add([]byte(`{"manifest":[{"resource":"file:/a"},{"resource":"db"},{"resource":"file:/held"},{"resource":"file:/` + strings.Repeat("x", maxPath) + `"}]}`))
	if w = w.add([]byte(`[]`)); strings.Join(w, " ") != "/held /a" {
		t.Errorf("watched: %q", w)
	}
	for range 3 {
		w = w.add([]byte(`{"manifest":[` + strings.Repeat(`{"resource":"file:/b"},`, 200) + `{"resource":"file:/c"}]}`))
	}
	if len(w) != 4 {
		t.Errorf("watched: %q", w)
	}
}
