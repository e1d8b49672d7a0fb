package review

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/internal/paths"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	storev1 "github.com/agbox/agbox/proto/store/v1"
	"github.com/agbox/agbox/workspace/archive"
	"github.com/agbox/agbox/workspace/gitignore"
)

// modified is when all files of the tests were changed before they were copied.
var modified = time.Unix(1_700_000_000, 123)

// compared is a comparison with a base of these files. differences gets what it finds: the
// path, then the contents of before and after.
func compared(t *testing.T, files map[string]string) (c *comparison, differences map[string]string) {
	t.Helper()
	install := paths.Install{Data: t.TempDir()}
	source := t.TempDir()
	for name, content := range files {
		name = filepath.Join(source, name)
		err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte(content), 0o644), os.Chtimes(name, modified, modified))
		if err != nil {
			t.Fatal(err)
		}
	}
	record(t, source, install.GuestBase("s"))
	base, err := New(nil, install).Open("s", nil, agboxv1.WorkBase_WORK_BASE_FOLDER, Commits{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(base.Close)
	differences = make(map[string]string)
	last := ""
	c = &comparison{review: New(nil, install), sandboxID: "s", base: base, seen: make(map[string]bool), twins: twins(base), sent: make(map[string]bool)}
	c.send = func(m *agboxv1.CompareWorkspaceResponse) error {
		switch item := m.GetItem().(type) {
		case *agboxv1.CompareWorkspaceResponse_Difference:
			last = string(item.Difference.GetPath())
			differences[last] = ""
		case *agboxv1.CompareWorkspaceResponse_Before:
			differences[last] += "-" + string(item.Before)
		case *agboxv1.CompareWorkspaceResponse_After:
			differences[last] += "+" + string(item.After)
		}
		return nil
	}
	return c, differences
}

func record(t *testing.T, source, dir string, excludes ...string) {
	t.Helper()
	fd, err := unix.Open(source, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	r, err := RecordBase(dir, "workspace")
	if err != nil {
		t.Fatal(err)
	}
	if err := archive.Pack(t.Context(), io.Discard, fd, "", archive.PackOptions{Name: "workspace", Record: r}); err != nil {
		r.Discard()
		t.Fatal(err)
	}
	if err := r.Finish(AboutBase{Source: source, Target: "/workspace", CopiedAt: time.Now().UnixNano(), Excludes: excludes, Foreign: []string{"cache"}}); err != nil {
		t.Fatal(err)
	}
}

// bare is the header of a file that the supervisor says did not change since it was copied.
func bare(size int, at time.Time) *tar.Header {
	return &tar.Header{Typeflag: tar.TypeReg, Mode: 0o644, ModTime: at, PAXRecords: map[string]string{archive.SizeRecord: strconv.Itoa(size)}}
}

func TestOnlyDifferencesAreSentWithTheirContents(t *testing.T) {
	c, got := compared(t, map[string]string{"same": "1", "changed": "old", "gone": "was here", "tool": "run"})
	plain := &tar.Header{Typeflag: tar.TypeReg, Mode: 0o644}
	err := errors.Join(
		c.found("same", plain, strings.NewReader("1")),
		c.found("changed", plain, strings.NewReader("new")),
		c.found("changed", plain, strings.NewReader("sent twice")),
		c.found("added", plain, strings.NewReader("more")),
		c.found("tool", &tar.Header{Typeflag: tar.TypeReg, Mode: 0o755}, strings.NewReader("run")),
		c.found("link", &tar.Header{Typeflag: tar.TypeSymlink, Linkname: "/etc/passwd"}, nil),
		c.gone("gone"), c.gone("never was"),
	)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"changed": "-old+new", "added": "+more", "tool": "-run+run", "link": "+/etc/passwd", "gone": "-was here"}
	if !maps.Equal(got, want) {
		t.Errorf("the differences are %q, want %q", got, want)
	}
}

func TestTheFilesOfABaseAreSentOneByOneOrInParts(t *testing.T) {
	files := make(map[string]string)
	for i := range partSize + 1 {
		files[strconv.Itoa(i)] = "1"
	}
	c, _ := compared(t, files)
	for inParts, want := range map[bool]int{false: partSize + 1, true: 2} {
		messages, got := 0, make(map[string]bool)
		err := Files(c.base, inParts, func(m *agboxv1.CompareWorkspaceResponse) error {
			messages++
			for _, f := range append(m.GetBaseFiles().GetFiles(), m.GetBaseFile()) {
				got[string(f.GetPath())] = true
			}
			return nil
		})
		if delete(got, ""); err != nil || messages != want || len(got) != len(files) {
			t.Errorf("in parts %t: %d messages with %d files, %v", inParts, messages, len(got), err)
		}
	}
}

func TestNamesOnlySendsNoContents(t *testing.T) {
	c, got := compared(t, map[string]string{"a": "old"})
	c.o.NamesOnly = true
	if err := c.found("a", &tar.Header{Typeflag: tar.TypeReg}, strings.NewReader("new")); err != nil {
		t.Fatal(err)
	}
	if want := map[string]string{"a": ""}; !maps.Equal(got, want) {
		t.Errorf("the differences are %q", got)
	}
}

// A file that the supervisor sends without content is read apart unless size and time show
// that it is the one that was copied to this path.
func TestAFileWithoutContentIsReadUnlessItMustBeTheOneThatWasCopied(t *testing.T) {
	c, got := compared(t, map[string]string{"one": "1", "twin/a": "22", "twin/b": "33"})
	for _, row := range []struct {
		path string
		h    *tar.Header
		read bool
	}{
		{"one", bare(1, modified), false},
		{"one", bare(2, modified), true},
		{"one", bare(1, modified.Add(1)), true},
		{"renamed", bare(1, modified), true},
		{"twin/a", bare(2, modified), true}, // it may be twin/b, moved here
		{"one", &tar.Header{Typeflag: tar.TypeReg, ModTime: modified, PAXRecords: map[string]string{archive.SizeRecord: "-1"}}, true},
	} {
		c.later, c.seen = nil, make(map[string]bool)
		if err := c.found(row.path, row.h, nil); err != nil {
			t.Fatal(err)
		}
		if read := len(c.later) == 1; read != row.read {
			t.Errorf("%s with size %s and time %v is read: %v", row.path, row.h.PAXRecords[archive.SizeRecord], row.h.ModTime, read)
		}
	}
	if len(got) > 0 {
		t.Errorf("differences: %q", got)
	}
}

func TestALargeContentIsSentWholeAndInPieces(t *testing.T) {
	c, got := compared(t, map[string]string{})
	for _, size := range []int{inMemory - 1, inMemory, inMemory + 1, inMemory + pieceSize + 7} {
		content := bytes.Repeat([]byte("0123456789abcde\n"), size/16+1)[:size]
		var sent bytes.Buffer
		sum, largest := []byte(nil), 0
		collect := c.send
		c.send = func(m *agboxv1.CompareWorkspaceResponse) error {
			if d := m.GetDifference(); d != nil {
				sum = d.GetAfter().GetSha256()
			}
			largest = max(largest, len(m.GetAfter()))
			_, _ = sent.Write(m.GetAfter())
			return collect(m)
		}
		if err := c.file(fmt.Sprint(size), &tar.Header{Size: int64(size)}, bytes.NewReader(content)); err != nil {
			t.Fatal(err)
		}
		c.send = collect
		if want := sha256.Sum256(content); !bytes.Equal(sent.Bytes(), content) || !bytes.Equal(sum, want[:]) || largest > pieceSize {
			t.Errorf("of %d bytes %d were sent, at most %d at once", size, sent.Len(), largest)
		}
	}
	if len(got) != 4 {
		t.Errorf("%d differences", len(got))
	}
	if left, err := filepath.Glob(filepath.Join(c.review.paths.GuestBase("s"), "spool-*")); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

func TestAFileThatIsTooLargeIsListedAndNotRead(t *testing.T) {
	c, got := compared(t, map[string]string{"a": "old", "huge": "small"})
	var large []string
	collect := c.send
	c.send = func(m *agboxv1.CompareWorkspaceResponse) error {
		if d := m.GetDifference(); d.GetAfter().GetTooLarge() {
			large = append(large, fmt.Sprint(string(d.GetPath()), " ", d.GetAfter().GetSize(), " ", len(d.GetAfter().GetSha256())))
		}
		return collect(m)
	}
	advance, err := New(nil, c.review.paths).Begin(t.Context(), "s", nil, false)
	if err != nil {
		t.Fatal(err)
	}
	if err := Note(advance, "known", &agboxv1.WorkspaceFile{Size: maxFile, Sha256: make([]byte, 32)}); err == nil {
		t.Error("a file that can be read was noted without its content")
	}
	err = errors.Join(
		Note(advance, "known", &agboxv1.WorkspaceFile{Size: maxFile + 5, Sha256: make([]byte, 32), Modified: modified.UnixNano()}),
		advance.Commit(),
	)
	if err != nil {
		t.Fatal(err)
	}
	if c.base, err = New(nil, c.review.paths).Open("s", nil, agboxv1.WorkBase_WORK_BASE_FOLDER, Commits{}); err != nil {
		t.Fatal(err)
	}
	defer c.base.Close()
	inSeconds := &tar.Header{Typeflag: tar.TypeReg, Mode: 0o644, Size: maxFile + 5, ModTime: modified.Truncate(time.Second)}
	err = errors.Join(
		c.found("huge", bare(maxFile+1, modified), nil),
		c.found("new", &tar.Header{Typeflag: tar.TypeReg, Size: 1 << 40}, nil), // of an older supervisor, or of the engine
		c.found("known", bare(maxFile+5, modified), nil),
		c.file("known", inSeconds, nil),
		c.file("known", bare(maxFile+5, modified.Add(1)), nil),
		c.found("a", &tar.Header{Typeflag: tar.TypeReg, Mode: 0o644}, strings.NewReader("new")),
	)
	if err != nil {
		t.Fatal(err)
	}
	if want := fmt.Sprint([]string{"huge 1073741825 0", "new 1099511627776 0", "known 1073741829 0"}); fmt.Sprint(large) != want {
		t.Errorf("too large are %v, want %s", large, want)
	}
	if want := map[string]string{"a": "-old+new", "huge": "-small", "new": "", "known": ""}; !maps.Equal(got, want) {
		t.Errorf("the differences are %q, want %q", got, want)
	}
}

// A file that cannot be read may be another one in spite of its size and time.
func TestALargeFileThatMayHaveChangedIsADifference(t *testing.T) {
	c, got := compared(t, map[string]string{"one": "1", "touched": "22", "twin/a": "333", "twin/b": "444"})
	header := func(size int, changed int64) *tar.Header {
		h := bare(size, modified)
		h.ChangeTime = time.Unix(0, changed)
		return h
	}
	copied := c.base.GetCopiedAt()
	if err := errors.Join(c.large("one", header(1, copied-1)), c.large("touched", header(2, copied+1)), c.large("twin/a", header(3, copied-1))); err != nil {
		t.Fatal(err)
	}
	if want := map[string]string{"touched": "-22", "twin/a": "-333"}; !maps.Equal(got, want) {
		t.Errorf("the differences are %q, want %q", got, want)
	}
	c.base.First = []*storev1.BaseFile{{Path: []byte("touched")}} // its copy was another one
	clear(got)
	if err := c.large("touched", header(2, copied+1)); err != nil || len(got) > 0 {
		t.Errorf("what was brought since: %q, %v", got, err)
	}
}

func TestContentsAreSentOnceAndInBounds(t *testing.T) {
	c, got := compared(t, map[string]string{"a": "old", "b": "old"})
	c.o = Options{Once: true, total: 12} // room for the contents of a, and once more for those of b
	plain := &tar.Header{Typeflag: tar.TypeReg, Mode: 0o644}
	for _, name := range []string{"a", "b", "c"} {
		if err := c.found(name, plain, strings.NewReader("new")); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(c.found("more", plain, strings.NewReader("1234567")), c.found("none", plain, strings.NewReader(""))); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"a": "-old+new", "b": "", "c": "", "more": "", "none": ""}
	if !maps.Equal(got, want) {
		t.Errorf("the differences are %q, want %q", got, want)
	}
}

func TestStatSendsLinesAndNoContents(t *testing.T) {
	c, got := compared(t, map[string]string{"a": "1\n2\n3\n", "gone": "1\n2"})
	c.o.Stat = true
	lines := make(map[string]string)
	collect := c.send
	c.send = func(m *agboxv1.CompareWorkspaceResponse) error {
		d := m.GetDifference()
		lines[string(d.GetPath())] = fmt.Sprint(d.GetAdded(), d.GetRemoved(), d.GetBinary())
		return collect(m)
	}
	plain := &tar.Header{Typeflag: tar.TypeReg, Mode: 0o644}
	err := errors.Join(
		c.found("a", plain, strings.NewReader("1\ntwo\n3\nfour")), c.gone("gone"), c.found("binary", plain, strings.NewReader("\x00")),
		c.found("large", plain, strings.NewReader(strings.Repeat("line\n", 2<<20))), c.found("huge", bare(maxFile+1, modified), nil),
	)
	if err != nil {
		t.Fatal(err)
	}
	if want := map[string]string{"a": "2 1 false", "gone": "0 2 false", "binary": "0 0 true", "large": "2097152 0 false", "huge": "0 0 true"}; !maps.Equal(lines, want) {
		t.Errorf("the lines are %v, want %v", lines, want)
	}
	if want := map[string]string{"a": "", "gone": "", "binary": "", "large": "", "huge": ""}; !maps.Equal(got, want) {
		t.Errorf("contents were sent: %q", got)
	}
}

func TestAnErrorOfTheCallerEndsAComparison(t *testing.T) {
	c, _ := compared(t, map[string]string{"a": "old"})
	ended := errors.New("the client has gone")
	c.send = func(*agboxv1.CompareWorkspaceResponse) error { return ended }
	if err := c.gone("a"); !errors.Is(err, ended) {
		t.Errorf("gone: %v", err)
	}
	c.changes = maxChanges
	if err := c.gone("a"); !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "more than 200000") {
		t.Errorf("too many changes: %v", err)
	}
}

func TestThePathsOfNewFilesAreBounded(t *testing.T) {
	c, _ := compared(t, map[string]string{"old": "old"})
	c.names = maxNames - len("new")
	h := &tar.Header{Typeflag: tar.TypeSymlink, Linkname: "x"}
	for _, path := range []string{"new", "old"} {
		if err := c.found(path, h, nil); err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
	if err := c.found("n", h, nil); !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "paths of more than 64 MiB") {
		t.Errorf("one more: %v", err)
	}
}

func TestPathsThatAreNoWorkAreNotValid(t *testing.T) {
	long := strings.Repeat("x", 256)
	for path, want := range map[string]bool{
		"a": true, "a/b": true, ".gitignore": true, "a b/\xff": true, "..a": true, "": false, "/a": false, "a/": false, "a//b": false,
		"../a": false, "a/../b": false, "./a": false, "a\x00b": false, ".git": false, ".git/config": false, "sub/.GIT/hooks/x": false,
		long: false, strings.Repeat("abc/", 1024) + "x": false,
	} {
		if got := Valid(path); got != want {
			t.Errorf("Valid(%.40q) is %v", path, got)
		}
	}
}

func TestWhatOtherCopiesBroughtInIsForeign(t *testing.T) {
	c, _ := compared(t, map[string]string{})
	for path, want := range map[string]bool{"cache": true, "cache/x": true, "cached": false, "a/cache": false} {
		if got := c.foreign(path); got != want {
			t.Errorf("foreign(%q) is %v", path, got)
		}
	}
}

func TestASandboxWithoutABaseSaysSo(t *testing.T) {
	r := New(nil, paths.Install{Data: t.TempDir()})
	for want, from := range map[string]*agboxv1.DerivedSpec{
		"No workspace was copied into sandbox s,":  {Parent: "boss", ParentSandbox: "box"},
		"`agbox cp FOLDER/. box:/work` from there": {Parent: "boss", ParentSandbox: "box", Workspace: "/work"},
	} {
		_, opened := r.Open("s", from, agboxv1.WorkBase_WORK_BASE_FOLDER, Commits{})
		_, begun := r.Begin(t.Context(), "s", from, false)
		for _, err := range []error{opened, begun} {
			if fault.ReasonOf(err) != agboxv1.ErrorReason_WORKSPACE_HAS_NO_BASE || !strings.Contains(err.Error(), want) {
				t.Errorf("without a base: %v; want %q", err, want)
			}
		}
	}
}

// What a branch lost, because git did not track it, is a difference once git tracks it, also if it has
// not changed and the folder has the same.
func TestWhatGitTracksAgainIsADifference(t *testing.T) {
	for _, stat := range []bool{false, true} {
		c, got := compared(t, map[string]string{"again": "1", "not": "12", "other": "123", "gone": "1234"})
		install := c.review.paths
		a, err := BeginAdvance(t.Context(), install.GuestBase("s"), true)
		if err != nil {
			t.Fatal(err)
		}
		a.Untrack([][]byte{[]byte("again"), []byte("not"), []byte("gone")})
		if err := a.Commit(); err != nil {
			t.Fatal(err)
		}
		if c.base, err = c.review.Open("s", nil, agboxv1.WorkBase_WORK_BASE_UNSPECIFIED, Commits{}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.base.Close)
		var lost []string
		err = Files(c.base, false, func(m *agboxv1.CompareWorkspaceResponse) error {
			if f := m.GetBaseFile(); f.GetUntracked() {
				lost = append(lost, string(f.GetPath()))
			}
			return nil
		})
		if err != nil || !slices.Equal(lost, []string{"again", "gone", "not"}) {
			t.Errorf("lost are %q: %v", lost, err)
		}
		c.inIndex = map[string]bool{"again": true, "other": true, "gone": true}
		c.o.Stat, c.o.Once = stat, true
		var last *agboxv1.WorkspaceDifference
		send := c.send
		c.send = func(m *agboxv1.CompareWorkspaceResponse) error {
			if d := m.GetDifference(); d.GetRetracked() {
				last = d
			}
			return send(m)
		}
		for i, name := range []string{"again", "not", "other"} {
			if err := c.found(name, bare(i+1, modified), nil); err != nil {
				t.Fatal(err)
			}
		}
		if !slices.Equal(c.later, []string{"again"}) {
			t.Errorf("read apart are %q", c.later)
		}
		if err := errors.Join(c.file("again", &tar.Header{Typeflag: tar.TypeReg, Mode: 0o644}, strings.NewReader("1")), c.gone("gone")); err != nil {
			t.Fatal(err)
		}
		want := map[string]string{"again": "-1", "gone": "-1234"} // the content of both sides is sent once
		if stat {
			want = map[string]string{"again": "", "gone": ""}
		}
		if !maps.Equal(got, want) || last == nil || last.GetBefore() == nil || last.GetAfter() == nil || stat && last.GetAdded() != 1 {
			t.Errorf("with stat %v: the differences are %q, and %v", stat, got, last)
		}
		clear(got)
		c.o.Removal = true // loses nothing that the folder has
		if err := c.file("again", &tar.Header{Typeflag: tar.TypeReg, Mode: 0o644}, strings.NewReader("1")); err != nil || len(got) > 0 {
			t.Errorf("for a removal: %q, %v", got, err)
		}
	}
}

// What the copy left out is not looked for by a scan of its own.
func TestWhatIsExcludedFromTheCopyIsNotTracked(t *testing.T) {
	c, _ := compared(t, map[string]string{"copied": "1"})
	c.base.ExcludePatterns = []string{"docs/", "*.iso"}
	dir := t.TempDir()
	git := func(args ...string) {
		t.Helper()
		if out, err := exec.CommandContext(t.Context(), "git", append([]string{"-C", dir}, args...)...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	git("init", "-q")
	for _, name := range []string{"copied", "docs/deep/page", "image.iso", "dist/added"} {
		name = filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, nil, 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	git("add", "-f", ".")
	index, err := os.ReadFile(filepath.Join(dir, ".git/index"))
	if err != nil {
		t.Fatal(err)
	}
	got, err := c.indexed(&tar.Header{Typeflag: tar.TypeReg, Size: int64(len(index))}, bytes.NewReader(index))
	if err != nil || !maps.Equal(got, map[string]bool{"dist/added": true}) || !c.inIndex["dist/added"] {
		t.Errorf("tracked and not copied: %v, %v", got, err)
	}
	// With --all they do not count, also if they are unusable: the error advises it.
	c.base.ExcludePatterns = []string{strings.Repeat("x", gitignore.MaxPattern+1)}
	for all, want := range map[bool]string{false: "do without them: `agbox diff --all`", true: "<nil>"} {
		c.o.All, c.inIndex = all, nil
		_, err := c.indexed(&tar.Header{Typeflag: tar.TypeReg, Size: int64(len(index))}, bytes.NewReader(index))
		if said := fmt.Sprint(err); !strings.Contains(said, want) || c.inIndex["copied"] != all {
			t.Errorf("with all %v: %v, tracked %v", all, err, c.inIndex)
		}
	}
}

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
