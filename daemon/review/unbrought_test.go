package review

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/agbox/agbox/internal/paths"
	"github.com/agbox/agbox/workspace/gitignore"
)

// TestUnbroughtWorkIsFilesAndNewCommits: of references only those count that changed after the
// copy and name neither what some named when they were copied nor what was brought home.
func TestUnbroughtWorkIsFilesAndNewCommits(t *testing.T) {
	const (
		head, other, made = "1111111111111111111111111111111111111111", "2222222222222222222222222222222222222222", "3333333333333333333333333333333333333333"
		tag, nested       = "4444444444444444444444444444444444444444", "5555555555555555555555555555555555555555"
	)
	install, source := paths.Install{Data: t.TempDir()}, t.TempDir()
	before := map[string]string{"file": "old", ".git/HEAD": "ref: refs/heads/main\n", ".git/refs/heads/main": head + "\n", ".git/refs/heads/other": other + "\n",
		".git/packed-refs": tag + " refs/tags/v1\n^" + made + "\n", "own/.git/refs/heads/main": nested + "\n", ".gitignore": "ign\n"}
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
	const untold = "any ignored files that git tracks, because its index cannot be read (%v)"
	const unread = "references of git (too many or in a form that agbox does not read)"
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
		{"what was copied in, packed anew", map[string]string{".git/packed-refs": "# pack-refs\n" + other + " refs/heads/other\n" + tag + " refs/tags/v1\n^" + made + "\n" + head + " refs/heads/main\n"}, ""},
		{"what was copied in of a nested repository, packed anew", map[string]string{"own/.git": "/", "own/.git/packed-refs": nested + " refs/heads/main"}, ""},
		{"a branch at what was copied in", map[string]string{".git/refs/heads/new": head}, ""},
		{"what was fetched", map[string]string{".git/refs/remotes/origin/main": made, ".git/packed-refs": made + " refs/remotes/origin/x\n"}, ""},
		{"a nested repository", map[string]string{"lib/.git": "gitdir: ../.git/modules/lib"}, ""},
		{"a commit of a nested repository", map[string]string{"lib/.git": "/", "lib/.git/refs/tags/v1": made}, "commits (up to 333333333333)"},
		{"a commit of a new repository in an ignored folder", map[string]string{"ign": "/", "ign/m/.git": "/", "ign/m/.git/HEAD": "ref: refs/heads/main", "ign/m/.git/refs/heads/main": made}, "commits (up to 333333333333)"},
		{"an ignored file", map[string]string{"ign": "/", "ign/file": "new"}, ""},
		{"an index that has the rest elsewhere", map[string]string{".git/index": "DIRC\x00\x00\x00\x02\x00\x00\x00\x00link"}, fmt.Sprintf(untold, gitignore.ErrSplit)},
		{"an index that has all", map[string]string{".git/index": "DIRC\x00\x00\x00\x02\x00\x00\x00\x00"}, ""},
		{"an index that is no file", map[string]string{".git/index": "-> else"}, fmt.Sprintf(untold, errLargeIndex)},
		{"a commit of a submodule", map[string]string{"lib/.git": "gitdir: ../.git/modules/lib\n", ".git/modules/lib/HEAD": made}, "commits (up to 333333333333)"},
		{"a detached commit of a work tree", map[string]string{"lib/.git": "gitdir: /workspace/.git/worktrees/lib", ".git/worktrees/lib/commondir": "../..", ".git/worktrees/lib/HEAD": made}, "commits (up to 333333333333)"},
		{"references of a work tree", map[string]string{"lib/.git": "gitdir: /else/lib", "/else/lib/commondir": "../shared", "/else/shared/packed-refs": made + " refs/tags/v1"}, "commits (up to 333333333333)"},
		{"a clean work tree", map[string]string{"lib/.git": "gitdir: ../.git/worktrees/lib", ".git/worktrees/lib/commondir": "../..", ".git/worktrees/lib/HEAD": "ref: refs/heads/main"}, ""},
		{"tables of references", map[string]string{".git/HEAD": "ref: refs/heads/.invalid\n"}, unread},
		{"a table of references", map[string]string{".git/reftable/0x1.ref": "REFT"}, unread},
		{"a symbolic link", map[string]string{".git/refs/heads/main": "-> " + made}, unread},
		{"a long reference", map[string]string{".git/refs/heads/main": made + strings.Repeat("\n", maxRef)}, unread},
		{"no commit", map[string]string{".git/refs/heads/main": "else"}, unread},
		{"a lock", map[string]string{".git/refs/heads/main.lock": ""}, ""},
		{"too many references", map[string]string{".git/packed-refs": "#" + strings.Repeat("x", maxReferences)}, unread},
		{"too many references together", map[string]string{".git/packed-refs": "#" + strings.Repeat("x", maxReferences/2), "lib/.git": "/", "lib/.git/packed-refs": "#" + strings.Repeat("x", maxReferences/2)}, unread},
		{"no reference", map[string]string{".git/refs/heads/odd": "ref: refs/heads/main\n"}, ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			work, _, err := r.Unbrought(t.Context(), "s", withFiles(t, before, row.after))
			if err != nil || work != row.want {
				t.Errorf("%q, %v; want %q", work, err, row.want)
			}
		})
	}
	many := make(map[string]string)
	for i := range maxRepositories {
		many[fmt.Sprintf("%d/.git", i)] = "/"
	}
	if work, _, err := r.Unbrought(t.Context(), "s", withFiles(t, before, many)); work != unread || err != nil {
		t.Errorf("with many repositories: %q, %v", work, err)
	}
	if work, _, err := r.Unbrought(t.Context(), "without", withFiles(t, before, map[string]string{"file": "new"})); work != "" || err != nil {
		t.Errorf("without a copied workspace: %q, %v", work, err)
	}
}

// TestAllCommitsAreWorkIfNoneWasCopied: the repository was made in the sandbox, or its commit was
// not read when it was copied.
func TestAllCommitsAreWorkIfNoneWasCopied(t *testing.T) {
	const made = "3333333333333333333333333333333333333333"
	install, source := paths.Install{Data: t.TempDir()}, t.TempDir()
	record(t, source, install.GuestBase("s"))
	r := New(nil, install)
	for want, after := range map[string]map[string]string{
		"":                             {".git/HEAD": "ref: refs/heads/main"},
		"commits (up to 333333333333)": {".git/HEAD": "ref: refs/heads/main", ".git/refs/heads/main": made},
	} {
		if work, _, err := r.Unbrought(t.Context(), "s", withFiles(t, nil, after)); err != nil || work != want {
			t.Errorf("%v: %q, %v; want %q", after, work, err, want)
		}
	}
	after := map[string]string{".git": "gitdir: /else", "/else/HEAD": made}
	if work, _, err := r.Unbrought(t.Context(), "s", withFiles(t, nil, after)); err != nil || work != "commits (up to 333333333333)" {
		t.Errorf("a repository elsewhere: %q, %v", work, err)
	}
}

// TestWhatWasBroughtIsNoProofIfFilesDidNotCome: a commit may have files that the copy left out.
func TestWhatWasBroughtIsNoProofIfFilesDidNotCome(t *testing.T) {
	const made, later = "3333333333333333333333333333333333333333", "4444444444444444444444444444444444444444"
	for want, excludes := range map[string][]string{"": nil, "commits (up to 444444444444)": {"*.bin"}} {
		install, source := paths.Install{Data: t.TempDir()}, t.TempDir()
		record(t, source, install.GuestBase("s"), excludes...)
		r := New(nil, install)
		a, err := r.Begin(t.Context(), "s", nil, true)
		if err != nil {
			t.Fatal(err)
		}
		a.By("branch", made, nil)
		a.Brought(later)
		if err := a.Commit(); err != nil {
			t.Fatal(err)
		}
		work, _, err := r.Unbrought(t.Context(), "s", withFiles(t, nil, map[string]string{".git/HEAD": later, ".git/refs/heads/b": later}))
		if err != nil || work != want {
			t.Errorf("without %q: %q, %v; want %q", excludes, work, err, want)
		}
	}
}

// TestWhatWentToABranchIsHomeOnceTheBranchHasMoved: the client notes it before, and may be killed in
// between.
func TestWhatWentToABranchIsHomeOnceTheBranchHasMoved(t *testing.T) {
	before, after := map[string]string{"file": "old"}, map[string]string{"file": "new"}
	install, source := paths.Install{Data: t.TempDir()}, t.TempDir()
	if err := os.WriteFile(filepath.Join(source, "file"), []byte("old"), 0o644); err != nil {
		t.Fatal(err)
	}
	record(t, source, install.GuestBase("s"))
	r := New(nil, install)
	for _, row := range []struct {
		want   string
		change func(*Advance)
	}{
		{`changed files ("file")`, func(a *Advance) {
			a.By("commit", "", nil)
			a.Replace("file", false, false)
			a.Content([]byte("new"))
		}},
		{"", func(a *Advance) { a.Moved([]string{"commit"}) }},
	} {
		a, err := r.Begin(t.Context(), "s", nil, true)
		if err != nil {
			t.Fatal(err)
		}
		row.change(a)
		if err := a.Commit(); err != nil {
			t.Fatal(err)
		}
		if work, _, err := r.Unbrought(t.Context(), "s", withFiles(t, before, after)); err != nil || work != row.want {
			t.Errorf("%q, %v; want %q", work, err, row.want)
		}
	}
}

// TestAConflictIsHomeOnceAClientHasFoundItResolved, also if the sandbox has taken its change back:
// the folder may have markers, which only that record can remove.
func TestAConflictIsHomeOnceAClientHasFoundItResolved(t *testing.T) {
	install, source := paths.Install{Data: t.TempDir()}, t.TempDir()
	record(t, source, install.GuestBase("s"))
	r := New(nil, install)
	unbrought := func(want string) (advanced string) {
		t.Helper()
		if work, _, err := r.Unbrought(t.Context(), "s", withFiles(t, nil, nil)); err != nil || work != want {
			t.Errorf("%q, %v; want %q", work, err, want)
		}
		return r.Advanced("s")
	}
	before := unbrought("")
	if err := os.MkdirAll(install.Records("s"), 0o700); err != nil {
		t.Fatal(err)
	}
	conflict := filepath.Join(install.Records("s"), "pending-folder-f")
	for _, name := range []string{conflict, conflict + ".new", install.Pushes("s")} {
		if err := os.WriteFile(name, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if unbrought("unresolved conflicts (1)") == before {
		t.Error("a conflict does not make it be compared again")
	}
	if err := os.Remove(conflict); err != nil {
		t.Fatal(err)
	}
	if unbrought("") != before {
		t.Error("the end of a conflict does not make it be compared again")
	}
}

// withFiles returns the archives of a workspace that had files when it was copied, and has others
// since.
func withFiles(t *testing.T, before, after map[string]string) Archive {
	t.Helper()
	return func(_ context.Context, path string) (io.ReadCloser, error) {
		var out bytes.Buffer
		w, found := tar.NewWriter(&out), false
		if path == "/workspace" {
			found = true
			if err := w.WriteHeader(&tar.Header{Name: "workspace/", Typeflag: tar.TypeDir, Mode: 0o755}); err != nil {
				t.Error(err)
			}
		}
		for at, files := range []map[string]string{before, after} {
			for _, name := range slices.Sorted(maps.Keys(files)) {
				content := files[name]
				full := name
				if !filepath.IsAbs(name) {
					full = "/workspace/" + name
				}
				if _, replaced := after[name]; at == 0 && replaced || full != path && !strings.HasPrefix(full, path+"/") {
					continue
				}
				found = true
				h := &tar.Header{Name: strings.TrimPrefix(full, filepath.Dir(path)+"/"), Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(content)), ModTime: time.Unix(int64(at)<<40, 0), Format: tar.FormatPAX}
				if filepath.Dir(path) == "/" {
					h.Name = full[1:]
				}
				if target, link := strings.CutPrefix(content, "-> "); link {
					h.Typeflag, h.Linkname, h.Size, content = tar.TypeSymlink, target, 0, ""
				}
				if content == "/" {
					h.Typeflag, h.Mode, h.Size, content = tar.TypeDir, 0o755, 0, ""
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

// TestWhatWasBroughtToTheFolderIsHomeWhileHeadIsThere: the folder gets what HEAD has, so it loses
// the files of a commit that HEAD has left.
func TestWhatWasBroughtToTheFolderIsHomeWhileHeadIsThere(t *testing.T) {
	const head, made = "1111111111111111111111111111111111111111", "3333333333333333333333333333333333333333"
	install, source := paths.Install{Data: t.TempDir()}, t.TempDir()
	before := map[string]string{".git/HEAD": "ref: refs/heads/main", ".git/refs/heads/main": head}
	if err := os.MkdirAll(filepath.Join(source, ".git/refs/heads"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, content := range before {
		if err := os.WriteFile(filepath.Join(source, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	record(t, source, install.GuestBase("s"))
	r := New(nil, install)
	a, err := r.Begin(t.Context(), "s", nil, false)
	if err != nil {
		t.Fatal(err)
	}
	a.Brought(made)
	if err := a.Commit(); err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		name, want string
		after      map[string]string
	}{
		{"HEAD is there", "", map[string]string{".git/refs/heads/main": made, ".git/refs/heads/side": made}},
		{"HEAD is there, detached", "", map[string]string{".git/HEAD": made}},
		{"HEAD is there, packed", "", map[string]string{".git/HEAD": "ref: refs/heads/side", ".git/packed-refs": made + " refs/heads/side"}},
		{"HEAD has left it", "commits (up to 333333333333)", map[string]string{".git/refs/heads/side": made}},
		{"HEAD is gone", "commits (up to 333333333333)", map[string]string{".git/HEAD": "ref: refs/heads/new", ".git/refs/heads/side": made}},
	} {
		if work, _, err := r.Unbrought(t.Context(), "s", withFiles(t, before, row.after)); err != nil || work != row.want {
			t.Errorf("%s: %q, %v; want %q", row.name, work, err, row.want)
		}
	}
}

// TestWorkThatIsLeftNamesHowItComesHome: "agbox apply" does not bring all of it.
func TestWorkThatIsLeftNamesHowItComesHome(t *testing.T) {
	const head, made = "1111111111111111111111111111111111111111", "3333333333333333333333333333333333333333"
	install, source := paths.Install{Data: t.TempDir()}, t.TempDir()
	before := map[string]string{".git/HEAD": "ref: refs/heads/main", ".git/refs/heads/main": head, ".gitignore": "ign"}
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
	for _, row := range []struct {
		want  string
		after map[string]string
	}{
		{"`agbox apply s` brings them.", map[string]string{"file": "new"}},
		{"`agbox apply s --branch NAME` brings the commits.", map[string]string{".git/refs/heads/main": made}},
		{"`agbox apply s --branch NAME` brings the commits.", map[string]string{".git/HEAD": made}},
		{"`agbox apply s --branch NAME` brings the commits.", map[string]string{".git/packed-refs": made + " refs/heads/main"}},
		{"`agbox exec s -- git bundle create", map[string]string{".git/refs/heads/side": made}},
		{"`agbox exec s -- git bundle create", map[string]string{".git/refs/tags/v1": made}},
		{"`agbox exec s -- git stash pop` takes the newest stash back, for `agbox apply s`. If that conflicts, git keeps the stash: ", map[string]string{".git/refs/stash": made}},
		{"`agbox exec s -- git -C ign/m bundle create", map[string]string{"ign/m/.git": "/", "ign/m/.git/refs/stash": made}},
		{`git -C 'ign/$(x)'\''?' bundle create`, map[string]string{"ign/$(x)'\x1b/.git": "/", "ign/$(x)'\x1b/.git/HEAD": made}},
		{"`rm .git/index && git reset -q`", map[string]string{".git/index": "DIRC"}},
	} {
		if _, advice, err := New(nil, install).Unbrought(t.Context(), "s", withFiles(t, before, row.after)); err != nil || !strings.Contains(advice, row.want) {
			t.Errorf("with %v: %q, %v; want %q", row.after, advice, err, row.want)
		}
	}
}
