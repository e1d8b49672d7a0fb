package filesystem

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// hostile makes a folder with one file of each kind, and a file beside it.
func hostile(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "folder")
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.MkdirAll(filepath.Join(dir, "sub"), 0o700))
	must(os.WriteFile(filepath.Join(dir, "file"), []byte("text"), 0o600))
	must(os.WriteFile(filepath.Join(dir, "..", "beside"), []byte("secret"), 0o600))
	must(unix.Mkfifo(filepath.Join(dir, "fifo"), 0o600))
	must(unix.Mknod(filepath.Join(dir, "socket"), unix.S_IFSOCK|0o600, 0))
	must(os.WriteFile(filepath.Join(dir, "sparse"), nil, 0o600))
	must(os.Truncate(filepath.Join(dir, "sparse"), 50<<30))
	must(os.WriteFile(filepath.Join(dir, "five"), []byte("12345"), 0o600))
	for name, to := range map[string]string{
		"inside": "sub/../file", "sub/up": "../file", "zero": "/dev/zero", "out": "../beside", "absolute": filepath.Join(dir, "file"),
		"loop": "loop", "away": "..", "to-fifo": "fifo", "gone": "none",
	} {
		must(os.Symlink(to, filepath.Join(dir, name)))
	}
	return dir
}

func TestOnlyRegularFilesInsideTheFolderAreRead(t *testing.T) {
	dir := hostile(t)
	for name, want := range map[string]error{
		"file": nil, "inside": nil, "sub/up": nil,
		"fifo": ErrIrregular, "to-fifo": ErrIrregular, "socket": ErrIrregular, "sub": ErrIrregular, ".": ErrIrregular,
		"zero": ErrLink, "out": ErrLink, "absolute": ErrLink, "loop": ErrLink, "away/beside": ErrLink,
		"../beside": ErrOutside, "/etc/passwd": ErrOutside,
		"sparse": ErrTooLarge, "five": ErrTooLarge, "gone": fs.ErrNotExist, "none": fs.ErrNotExist,
	} {
		content, err := ReadWithin(dir, name, 4)
		if !errors.Is(err, want) || (want == nil) != (string(content) == "text") {
			t.Errorf("%s: %q, %v; want %v", name, content, err, want)
		}
	}
}

func TestAnOpenFolderIsReadWithoutLinks(t *testing.T) {
	dir, err := os.Open(hostile(t))
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	for name, want := range map[string]error{
		"file": nil, "inside": ErrLink, "sub/up": ErrLink, "out": ErrLink, "../beside": ErrLink, "/etc/passwd": ErrLink, "fifo": ErrIrregular, "sparse": ErrTooLarge, "none": fs.ErrNotExist,
	} {
		content, err := ReadWithinAt(int(dir.Fd()), name, 4)
		if !errors.Is(err, want) || (want == nil) != (string(content) == "text") {
			t.Errorf("%s: %q, %v; want %v", name, content, err, want)
		}
	}
}

func TestAFileThatTheCallerNamesStaysInItsFolder(t *testing.T) {
	dir := hostile(t)
	t.Chdir(filepath.Join(dir, "sub"))
	for name, want := range map[string]error{
		"../inside": nil, filepath.Join(dir, "inside"): nil, // its own folder
		"up":                      ErrLink, // the current folder is the limit
		filepath.Join(dir, "out"): ErrLink, "../fifo": ErrIrregular,
	} {
		if content, err := ReadNamed(name, 4); !errors.Is(err, want) || (want == nil) != (string(content) == "text") {
			t.Errorf("%s: %q, %v; want %v", name, content, err, want)
		}
	}
	t.Chdir(dir)
	if content, err := ReadNamed("sub/up", 4); err != nil || string(content) != "text" {
		t.Errorf("a link inside the current folder: %q, %v", content, err)
	}
	// A shell gives the output of a command as a file below /dev.
	if _, err := ReadNamed("/dev/zero", 4); !errors.Is(err, ErrTooLarge) {
		t.Errorf("a device that the caller names: %v", err)
	}
	if _, err := ReadNamed("sparse", 1<<20); err == nil || !strings.Contains(err.Error(), "more than 1024 KiB") {
		t.Errorf("a file of holes: %v", err)
	}
}
