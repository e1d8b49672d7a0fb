package daemon

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestABinaryThatOthersCanReplaceIsNotOpened(t *testing.T) {
	top := t.TempDir()
	dir := filepath.Join(top, "bin")
	binary, link := filepath.Join(dir, "agboxd"), filepath.Join(top, "link")
	if err := errors.Join(os.Mkdir(dir, 0o755), os.WriteFile(binary, nil, 0o755), os.Symlink(binary, link)); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		top, dir, binary os.FileMode
		why              string
	}{
		{0o755, 0o755, 0o755, ""},
		{0o755, 0o700 | os.ModeSticky, 0o700, ""},
		{0o755, 0o777 | os.ModeSticky, 0o755, ""},
		{0o755, 0o755, 0o775, "may write to " + binary},
		{0o755, 0o755, 0o757, "may write to "},
		{0o755, 0o775, 0o755, "may write to " + dir + " "},
		{0o777, 0o755, 0o755, "may write to " + top + " "},
	} {
		if err := errors.Join(os.Chmod(top, c.top), os.Chmod(dir, c.dir), os.Chmod(binary, c.binary)); err != nil {
			t.Fatal(err)
		}
		for _, path := range []string{binary, link} {
			file, err := openBinary(path)
			if err == nil {
				err = file.Close()
			}
			var others *errOthers
			if c.why == "" && err != nil || c.why != "" && (!errors.As(err, &others) || path == binary && !strings.Contains(others.why, c.why)) {
				t.Errorf("%+v: openBinary(%s) gives %v", c, path, err)
			}
		}
	}
	if _, err := openBinary(dir); !errors.Is(err, os.ErrPermission) {
		t.Errorf("a folder gives %v", err)
	}
	if _, err := openBinary(filepath.Join(dir, "nothing")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a missing file gives %v", err)
	}
}
