package review

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/agbox/agbox/internal/paths"
)

// TestUnbroughtWorkIsFilesAndNewCommits: of references only those count that changed after the
// copy and name neither what was copied in nor what was brought home.
func TestUnbroughtWorkIsFilesAndNewCommits(t *testing.T) {
	const head, other, made = "1111111111111111111111111111111111111111", "2222222222222222222222222222222222222222", "3333333333333333333333333333333333333333"
	install, source := paths.Install{Data: t.TempDir()}, t.TempDir()
	before := map[string]string{"file": "old", ".git/HEAD": "ref: refs/heads/main\n", ".git/refs/heads/main": head + "\n", ".git/refs/heads/other": other + "\n"}
	for name, content := range before {
		name = filepath.Join(source, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	record(t, source, install.GuestBase("s"))
	r := New(nil, install)
	for _, row := range []struct {
		name  string
		after map[string]string
		want  string
	}{
		{"nothing", nil, ""},
		{"a file", map[string]string{"file": "new"}, `changed files ("file")`},
		{"a new file", map[string]string{"more": "new"}, `changed files ("more")`},
		{"a commit", map[string]string{".git/refs/heads/main": made}, "commits (up to 333333333333)"},
		{"a commit of another branch", map[string]string{".git/refs/heads/a/b": made}, "commits (up to 333333333333)"},
		{"a detached commit", map[string]string{".git/HEAD": made}, "commits (up to 333333333333)"},
		{"a stash", map[string]string{".git/refs/stash": made}, "commits (up to 333333333333)"},
		{"a packed commit", map[string]string{".git/packed-refs": "# pack-refs\n" + head + " refs/heads/main\n" + made + " refs/heads/b\n"}, "commits (up to 333333333333)"},
		{"a branch at what was copied in", map[string]string{".git/refs/heads/new": head}, ""},
		{"what was fetched", map[string]string{".git/refs/remotes/origin/main": made, ".git/packed-refs": made + " refs/remotes/origin/x\n"}, ""},
		{"a nested repository", map[string]string{"lib/.git": "gitdir: ../.git/modules/lib"}, ""},
		{"no reference", map[string]string{".git/refs/heads/odd": "ref: refs/heads/main\n"}, ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			work, err := r.Unbrought(t.Context(), "s", withFiles(t, before, row.after))
			if err != nil || work != row.want {
				t.Errorf("%q, %v; want %q", work, err, row.want)
			}
		})
	}
	if work, err := r.Unbrought(t.Context(), "without", withFiles(t, before, map[string]string{"file": "new"})); work != "" || err != nil {
		t.Errorf("without a copied workspace: %q, %v", work, err)
	}
}

// withFiles returns the archives of a workspace that had files when it was copied, and has others
// since.
func withFiles(t *testing.T, before, after map[string]string) Archive {
	t.Helper()
	return func(_ context.Context, path string) (io.ReadCloser, error) {
		var out bytes.Buffer
		w, found := tar.NewWriter(&out), false
		for at, files := range []map[string]string{before, after} {
			for name, content := range files {
				full := "/workspace/" + name
				if _, replaced := after[name]; at == 0 && replaced || full != path && !strings.HasPrefix(full, path+"/") {
					continue
				}
				found = true
				h := &tar.Header{Name: strings.TrimPrefix(full, filepath.Dir(path)+"/"), Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(content)), ModTime: time.Unix(int64(at)<<40, 0), Format: tar.FormatPAX}
				if filepath.Dir(path) == "/" {
					h.Name = full[1:]
				}
				if err := w.WriteHeader(h); err != nil {
					t.Error(err)
				}
				if _, err := io.WriteString(w, content); err != nil {
					t.Error(err)
				}
			}
		}
		if !found {
			return nil, fmt.Errorf("no %s: %w", path, errdefs.ErrNotFound)
		}
		return io.NopCloser(&out), w.Close()
	}
}
