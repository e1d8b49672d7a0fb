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

// zoo creates a tree with every kind of file and attribute that a copy keeps.
func zoo(t testing.TB, root string) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	in := func(name string) string { return filepath.Join(root, name) }
	must(os.MkdirAll(in("sub/empty"), 0o755))
	must(os.MkdirAll(in(strings.Repeat("deep/", 40)), 0o755))
	must(os.WriteFile(in("small"), []byte("small"), 0o640))
	must(os.WriteFile(in("none"), nil, 0o604))
	must(os.WriteFile(in("sub/large"), bytes.Repeat([]byte("0123456789abcde\n"), 3*chunk/16+100), 0o600))
	must(os.WriteFile(in("name with spaces\nand a line"), []byte("x"), 0o644))
	must(os.WriteFile(in("not utf-8 \xff\xfe"), []byte("x"), 0o644))
	must(os.WriteFile(in(strings.Repeat("long", 63)), []byte("x"), 0o644))
	must(os.WriteFile(in("exactly small"), make([]byte, small), 0o644))
	must(os.Symlink("small", in("link")))
	must(os.Symlink("/nowhere/at all", in("dangling")))
	must(os.Link(in("sub/large"), in("sub/large again")))
	must(os.Link(in("link"), in("sub/link again")))
	_ = unix.Setxattr(in("small"), "user.note", []byte("a\x00b"), 0)
	if os.Geteuid() == 0 {
		must(os.Lchown(in("small"), 1234, 567))
		must(os.Lchown(in("link"), 12, 34))
		must(os.Lchown(in("sub"), 1234, 567))
	}
	must(os.Chmod(in("none"), 0o4755)) // os.Chmod drops the bits beyond 0777, as intended here
	must(os.Chmod(in("sub/empty"), 0o555))
	for i, name := range []string{"small", "sub/large", "sub/empty", "sub", "link"} {
		at := unix.NsecToTimespec(sample.Add(time.Duration(i) * time.Hour).UnixNano())
		must(unix.UtimesNanoAt(unix.AT_FDCWD, in(name), []unix.Timespec{at, at}, unix.AT_SYMLINK_NOFOLLOW))
	}
}

// describe returns everything about a tree that a copy must keep.
func describe(t testing.TB, root string) map[string]string {
	t.Helper()
	seen := make(map[string]string)
	first := make(map[uint64]string)
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(root, p)
		st, err := d.Info()
		if err != nil {
			return err
		}
		sys := st.Sys().(*syscall.Stat_t)
		text := fmt.Sprintf("%v %d:%d %v", st.Mode(), sys.Uid, sys.Gid, st.ModTime().UnixNano())
		switch {
		case st.Mode().IsRegular():
			raw, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			note := make([]byte, 16)
			n, _ := unix.Getxattr(p, "user.note", note)
			text += fmt.Sprintf(" %d %x %q", len(raw), fnv(raw), note[:max(n, 0)])
		case st.Mode()&fs.ModeSymlink != 0:
			to, err := os.Readlink(p)
			if err != nil {
				return err
			}
			text += " -> " + to
		}
		if !d.IsDir() && sys.Nlink > 1 {
			if other, ok := first[sys.Ino]; ok {
				text += " = " + other
			} else {
				first[sys.Ino] = rel
			}
		}
		seen[rel] = text
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return seen
}

func fnv(p []byte) (h uint64) {
	for _, b := range p {
		h = (h ^ uint64(b)) * 1099511628211
	}
	return h
}

func TestPackAndUnpackReproduceATree(t *testing.T) {
	from, to := t.TempDir(), t.TempDir()
	zoo(t, filepath.Join(from, "zoo"))
	src, err := os.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	var raw bytes.Buffer
	if err := Pack(context.Background(), &raw, int(src.Fd()), "zoo", PackOptions{Name: "copy"}); err != nil {
		t.Fatal(err)
	}
	dst, err := os.Open(to)
	if err != nil {
		t.Fatal(err)
	}
	defer dst.Close()
	archive := raw.Bytes()
	// In the second round all files exist already.
	for range 2 {
		got, err := Unpack(context.Background(), bytes.NewReader(archive), int(dst.Fd()),
			UnpackOptions{Only: "copy", KeepOwner: os.Geteuid() == 0, KeepPrivileges: true})
		if err != nil {
			t.Fatal(err)
		}
		want, have := describe(t, filepath.Join(from, "zoo")), describe(t, filepath.Join(to, "copy"))
		if int(got.Files) != len(want) {
			t.Errorf("%d files came out, %d went in", got.Files, len(want))
		}
		for name, was := range want {
			if have[name] != was {
				t.Errorf("%q\n was %s\n  is %s", name, was, have[name])
			}
		}
		for name := range have {
			if _, ok := want[name]; !ok {
				t.Errorf("%q was not there", name)
			}
		}
	}
}

func TestADirectoryKeepsItsTimeWhenTheArchiveReturnsToIt(t *testing.T) {
	a := newTarget(t)
	d := dir("d")
	d.ModTime = sample.Truncate(time.Second)
	if _, err := a.unpack(tarOf(t, d, dir("e"), "d/late", dir("f"), "d/later"), UnpackOptions{}); err != nil {
		t.Fatal(err)
	}
	st, err := os.Stat(filepath.Join(a.target, "d"))
	a.must(err)
	if !st.ModTime().Equal(d.ModTime) {
		t.Errorf("its time is %v", st.ModTime())
	}
}

func TestTheTargetKeepsItsOwnMode(t *testing.T) {
	a := newTarget(t)
	top := dir("./")
	top.Mode = 0o700
	if _, err := a.unpack(tarOf(t, top, "./f"), UnpackOptions{}); err != nil {
		t.Fatal(err)
	}
	st, err := os.Stat(a.target)
	a.must(err)
	if st.Mode().Perm() != 0o755 {
		t.Errorf("its mode is %v", st.Mode())
	}
}

func TestFilesOfTheKernelAreCopiedWholeDespiteTheirReportedSize(t *testing.T) {
	for _, name := range []string{"/proc/version", "/proc/self/cgroup", "/sys/devices/system/cpu/online"} {
		want, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		d, err := os.Open(filepath.Dir(name))
		if err != nil {
			t.Fatal(err)
		}
		var raw bytes.Buffer
		err = Pack(t.Context(), &raw, int(d.Fd()), filepath.Base(name), PackOptions{Name: "f"})
		_ = d.Close()
		if err != nil {
			t.Fatal(err)
		}
		a := newTarget(t)
		if _, err := a.unpack(raw.Bytes(), UnpackOptions{}); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(filepath.Join(a.target, "f"))
		a.must(err)
		if len(want) == 0 || !bytes.Equal(got, want) {
			t.Errorf("%s has %q and comes as %q", name, want, got)
		}
	}
	d, err := os.Open("/proc")
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	err = Pack(t.Context(), io.Discard, int(d.Fd()), "kallsyms", PackOptions{Name: "f"})
	if !errors.Is(err, errNoSize) {
		t.Errorf("a long one: %v", err)
	}
}

func TestAFileThatShrinksWhileItIsPackedIsPadded(t *testing.T) {
	root := t.TempDir()
	name := filepath.Join(root, "f")
	if err := os.WriteFile(name, bytes.Repeat([]byte("x"), 3*chunk), 0o600); err != nil {
		t.Fatal(err)
	}
	d, err := os.Open(root)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	var raw bytes.Buffer
	shrink := func(files, _ int64) {
		if files > 0 {
			if err := os.Truncate(name, 2*chunk); err != nil {
				t.Error(err)
			}
		}
	}
	if err := Pack(context.Background(), &raw, int(d.Fd()), "f", PackOptions{Name: "f", Progress: shrink}); err != nil {
		t.Fatal(err)
	}
	a := newTarget(t)
	if _, err := a.unpack(raw.Bytes(), UnpackOptions{}); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.Join(a.target, "f"))
	a.must(err)
	if len(got) != 3*chunk || got[2*chunk-1] != 'x' || got[2*chunk] != 0 {
		t.Errorf("it has %d bytes", len(got))
	}
}

func TestAnIncompleteArchiveLeavesNoPartialFile(t *testing.T) {
	root := t.TempDir()
	if err := os.WriteFile(filepath.Join(root, "f"), make([]byte, 4*chunk), 0o600); err != nil {
		t.Fatal(err)
	}
	d, err := os.Open(root)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	var raw bytes.Buffer
	if err := Pack(context.Background(), &raw, int(d.Fd()), "f", PackOptions{Name: "f"}); err != nil {
		t.Fatal(err)
	}
	a := newTarget(t)
	if _, err := a.unpack(raw.Bytes()[:2*chunk], UnpackOptions{}); !IsRefusal(err) {
		t.Errorf("the error is %v", err)
	}
	if left, _ := os.ReadDir(a.target); len(left) > 0 {
		t.Errorf("%s is left", left[0].Name())
	}
	// An existing file must stay as it was.
	a.must(os.WriteFile(filepath.Join(a.target, "f"), []byte("old"), 0o600))
	if _, err := a.unpack(raw.Bytes()[:2*chunk], UnpackOptions{}); !IsRefusal(err) {
		t.Errorf("the error is %v", err)
	}
	left, _ := os.ReadDir(a.target)
	old, err := os.ReadFile(filepath.Join(a.target, "f"))
	if len(left) != 1 || err != nil || string(old) != "old" {
		t.Errorf("%d names are left; the old file holds %q, %v", len(left), old, err)
	}
	if _, err := a.unpack(raw.Bytes(), UnpackOptions{}); err != nil {
		t.Fatal(err)
	}
	left, _ = os.ReadDir(a.target)
	if st, err := os.Stat(filepath.Join(a.target, "f")); len(left) != 1 || err != nil || st.Size() != 4*chunk {
		t.Errorf("%d names; the new file is %v, %v", len(left), st, err)
	}
}

// FuzzUnpack unpacks archives with names and links that the fuzzer chooses.
func FuzzUnpack(f *testing.F) {
	f.Add("a/../../x", "../outside", "l/secret", byte(0))
	f.Add("l", "..", "l/x", byte(1))
	f.Add("l", "../x", "l", byte(2))
	f.Add("/l", "./../outside/secret", "l/./", byte(2))
	f.Add("a//b/.", "b", "a/b/c", byte(3))
	f.Fuzz(func(t *testing.T, name, link, second string, kinds byte) {
		types := []byte{'0', '2', '1', '5', '6', '3', 'x', '7'}
		entry := func(name, link string, kind byte) []byte {
			return rawEntry(name, link, types[int(kind)%len(types)])
		}
		a := newTarget(t)
		raw := append(entry(name, link, kinds), entry(second, link, kinds>>3)...)
		raw = append(raw, entry(name, second, kinds>>5)...)
		raw = append(raw, make([]byte, 1024)...)
		_, _ = a.unpack(raw, UnpackOptions{Special: MakeSpecial})
		a.wantOutsideAsBefore()
	})
}

// rawEntry encodes an entry by hand, because the tar library would refuse invalid ones.
func rawEntry(name, link string, kind byte) []byte {
	block := make([]byte, 1024)
	copy(block[:100], name)
	copy(block[100:], "0000777\x000000000\x000000000\x0000000000003\x0000000000000\x00")
	block[156] = kind
	copy(block[157:257], link)
	copy(block[257:], "ustar\x0000")
	copy(block[148:156], "        ")
	sum := 0
	for _, b := range block[:512] {
		sum += int(b)
	}
	copy(block[148:], fmt.Sprintf("%06o\x00 ", sum))
	copy(block[512:], "new")
	return block
}

// A comparison lists mostly files that have not changed.
func TestAFileWhoseContentIsNotPackedIsNotOpened(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"as before", "changed"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	opened, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(opened)
	for _, name := range []string{"as before", "changed"} {
		if _, err := unix.InotifyAddWatch(opened, filepath.Join(dir, name), unix.IN_OPEN); err != nil {
			t.Fatal(err)
		}
	}
	changed := func(_ time.Time, size int64) bool { return size == int64(len("changed")) }
	d, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	var raw bytes.Buffer
	if err := Pack(t.Context(), &raw, int(d.Fd()), "", PackOptions{Name: ".", Changed: changed}); err != nil {
		t.Fatal(err)
	}
	got := make(map[string]string)
	files := tar.NewReader(&raw)
	for h, err := files.Next(); !errors.Is(err, io.EOF); h, err = files.Next() {
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(files)
		if err != nil {
			t.Fatal(err)
		}
		got[h.Name] = h.PAXRecords[SizeRecord] + string(content)
		if h.ChangeTime.IsZero() {
			t.Errorf("%s has no change time", h.Name)
		}
	}
	if got["as before"] != "9" || got["changed"] != "changed" {
		t.Errorf("the archive has %q", got)
	}
	events := make([]byte, 4096)
	if n, err := unix.Read(opened, events); n != unix.SizeofInotifyEvent || err != nil {
		t.Errorf("other files than the changed one were opened: %d bytes of events, %v", n, err)
	}
}
