package logs

import (
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// hostile puts something else in the place of a log file. victim is a file that must not
// change. A call that blocks runs into the time limit of go test.
var hostile = map[string]func(path, victim string) error{
	"symbolic link":  func(path, victim string) error { return os.Symlink(victim, path) },
	"relative link":  func(path, victim string) error { return os.Symlink("../"+filepath.Base(victim), path) },
	"dangling link":  func(path, _ string) error { return os.Symlink("nowhere", path) },
	"link to itself": func(path, _ string) error { return os.Symlink(filepath.Base(path), path) },
	"hard link":      func(path, victim string) error { return os.Link(victim, path) },
	"FIFO":           func(path, _ string) error { return unix.Mkfifo(path, 0o666) },
	"directory":      func(path, _ string) error { return os.MkdirAll(filepath.Join(path, "sub", "dir"), 0o777) },
	"socket": func(path, _ string) error {
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
		if err != nil {
			return err
		}
		l.SetUnlinkOnClose(false)
		return l.Close()
	},
}

// againstHostile runs a test once for each kind of replacement.
func againstHostile(t *testing.T, name string, test func(t *testing.T, d *Dir, path string)) {
	for kind, put := range hostile {
		t.Run(name+" is a "+kind, func(t *testing.T) {
			base, err := os.MkdirTemp("", "logs") // short, because it becomes part of a socket's name
			must(t, err)
			t.Cleanup(func() { _ = os.RemoveAll(base) })
			path, victim := filepath.Join(base, "d"), filepath.Join(base, "victim")
			must(t, os.Mkdir(path, 0o700))
			must(t, os.WriteFile(victim, []byte("victim"), 0o600))
			must(t, put(filepath.Join(path, name), victim))
			d, err := OpenDir(path)
			must(t, err)
			defer func() { _ = d.Close() }()
			test(t, d, path)
			if got, err := os.ReadFile(victim); err != nil || string(got) != "victim" {
				t.Errorf("the victim now holds %q, %v", got, err)
			}
		})
	}
}

func writeLog(t *testing.T, d *Dir, pieces ...piece) {
	t.Helper()
	w := create(t, d, "e1", testOptions)
	writeAll(w, pieces...)
	must(t, w.Close())
}

func TestOutputThatIsNotAFileIsRefused(t *testing.T) {
	for _, name := range []string{StdoutName("e1"), StderrName("e1")} {
		againstHostile(t, name, func(t *testing.T, d *Dir, path string) {
			for _, other := range []string{StdoutName("e1"), StderrName("e1")} {
				if other != name {
					writeFile(t, path, other, nil)
				}
			}
			if _, err := d.Open("e1", Cursor{}); !errors.Is(err, ErrTampered) || !errdefs.IsDataLoss(err) {
				t.Errorf("Open: %v, want ErrTampered", err)
			}
			if _, err := d.Create("e1", testOptions); !errdefs.IsAlreadyExists(err) {
				t.Errorf("Create: %v, want AlreadyExists", err)
			}
			must(t, d.Remove(t.Context(), "e1"))
			if entries, err := os.ReadDir(path); err != nil || len(entries) > 0 {
				t.Errorf("after Remove: %v, %v", entries, err)
			}
		})
	}
}

func TestAnIndexThatIsNotAFileCostsTheOrderOnly(t *testing.T) {
	againstHostile(t, IndexName("e1"), func(t *testing.T, d *Dir, path string) {
		writeFile(t, path, StdoutName("e1"), []byte("out"))
		writeFile(t, path, StderrName("e1"), []byte("err"))
		r := open(t, d, "e1", Cursor{})
		defer func() { _ = r.Close() }()
		stdout, stderr := streams(drain(t, r, 2))
		if stdout != "out" || stderr != "err" || r.Notice() == "" {
			t.Errorf("read %q and %q, notice %q", stdout, stderr, r.Notice())
		}
	})
}

func TestAStatusThatIsNotAFileIsRefusedAndReplaced(t *testing.T) {
	againstHostile(t, StatusName("e1"), func(t *testing.T, d *Dir, path string) {
		if _, err := d.ReadStatus("e1"); !errors.Is(err, ErrTampered) {
			t.Errorf("ReadStatus: %v, want ErrTampered", err)
		}
		err := d.WriteStatus("e1", []byte("exited"), statusOptions)
		if info, statErr := os.Lstat(filepath.Join(path, StatusName("e1"))); statErr == nil && info.IsDir() {
			if err == nil { // a rename does not replace a directory
				t.Error("WriteStatus over a directory succeeded")
			}
			return
		}
		must(t, err)
		if got, err := d.ReadStatus("e1"); err != nil || string(got) != "exited" {
			t.Errorf("read %q, %v", got, err)
		}
	})
}

func TestADeviceIsRefused(t *testing.T) {
	d, err := OpenDir("/dev")
	must(t, err)
	defer func() { _ = d.Close() }()
	if _, err := d.openFile("null", unix.O_RDONLY); !errors.Is(err, ErrTampered) {
		t.Errorf("opening /dev/null: %v, want ErrTampered", err)
	}
}

// With a lease, every other open waits until the lease holder releases it.
func TestALeasedFileIsRefusedAtOnce(t *testing.T) {
	d, path := openDir(t)
	writeLog(t, d, piece{Stdout, "x"})
	f, err := os.OpenFile(filepath.Join(path, StdoutName("e1")), os.O_RDWR, 0)
	must(t, err)
	defer func() { _ = f.Close() }()
	_, err = unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_WRLCK)
	must(t, err)
	if _, err := d.Open("e1", Cursor{}); !errors.Is(err, ErrTampered) {
		t.Errorf("Open: %v, want ErrTampered", err)
	}
}

func TestALogDirectoryThatIsALinkIsRefused(t *testing.T) {
	_, path := openDir(t)
	link := filepath.Join(t.TempDir(), "link")
	must(t, os.Symlink(path, link))
	if _, err := OpenDir(link); !errors.Is(err, ErrTampered) {
		t.Errorf("OpenDir of a link: %v, want ErrTampered", err)
	}
	if _, err := OpenDir(filepath.Join(path, "none")); !errors.Is(err, ErrNotExist) {
		t.Errorf("OpenDir of nothing: %v, want ErrNotExist", err)
	}
}

func TestEightTebibytesOfHolesCostNoMemory(t *testing.T) {
	d, path := openDir(t)
	writeLog(t, d, piece{Stdout, "abc"}, piece{Stderr, "def"})
	for _, name := range []string{StdoutName("e1"), StderrName("e1"), IndexName("e1")} {
		must(t, os.Truncate(filepath.Join(path, name), 8<<40))
	}
	r := open(t, d, "e1", Cursor{})
	defer func() { _ = r.Close() }()
	r.Finish()
	buf := make([]byte, 64<<10)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range 100 {
		_, err := r.Next(buf)
		must(t, err)
	}
	runtime.ReadMemStats(&after)
	if used := after.TotalAlloc - before.TotalAlloc; used > 1<<20 {
		t.Errorf("%d bytes were allocated", used)
	}
	if size, err := r.Size(); err != nil || size != (Cursor{8 << 40, 8 << 40}) || r.Notice() == "" {
		t.Errorf("Size() = %v, %v, notice %q", size, err, r.Notice())
	}
	far := open(t, d, "e1", Cursor{Stdout: 8<<40 - 1, Stderr: 1 << 63})
	defer func() { _ = far.Close() }()
	if c, err := far.Next(buf); err != nil || len(c.Data) != 1 {
		t.Errorf("the last byte: %d bytes, %v", len(c.Data), err)
	}
	if _, err := far.Next(buf); !errors.Is(err, io.EOF) {
		t.Errorf("beyond the end: %v, want EOF", err)
	}
}

// The file is truncated while it is read, and grows again.
func TestAFileThatShrinksUnderTheReaderDoesNotFailIt(t *testing.T) {
	d, path := openDir(t)
	writeLog(t, d, piece{Stdout, "0123456789"})
	r := open(t, d, "e1", Cursor{})
	defer func() { _ = r.Close() }()
	buf := make([]byte, 4)
	_, err := r.Next(buf)
	must(t, err)
	must(t, os.Truncate(filepath.Join(path, StdoutName("e1")), 2))
	if _, err := r.Next(buf); !errors.Is(err, io.EOF) {
		t.Fatalf("after the cut: %v, want EOF", err)
	}
	writeFile(t, path, StdoutName("e1"), []byte("0123456789ab"))
	if got := drain(t, r, 4); len(got) != 1 || got[0].data != "456789" {
		t.Errorf("after it grew: %v", got)
	}
}
