package archive

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// plenty is more than any of the test archives has.
var plenty = Bounds{Files: 1000, Bytes: 1 << 30}

func relay(raw []byte, most Bounds) ([]byte, error) {
	var out bytes.Buffer
	err := Relay(context.Background(), &out, bytes.NewReader(raw), "copy", most, func(int64, int64) {})
	return out.Bytes(), err
}

// TestARelayedTreeIsTheTree: names, contents, owners, modes, times and attributes arrive.
func TestARelayedTreeIsTheTree(t *testing.T) {
	from, to := t.TempDir(), t.TempDir()
	zoo(t, filepath.Join(from, "zoo"))
	src, err := os.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	var raw bytes.Buffer
	if err := Pack(t.Context(), &raw, int(src.Fd()), "zoo", PackOptions{Name: "copy"}); err != nil {
		t.Fatal(err)
	}
	relayed, err := relay(raw.Bytes(), plenty)
	if err != nil {
		t.Fatal(err)
	}
	dst, err := os.Open(to)
	if err != nil {
		t.Fatal(err)
	}
	defer dst.Close()
	if _, err := Unpack(t.Context(), bytes.NewReader(relayed), int(dst.Fd()), UnpackOptions{Only: "copy", KeepOwner: os.Geteuid() == 0, KeepPrivileges: true}); err != nil {
		t.Fatal(err)
	}
	if want, have := describe(t, filepath.Join(from, "zoo")), describe(t, filepath.Join(to, "copy")); !maps.Equal(want, have) {
		t.Errorf("the tree is\n%v\nwant\n%v", have, want)
	}
}

func TestWhatIsNotRelayed(t *testing.T) {
	device := &tar.Header{Name: "copy/dev", Typeflag: tar.TypeBlock, Devmajor: 8}
	for name, row := range map[string]struct {
		raw  []byte
		most Bounds
		want string
	}{
		"an absolute name":       {tarOf(t, dir("copy"), "/etc/passwd"), plenty, "absolute"},
		"a name that leads out":  {tarOf(t, dir("copy"), "copy/../../x"), plenty, "leads out"},
		"another tree":           {tarOf(t, dir("copy"), "other"), plenty, "is not the requested"},
		"a link to the outside":  {tarOf(t, dir("copy"), hardLink("copy/x", "/etc/shadow")), plenty, "outside the target"},
		"a link to another tree": {tarOf(t, dir("copy"), hardLink("copy/x", "other")), plenty, "outside the target"},
		"an empty symbolic link": {tarOf(t, dir("copy"), symlink("copy/x", "")), plenty, "invalid target"},
		"an unknown type":        {tarOf(t, dir("copy"), &tar.Header{Name: "copy/x", Typeflag: 'Z'}), plenty, "unknown type"},
		"too many files":         {tarOf(t, dir("copy"), "copy/a", "copy/b"), Bounds{2, 1 << 20}, "too many files"},
		"too many devices":       {tarOf(t, dir("copy"), device, device), Bounds{2, 1 << 20}, "too many files"},
		"too many bytes":         {tarOf(t, dir("copy"), "copy/a", "copy/b"), Bounds{10, 13}, "larger than it may be"},
		"a link in its place":    {tarOf(t, symlink("copy", "/etc")), plenty, "is no folder"},
		"a file in its place":    {tarOf(t, "copy"), plenty, "is no folder"},
		"half an archive":        {tarOf(t, dir("copy"), "copy/a")[:1024+3], plenty, "ends too early"},
		"no archive":             {bytes.Repeat([]byte("x"), 2048), plenty, "is damaged"},
	} {
		_, err := relay(row.raw, row.most)
		if !IsRefusal(err) || !strings.Contains(err.Error(), row.want) {
			t.Errorf("%s: %v; want %q", name, err, row.want)
		}
	}
	got, err := relay(tarOf(t, dir("copy"), device, "copy/a", symlink("copy/l", "/etc/shadow"), hardLink("copy/h", "copy/a")), plenty)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for r := tar.NewReader(bytes.NewReader(got)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, h.Name+h.Linkname)
	}
	if want := "copy copy/a copy/l/etc/shadow copy/hcopy/a"; strings.Join(names, " ") != want {
		t.Errorf("relayed is %q; want %q", names, want)
	}
}

// TestAFileOfHolesIsNotRelayedForEver: the bound is that of the claimed sizes, so the zeros of a
// file that has nothing are not even read.
func TestAFileOfHolesIsNotRelayedForEver(t *testing.T) {
	var head bytes.Buffer
	w := tar.NewWriter(&head)
	if err := w.WriteHeader(dir("copy")); err != nil {
		t.Fatal(err)
	}
	if err := w.WriteHeader(&tar.Header{Name: "copy/holes", Typeflag: tar.TypeReg, Size: 1 << 60, Mode: 0o600}); err != nil {
		t.Fatal(err)
	}
	err := Relay(t.Context(), io.Discard, io.MultiReader(&head, zeros{}), "copy", Bounds{10, 8 << 30}, func(int64, int64) {})
	if !IsRefusal(err) {
		t.Errorf("it ends with %v", err)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// TestARelayKeepsTheErrorOfItsSource: a sandbox that went away is no damaged archive.
func TestARelayKeepsTheErrorOfItsSource(t *testing.T) {
	gone := errors.New("gone")
	raw := tarOf(t, dir("copy"), "copy/a")
	for _, n := range []int{0, 100, 512, 1024, 1030} {
		err := Relay(t.Context(), io.Discard, io.MultiReader(bytes.NewReader(raw[:n]), failing{gone}), "copy", plenty, func(int64, int64) {})
		if !errors.Is(err, gone) {
			t.Errorf("after %d bytes: %v", n, err)
		}
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

// TestARelayKeepsTheErrorOfItsDestination, which says more than what a reader of half a file would.
func TestARelayKeepsTheErrorOfItsDestination(t *testing.T) {
	full := errors.New("full")
	for n := 0; ; n++ {
		err := Relay(t.Context(), &failsAt{n, full}, bytes.NewReader(tarOf(t, dir("copy"), "copy/a")), "copy", plenty, func(int64, int64) {})
		if err == nil {
			break // it has no more writes
		}
		if !errors.Is(err, full) {
			t.Errorf("write %d: %v", n, err)
		}
	}
}

// failsAt is a writer that takes so many writes.
type failsAt struct {
	left int
	err  error
}

func (f *failsAt) Write(p []byte) (int, error) {
	if f.left--; f.left < 0 {
		return 0, f.err
	}
	return len(p), nil
}
