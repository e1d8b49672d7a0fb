package client

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestWhoInstalledTheCommandAloneIsToldWhatIsMissing(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir)
	own, daemon := filepath.Join(dir, "agbox"), filepath.Join(dir, "agboxd")
	want := func(words ...string) {
		t.Helper()
		_, err := findDaemon(own)
		if !errors.Is(err, ErrDaemonUnreachable) {
			t.Fatalf("the error is %v", err)
		}
		for _, word := range append(words, "CGO_ENABLED=0 go install ", "make install") {
			if !strings.Contains(err.Error(), word) {
				t.Errorf("no %q in: %v", word, err)
			}
		}
	}
	want("agboxd is neither beside "+own+" nor in PATH", "beside it, agbox-init")
	if err := os.WriteFile(daemon, nil, 0o755); err != nil { //nolint:gosec // it must be executable
		t.Fatal(err)
	}
	if got, err := findDaemon(own); got != daemon || err != nil {
		t.Errorf("found %q, %v", got, err)
	}
}
