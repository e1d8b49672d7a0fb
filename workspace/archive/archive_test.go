package archive

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// sample is a time with nanoseconds.
var sample = time.Date(2001, 2, 3, 4, 5, 6, 789012345, time.UTC)

// tarOf makes an archive from headers and from names of regular files. Each regular file
// gets the content "hostile".
func tarOf(t testing.TB, entries ...any) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, e := range entries {
		h, ok := e.(*tar.Header)
		if !ok {
			h = &tar.Header{Name: e.(string), Typeflag: tar.TypeReg}
		}
		content := ""
		if h.Typeflag == tar.TypeReg || h.Typeflag == 0 {
			content, h.Size = "hostile", int64(len("hostile"))
		}
		if h.Mode == 0 {
			h.Mode = 0o644
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func regular(name string) *tar.Header { return &tar.Header{Name: name, Typeflag: tar.TypeReg} }
func dir(name string) *tar.Header {
	return &tar.Header{Name: name, Typeflag: tar.TypeDir, Mode: 0o755}
}
func symlink(name, to string) *tar.Header {
	return &tar.Header{Name: name, Typeflag: tar.TypeSymlink, Linkname: to}
}
func hardLink(name, to string) *tar.Header {
	return &tar.Header{Name: name, Typeflag: tar.TypeLink, Linkname: to}
}

// targetDir is a target directory and the files around it.
type targetDir struct {
	t            testing.TB
	root, target string
	before       map[string]string
}

func newTarget(t testing.TB) *targetDir {
	root := t.TempDir()
	a := &targetDir{t: t, root: root, target: filepath.Join(root, "target")}
	a.must(os.Mkdir(a.target, 0o755))
	a.must(os.Chmod(a.target, 0o755)) // independent of the umask
	a.must(os.Mkdir(filepath.Join(root, "outside"), 0o755))
	a.must(os.WriteFile(filepath.Join(root, "outside", "secret"), []byte("secret"), 0o600))
	a.must(os.WriteFile(filepath.Join(root, "x"), []byte("x"), 0o600))
	a.before = a.outside()
	return a
}

func (a *targetDir) must(err error) {
	a.t.Helper()
	if err != nil {
		a.t.Fatal(err)
	}
}

// outside describes all files around the target.
func (a *targetDir) outside() map[string]string {
	seen := make(map[string]string)
	a.must(filepath.WalkDir(a.root, func(p string, d fs.DirEntry, err error) error {
		a.must(err)
		if p == a.target {
			return fs.SkipDir
		}
		st, err := d.Info()
		a.must(err)
		content := ""
		if st.Mode().IsRegular() {
			raw, err := os.ReadFile(p)
			a.must(err)
			content = string(raw)
		}
		links := uint64(1)
		if !st.IsDir() {
			links = st.Sys().(*syscall.Stat_t).Nlink
		}
		seen[p] = fmt.Sprint(st.Mode(), links, content)
		return nil
	}))
	return seen
}

func (a *targetDir) unpack(raw []byte, o UnpackOptions) (Unpacked, error) {
	a.t.Helper()
	d, err := os.Open(a.target)
	a.must(err)
	defer d.Close()
	return Unpack(context.Background(), bytes.NewReader(raw), int(d.Fd()), o)
}

// wantOutsideAsBefore requires that nothing outside the target was changed.
func (a *targetDir) wantOutsideAsBefore() {
	a.t.Helper()
	after := a.outside()
	for p, was := range a.before {
		if after[p] != was {
			a.t.Errorf("%s was %q and is %q", p, was, after[p])
		}
	}
	for p := range after {
		if _, ok := a.before[p]; !ok {
			a.t.Errorf("%s was made outside the target", p)
		}
	}
}

// hostile has archives that try to change files outside the target. refused is a part of
// the expected refusal; "" expects any error, and "-" expects success. In names, ROOT is
// replaced by the directory around the target.
var hostile = []struct {
	name    string
	entries []any
	only    string
	refused string
}{
	{"dots", []any{"../../etc/x", "../outside/new"}, "", "leads out of the target"},
	{"dots in the middle", []any{dir("a"), "a/../../x"}, "", "leads out of the target"},
	{"only dots", []any{dir("..")}, "", "leads out of the target"},
	{"absolute name", []any{"ROOT/x"}, "", "absolute name"},
	{"absolute directory", []any{dir("ROOT/outside/new")}, "", "absolute name"},
	{"the target itself", []any{symlink(".", "ROOT/outside")}, "", "replace the target itself"},
	{"write through an absolute symbolic link", []any{symlink("l", "ROOT/outside"), "l/secret"}, "", "through the symbolic link"},
	{"write through a relative symbolic link", []any{symlink("l", "../outside"), "l/new"}, "", "through the symbolic link"},
	{"write through a link in a link", []any{dir("a"), symlink("a/l", ".."), symlink("m", "a/l"), "m/../x"}, "", "leads out of the target"},
	{"directory in a symbolic link", []any{symlink("l", "../outside"), dir("l/new")}, "", "through the symbolic link"},
	{"directory over a symbolic link", []any{symlink("l", "../outside"), dir("l"), "l/new"}, "", ""},
	{"symbolic link in a symbolic link", []any{symlink("l", "../outside"), symlink("l/m", "x")}, "", "through the symbolic link"},
	{"file over a symbolic link", []any{symlink("l", "../x"), "l"}, "", "-"},
	{"file over a symbolic link to a new name", []any{symlink("l", "../new"), "l"}, "", "-"},
	{"hard link out by dots", []any{hardLink("h", "../x"), "h"}, "", "outside the target"},
	{"hard link to an absolute name", []any{hardLink("h", "ROOT/x"), "h"}, "", "outside the target"},
	{"hard link through a symbolic link", []any{symlink("l", "../outside"), hardLink("h", "l/secret"), "h"}, "", "through the symbolic link"},
	{"hard link to a symbolic link, then a file", []any{symlink("l", "../x"), hardLink("h", "l"), "h"}, "", "-"},
	{"hard link to the target", []any{hardLink("h", ".")}, "", "outside the target"},
	{"hard link in a symbolic link", []any{symlink("l", "../outside"), "f", hardLink("l/h", "f")}, "", "through the symbolic link"},
	{"device", []any{&tar.Header{Name: "d", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 3}}, "", "is a device"},
	{"block device", []any{&tar.Header{Name: "d", Typeflag: tar.TypeBlock, Devmajor: 8}}, "", "is a device"},
	{"FIFO", []any{&tar.Header{Name: "p", Typeflag: tar.TypeFifo}}, "", "is a FIFO"},
	{"FIFO in a symbolic link", []any{symlink("l", "../outside"), &tar.Header{Name: "l/p", Typeflag: tar.TypeFifo}}, "", "is a FIFO"},
	{"another name than the requested one", []any{"good", ".bashrc"}, "good", "not the"},
	{"a name with the requested prefix", []any{"good2"}, "good", "not the"},
	{"hard link to another name", []any{hardLink("good", "present")}, "good", "outside the target"},
	{"unknown type", []any{&tar.Header{Name: "u", Typeflag: 'Q'}}, "", "unknown type"},
	{"too deep", []any{strings.Repeat("d/", 300) + "f"}, "", "directories deep"},
	{"mode of what is outside", []any{symlink("l", "../x"), &tar.Header{Name: "l", Typeflag: tar.TypeSymlink, Linkname: "../x", Mode: 0o777}}, "", "-"},
}

func TestHostileArchivesWriteNothingOutsideTheTarget(t *testing.T) {
	for _, c := range hostile {
		t.Run(c.name, func(t *testing.T) {
			a := newTarget(t)
			a.must(os.WriteFile(filepath.Join(a.target, "present"), []byte("present"), 0o600))
			for i, e := range c.entries {
				switch e := e.(type) {
				case string:
					c.entries[i] = regular(strings.ReplaceAll(e, "ROOT", a.root))
				case *tar.Header:
					h := *e
					h.Name, h.Linkname = strings.ReplaceAll(h.Name, "ROOT", a.root), strings.ReplaceAll(h.Linkname, "ROOT", a.root)
					c.entries[i] = &h
				}
			}
			_, err := a.unpack(tarOf(t, c.entries...), UnpackOptions{Only: c.only})
			a.wantOutsideAsBefore()
			switch {
			case c.refused == "-" && err != nil:
				t.Errorf("it was refused: %v", err)
			case c.refused == "" && err == nil:
				t.Error("it was accepted")
			case c.refused != "-" && c.refused != "" && (!IsRefusal(err) || !strings.Contains(err.Error(), c.refused)):
				t.Errorf("the error is %v, want a refusal that says %q", err, c.refused)
			}
		})
	}
}

func TestAnExistingLinkInTheTargetIsNotFollowed(t *testing.T) {
	a := newTarget(t)
	a.must(os.Symlink("../outside", filepath.Join(a.target, "old")))
	if _, err := a.unpack(tarOf(t, "old/new"), UnpackOptions{}); !IsRefusal(err) {
		t.Errorf("writing through it: %v", err)
	}
	if _, err := a.unpack(tarOf(t, dir("old"), "old/new"), UnpackOptions{}); !errors.Is(err, unix.ENOTDIR) {
		t.Errorf("a directory in its place: %v", err)
	}
	a.wantOutsideAsBefore()
	if _, err := a.unpack(tarOf(t, "old"), UnpackOptions{}); err != nil {
		t.Errorf("a file in its place: %v", err)
	}
	a.wantOutsideAsBefore()
}

func TestAnExistingFileIsReplacedNotWrittenTo(t *testing.T) {
	a := newTarget(t)
	// The target contains a hard link to a file outside.
	a.must(os.Link(filepath.Join(a.root, "x"), filepath.Join(a.target, "f")))
	if _, err := a.unpack(tarOf(t, "f"), UnpackOptions{}); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(filepath.Join(a.root, "x"))
	a.must(err)
	if string(raw) != "x" {
		t.Errorf("the file outside is now %q", raw)
	}
}

func TestADirectoryIsNeverReplacedByAFile(t *testing.T) {
	a := newTarget(t)
	a.must(os.MkdirAll(filepath.Join(a.target, "d", "in"), 0o755))
	if _, err := a.unpack(tarOf(t, "d"), UnpackOptions{}); !errors.Is(err, unix.EISDIR) {
		t.Errorf("a file over a directory: %v", err)
	}
	a.must(os.WriteFile(filepath.Join(a.target, "f"), nil, 0o600))
	if _, err := a.unpack(tarOf(t, dir("f")), UnpackOptions{}); !errors.Is(err, unix.ENOTDIR) {
		t.Errorf("a directory over a file: %v", err)
	}
}

func TestDamagedArchivesAreRefused(t *testing.T) {
	whole := tarOf(t, "a", "b")
	huge := append([]byte(nil), whole...)
	for name, raw := range map[string][]byte{
		"cut in a header":  whole[:1300],
		"cut in a content": whole[:514],
		"no archive":       []byte(strings.Repeat("no archive ", 100)),
		"huge claim":       withClaimedSize(t, huge, 1<<60),
	} {
		a := newTarget(t)
		if _, err := a.unpack(raw, UnpackOptions{}); !IsRefusal(err) {
			t.Errorf("%s: %v", name, err)
		}
		if left, _ := os.ReadDir(a.target); name == "huge claim" && len(left) > 0 {
			t.Errorf("%s: %s is left", name, left[0].Name())
		}
	}
}

// withClaimedSize changes the size in the first header of an archive.
func withClaimedSize(t *testing.T, raw []byte, size int64) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	if err := w.WriteHeader(&tar.Header{Name: "huge", Mode: 0o644, Size: size, Format: tar.FormatPAX}); err != nil {
		t.Fatal(err)
	}
	_, _ = w.Write(raw)
	_ = w.Flush()
	return buf.Bytes()
}

func TestSpecialFilesAreSkippedOrCreatedOnlyOnRequest(t *testing.T) {
	raw := tarOf(t, &tar.Header{Name: "p", Typeflag: tar.TypeFifo, Mode: 0o640}, "f")
	a := newTarget(t)
	got, err := a.unpack(raw, UnpackOptions{Special: SkipSpecial})
	if err != nil || got.Skipped != 1 || got.Files != 1 {
		t.Errorf("skipped: %+v, %v", got, err)
	}
	if _, err := a.unpack(raw, UnpackOptions{Special: MakeSpecial}); err != nil {
		t.Fatal(err)
	}
	st, err := os.Lstat(filepath.Join(a.target, "p"))
	a.must(err)
	if st.Mode() != fs.ModeNamedPipe|0o640 {
		t.Errorf("the FIFO is %v", st.Mode())
	}
}

func TestADeviceIsNotMadeWhereDevicesMustNotBe(t *testing.T) {
	// The numbers are those of /dev/null: a device that does no harm.
	null := tar.Header{Name: "null", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 3, Mode: 0o666}
	block := tar.Header{Name: "loop", Typeflag: tar.TypeBlock, Devmajor: 7, Devminor: 200, Mode: 0o666}
	a := newTarget(t)
	got, err := a.unpack(tarOf(t, &null, &block, &tar.Header{Name: "p", Typeflag: tar.TypeFifo, Mode: 0o640}), UnpackOptions{Special: MakeSpecial, NoDevices: true})
	if err != nil || got.Skipped != 2 || got.Files != 1 {
		t.Errorf("%+v, %v", got, err)
	}
	for _, name := range []string{"null", "loop"} {
		if _, err := os.Lstat(filepath.Join(a.target, name)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s was made (%v)", name, err)
		}
	}
}

func TestPrivilegesOfProgramsAreDroppedUnlessRequested(t *testing.T) {
	raw := tarOf(t, &tar.Header{Name: "su", Typeflag: tar.TypeReg, Mode: 0o6755}, &tar.Header{Name: "d", Typeflag: tar.TypeDir, Mode: 0o3777})
	for _, keep := range []bool{false, true} {
		a := newTarget(t)
		if _, err := a.unpack(raw, UnpackOptions{KeepPrivileges: keep}); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"su", "d"} {
			st, err := os.Stat(filepath.Join(a.target, name))
			a.must(err)
			if kept := st.Mode()&(fs.ModeSetuid|fs.ModeSetgid) != 0; kept != keep {
				t.Errorf("%s is %v with KeepPrivileges %v", name, st.Mode(), keep)
			}
		}
	}
}

func TestASparseFileIsUnpackedWithItsHoles(t *testing.T) {
	raw, err := os.ReadFile("testdata/sparse.tar")
	if err != nil {
		t.Fatal(err)
	}
	a := newTarget(t)
	if _, err := a.unpack(raw, UnpackOptions{}); err != nil {
		t.Fatal(err)
	}
	st, err := os.Stat(filepath.Join(a.target, "sparse"))
	a.must(err)
	blocks := st.Sys().(*syscall.Stat_t).Blocks * 512
	if st.Size() != 64<<20+4 || blocks > 4<<20 {
		t.Errorf("it has %d bytes in %d", st.Size(), blocks)
	}
	raw, err = os.ReadFile("testdata/sparse-huge.tar")
	a.must(err)
	if _, err := a.unpack(raw, UnpackOptions{}); !IsRefusal(err) {
		t.Errorf("a sparse file of 8 TiB: %v", err)
	}
}

func TestAFileOfHolesTakesNoDiskWhereItIsUnpacked(t *testing.T) {
	const size, data = 64 << 20, 40 << 20 // the end is a hole, and data is inside
	from := t.TempDir()
	path := filepath.Join(from, "holes")
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	_, err = file.WriteAt([]byte("data"), data)
	if err := errors.Join(err, file.Truncate(size), file.Close()); err != nil {
		t.Fatal(err)
	}
	a := newTarget(t)
	d, err := os.Open(from)
	a.must(err)
	defer d.Close()
	var raw bytes.Buffer
	a.must(Pack(t.Context(), &raw, int(d.Fd()), "holes", PackOptions{Name: "holes"}))
	if _, err := a.unpack(raw.Bytes(), UnpackOptions{}); err != nil {
		t.Fatal(err)
	}
	made := filepath.Join(a.target, "holes")
	st, err := os.Stat(made)
	a.must(err)
	if blocks := st.Sys().(*syscall.Stat_t).Blocks * 512; st.Size() != size || blocks > 4<<20 {
		t.Errorf("it has %d bytes in %d", st.Size(), blocks)
	}
	want, err := os.ReadFile(path)
	a.must(err)
	got, err := os.ReadFile(made)
	a.must(err)
	if !bytes.Equal(got, want) {
		t.Error("its content is another one")
	}
}

func TestACancelledUnpackingCreatesAndReplacesNothing(t *testing.T) {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, h := range []*tar.Header{
		dir("d"), {Name: "d/small", Mode: 0o644, Size: 3}, {Name: "d/large", Mode: 0o644, Size: small + 2*chunk},
		symlink("link", "d"), hardLink("hard", "d/small"), {Name: "pipe", Typeflag: tar.TypeFifo, Mode: 0o600},
	} {
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(make([]byte, h.Size)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	for last := 0; ; last++ { // the number of calls of Wanted that succeed
		a := newTarget(t)
		a.must(os.Mkdir(filepath.Join(a.target, "d"), 0o755))
		for _, name := range []string{"d/small", "d/large", "link", "hard", "pipe"} {
			a.must(os.WriteFile(filepath.Join(a.target, name), []byte("new"), 0o600))
		}
		asked, seen := 0, ""
		_, err := a.unpack(buf.Bytes(), UnpackOptions{Special: MakeSpecial, Wanted: func() error {
			if asked++; asked <= last {
				return nil
			}
			if seen == "" {
				seen = a.inside()
			}
			return context.Canceled
		}})
		if seen == "" {
			a.must(err)
			// Six entries, two further pieces of the large file, and two
			// replacements of files.
			if last != 6+2+2 {
				t.Errorf("Wanted was called %d times", last)
			}
			return
		}
		if now := a.inside(); !errors.Is(err, context.Canceled) || now != seen {
			t.Errorf("cancelled after call %d: %v\nthere was\n%sand is\n%s", last, err, seen, now)
		}
	}
}

// inside describes all files in the target except temporary ones.
func (a *targetDir) inside() string {
	var b strings.Builder
	a.must(filepath.WalkDir(a.target, func(p string, d fs.DirEntry, err error) error {
		a.must(err)
		if d.Type().IsRegular() && !IsTemp(d.Name()) {
			raw, err := os.ReadFile(p)
			a.must(err)
			fmt.Fprintf(&b, "%s: %d bytes, %.3q\n", p, len(raw), raw)
		} else if !IsTemp(d.Name()) {
			fmt.Fprintln(&b, p, d.Type())
		}
		return nil
	}))
	return b.String()
}
