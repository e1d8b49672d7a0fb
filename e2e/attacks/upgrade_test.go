package attacks

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agbox/agbox/e2e/internal/harness"
)

func TestAnUpgradeRefusesABinaryThatOthersCanReplace(t *testing.T) {
	Row(t, 16, "the binary of an upgrade belongs to another user, or others can write it or its folder")
	in := harness.New(t)
	in.Must(t, "daemon", "start")
	dir := folderOf(t, 0, 0o755)
	binary := filepath.Join(dir, "agboxd")
	if err := harness.CopyBinaries(harness.Binaries, dir); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		says       string
		make, undo func() error
	}{
		{binary + " belongs to another user", func() error { return os.Chown(binary, neighbour, neighbour) }, func() error { return os.Chown(binary, 0, 0) }},
		{"may write to " + binary, func() error { return os.Chmod(binary, 0o777) }, func() error { return os.Chmod(binary, 0o755) }},
		{"may write to " + dir, func() error { return os.Chmod(dir, 0o777) }, func() error { return os.Chmod(dir, 0o755) }},
		{dir + " belongs to another user", func() error { return os.Chown(dir, neighbour, neighbour) }, func() error { return os.Chown(dir, 0, 0) }},
	} {
		if err := c.make(); err != nil {
			t.Fatal(err)
		}
		if said := in.Agbox(t, "daemon", "upgrade", "--binary", binary); said.Code != 4 || !strings.Contains(said.Stderr, c.says) {
			t.Errorf("the upgrade gives %d: %s; want %q", said.Code, said.Stderr, c.says)
		}
		if err := c.undo(); err != nil {
			t.Fatal(err)
		}
	}
	in.Must(t, "daemon", "upgrade", "--binary", binary)
}

func TestAnUpgradeExecutesTheBinaryThatItChecked(t *testing.T) {
	Row(t, 16, "the binary of an upgrade is replaced between its check and its execution")
	in := harness.New(t)
	in.Must(t, "daemon", "start")
	dir := folderOf(t, 0, 0o755)
	binary, other, mark := filepath.Join(dir, "agboxd"), filepath.Join(dir, "other"), filepath.Join(dir, "mark")
	agboxd := filepath.Join(in.Bin, "agboxd") + " \"$@\"\n"
	if err := errors.Join(
		harness.WriteProgram(binary, []byte("#!/bin/sh\n[ \"$1\" = preflight ] && mv "+other+" "+binary+"\nexec "+agboxd)),
		harness.WriteProgram(other, []byte("#!/bin/sh\ntouch "+mark+"\nexec "+agboxd)),
	); err != nil {
		t.Fatal(err)
	}
	in.Must(t, "daemon", "upgrade", "--binary", binary)
	if _, err := os.Stat(other); err == nil {
		t.Error("nothing was replaced")
	}
	if _, err := os.Stat(mark); err == nil {
		t.Error("the daemon executed a binary that it had not checked")
	}
	if name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", in.Status(t).PID)); err != nil || strings.TrimSpace(string(name)) != "agboxd" {
		t.Errorf("the name of the process is %q (%v)", name, err)
	}
	in.Must(t, "daemon", "upgrade", "--binary", filepath.Join(in.Bin, "agboxd"))
	if name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", in.Status(t).PID)); err != nil || strings.TrimSpace(string(name)) != "agboxd" {
		t.Errorf("the name of the process is %q (%v)", name, err)
	}
}
