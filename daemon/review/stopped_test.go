package review

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/agbox/agbox/workspace/gitignore"
)

// entry is one of an archive: a folder if its name ends with a slash.
type entry struct {
	name, content, link string
	hard, executable    bool
}

// packed is an archive of the workspace as the engine makes it.
func packed(t *testing.T, all ...entry) Archive {
	t.Helper()
	return func(_ context.Context, path string) (io.ReadCloser, error) {
		var out bytes.Buffer
		w := tar.NewWriter(&out)
		found := false
		for _, e := range append([]entry{{name: "workspace/"}}, all...) {
			h := &tar.Header{Name: e.name, Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(e.content)), Linkname: e.link}
			switch {
			case strings.HasSuffix(e.name, "/"):
				h.Typeflag = tar.TypeDir
			case e.hard && path == "/workspace":
				h.Typeflag, h.Size = tar.TypeLink, 0
			case e.link != "" && !e.hard:
				h.Typeflag = tar.TypeSymlink
			}
			if e.executable {
				h.Mode = 0o755
			}
			if one := "/" + strings.TrimSuffix(e.name, "/"); path != "/workspace" && one != path {
				continue
			}
			found = true
			if err := w.WriteHeader(h); err != nil {
				t.Error(err)
			}
			if h.Size > 0 {
				if _, err := io.WriteString(w, e.content); err != nil {
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

func TestAStoppedSandboxIsComparedByAnArchive(t *testing.T) {
	all := []entry{
		{name: "workspace/.git/"}, {name: "workspace/.git/config", content: "hostile"}, {name: "workspace/.gitignore", content: "*.log\nout/\n"},
		{name: "workspace/a", content: "new"}, {name: "workspace/cache/"}, {name: "workspace/cache/x", content: "of another mount"},
		{name: "workspace/kept.log", content: "new"}, {name: "workspace/link", link: "/etc/passwd"}, {name: "workspace/new.log", content: "ignored"},
		{name: "workspace/one", content: "twice"}, {name: "workspace/out/"}, {name: "workspace/out/.gitignore", content: "!*"}, {name: "workspace/out/x", content: "ignored"},
		{name: "workspace/same", content: "same"}, {name: "workspace/sub/"}, {name: "workspace/sub/.gitignore", content: "!keep.log\n"}, {name: "workspace/sub/keep.log", content: "kept"},
		{name: "workspace/sub/tool", content: "run", executable: true}, {name: "workspace/two", content: "twice", link: "workspace/one", hard: true},
		{name: "workspace/../../etc/x", content: "outside"},
	}
	files := map[string]string{"a": "old", "kept.log": "old", "same": "same", "gone": "was", "two": "other", "sub/tool": "run"}
	want := map[string]string{
		".gitignore": "+*.log\nout/\n", "a": "-old+new", "kept.log": "-old+new", "link": "+/etc/passwd", "one": "+twice", "gone": "-was",
		"sub/.gitignore": "+!keep.log\n", "sub/keep.log": "+kept", "sub/tool": "-run+run", "two": "-other+twice",
	}
	compare := func(o Options) (map[string]string, error) {
		c, got := compared(t, files)
		return got, c.review.CompareStopped(t.Context(), "s", c.base, o, packed(t, all...), c.send)
	}
	if got, err := compare(Options{}); err != nil || !maps.Equal(got, want) {
		t.Errorf("%v, the differences are %q, want %q", err, got, want)
	}
	maps.Copy(want, map[string]string{"new.log": "+ignored", "out/.gitignore": "+!*", "out/x": "+ignored"})
	if got, err := compare(Options{All: true}); err != nil || !maps.Equal(got, want) {
		t.Errorf("all: %v, the differences are %q, want %q", err, got, want)
	}
	c, got := compared(t, map[string]string{"a": "1"})
	err := c.review.CompareStopped(t.Context(), "s", c.base, Options{}, func(context.Context, string) (io.ReadCloser, error) { return nil, errdefs.ErrNotFound }, c.send)
	if err != nil || !maps.Equal(got, map[string]string{"a": "-1"}) {
		t.Errorf("without a workspace: %v, %q", err, got)
	}
	all = []entry{{name: "workspace/.gitignore", content: strings.Repeat("#", gitignore.MaxFile+1)}}
	if _, err := compare(Options{}); err == nil || !strings.Contains(err.Error(), "do without them: `agbox diff --all`") {
		t.Errorf("patterns that are too large: %v", err)
	}
}

// A process inside may make .git a file, or a loop of links: the engine then fails.
func TestAnIndexThatTheEngineCannotGiveCountsAsNone(t *testing.T) {
	c, got := compared(t, map[string]string{"a": "old"})
	all := packed(t, entry{name: "workspace/.git", content: "gitdir: elsewhere"}, entry{name: "workspace/a", content: "new"})
	err := c.review.CompareStopped(t.Context(), "s", c.base, Options{}, func(ctx context.Context, path string) (io.ReadCloser, error) {
		if strings.HasSuffix(path, "/.git/index") {
			return nil, fmt.Errorf("lstat %s: not a directory: %w", path, errdefs.ErrInternal)
		}
		return all(ctx, path)
	}, c.send)
	if err != nil || !maps.Equal(got, map[string]string{"a": "-old+new"}) {
		t.Errorf("%v, the differences are %q", err, got)
	}
}
