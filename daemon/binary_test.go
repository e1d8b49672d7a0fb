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

func TestAnUpgradeRefusesASupervisorThatOthersCanReplace(t *testing.T) {
	top := t.TempDir()
	dir, elsewhere := filepath.Join(top, "bin"), filepath.Join(top, "elsewhere")
	binary, supervisor, link := filepath.Join(dir, "agboxd"), filepath.Join(elsewhere, "agbox-init"), filepath.Join(top, "link")
	if err := errors.Join(os.Mkdir(dir, 0o755), os.Mkdir(elsewhere, 0o755), os.WriteFile(binary, nil, 0o755), os.Symlink(binary, link),
		os.WriteFile(supervisor, nil, 0o755), os.Symlink(supervisor, filepath.Join(dir, "agbox-init"))); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		dir, supervisor os.FileMode
		why             string
	}{
		{0o755, 0o755, ""},
		{0o755, 0o775, "may write to "},
		{0o755, 0o757, "may write to "},
		{0o777, 0o755, "may write to " + elsewhere + " "},
	} {
		if err := errors.Join(os.Chmod(elsewhere, c.dir), os.Chmod(supervisor, c.supervisor)); err != nil {
			t.Fatal(err)
		}
		for _, path := range []string{binary, link} {
			u := newUpgrader(Config{}, 1)
			_, err := u.upgrade(t.Context(), path)
			// The empty file itself is no program.
			want := c.why
			if want == "" {
				want = "not a program"
			}
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%+v: an upgrade to %s gives %v, want %q", c, path, err, want)
			}
		}
	}
	if err := os.Remove(supervisor); err != nil {
		t.Fatal(err)
	}
	file, err := openSuccessor(binary) // its own check says that the supervisor is missing
	if err != nil {
		t.Fatal(err)
	}
	_ = file.Close()
}
